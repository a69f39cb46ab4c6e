// The operations: their attributes and inputs, turned into requests.
#include "kernels.h"

#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>

#include "engine.h"

namespace hdp::tf {
namespace {

constexpr size_t kMostDims = 32;          // of hdp_request.shape
constexpr size_t kLeastBytes = 64 << 10;  // hdp.collectives.wires: below, the job's wire format isn't used

struct Attributes {
  std::string tag;
  int64_t kind = HDP_ALLREDUCE, op = HDP_SUM, root = 0, wire = HDP_WIRE_SAME;
};

std::string text_of(TF_OpKernelConstruction* construction, const char* name, Status& status) {
  int32_t list_size = 0, bytes = 0;
  api().OpKernelConstruction_GetAttrSize(construction, name, &list_size, &bytes, status);
  std::string text(status.ok() && bytes > 0 ? static_cast<size_t>(bytes) : 0, '\0');
  if (!text.empty()) api().OpKernelConstruction_GetAttrString(construction, name, text.data(), text.size(), status);
  return text;
}

// Never throws: TensorFlow's C code calls it.
void* create_with(TF_OpKernelConstruction* construction, std::initializer_list<const char*> numbers) noexcept {
  auto attributes = std::make_unique<Attributes>();
  Status status;
  attributes->tag = text_of(construction, "tag", status);
  for (const char* name : numbers) {
    int64_t value = 0;
    if (status.ok()) api().OpKernelConstruction_GetAttrInt64(construction, name, &value, status);
    const std::string_view text(name);
    (text == "kind"   ? attributes->kind
     : text == "op"   ? attributes->op
     : text == "root" ? attributes->root
                      : attributes->wire) = value;
  }
  if (!status.ok()) api().OpKernelConstruction_Failure(construction, status);
  return attributes.release();
}

uint32_t dtype_of(TF_DataType dtype) {
  switch (dtype) {
    case TF_HALF: return HDP_FLOAT16;
    case TF_BFLOAT16: return HDP_BFLOAT16;
    case TF_FLOAT: return HDP_FLOAT32;
    case TF_DOUBLE: return HDP_FLOAT64;
    case TF_INT8: return HDP_INT8;
    case TF_UINT8: return HDP_UINT8;
    case TF_INT32: return HDP_INT32;
    case TF_INT64: return HDP_INT64;
    default: return HDP_BOOL;
  }
}

size_t bytes_of(TF_DataType dtype) {
  switch (dtype) {
    case TF_HALF:
    case TF_BFLOAT16: return 2;
    case TF_FLOAT:
    case TF_INT32: return 4;
    case TF_DOUBLE:
    case TF_INT64: return 8;
    default: return 1;
  }
}

std::vector<int64_t> dims_of(const Tensor& tensor) {
  std::vector<int64_t> dims(static_cast<size_t>(api().NumDims(tensor.get())));
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = api().Dim(tensor.get(), static_cast<int>(i));
  return dims;
}

// The values of a vector of int64.
std::vector<uint64_t> values_of(const Tensor& tensor) {
  std::vector<uint64_t> values(tensor.bytes() / sizeof(int64_t));
  if (!values.empty()) memcpy(values.data(), tensor.data(), tensor.bytes());
  return values;
}

// What can't be asked of the core.
struct Invalid : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Start = void (*)(const Attributes&, std::unique_ptr<Pending>&);

// What the kernels share: an operation in flight with its inputs, which `start` starts. Nothing is thrown into
// TensorFlow's C code, and `done` is called once, now or later.
template <Start start>
void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) noexcept {
  auto pending = std::make_unique<Pending>();
  pending->context = context;
  pending->done = *reinterpret_cast<std::function<void()>*>(done);
  try {
    for (int i = 0, n = api().NumInputs(context); i < n; ++i) {
      Status status;
      TF_Tensor* tensor = nullptr;
      api().GetInput(context, i, &tensor, status);
      if (!status.ok()) return fail(*pending, HDP_SYSTEM, status.text());
      pending->inputs.emplace_back(tensor);
    }
    start(*static_cast<const Attributes*>(kernel), pending);
  } catch (const Invalid& invalid) {
    if (pending) fail(*pending, HDP_INVALID, invalid.what());
  } catch (const std::exception& exception) {  // there is no memory
    if (pending) fail(*pending, HDP_SYSTEM, exception.what());
  }
}

uint32_t wire_of(const Attributes& attributes, size_t bytes) {
  if (attributes.wire >= 0) return static_cast<uint32_t>(attributes.wire);
  return bytes >= kLeastBytes ? static_cast<uint32_t>(-attributes.wire) : uint32_t{HDP_WIRE_SAME};
}

// What ranks compare of several tensors: their shapes, one after the other, and a hash in the last place.
std::vector<uint64_t> shapes_of(const std::vector<Result>& results) {
  std::vector<uint64_t> numbers;
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  const auto add = [&hash](uint64_t number) { hash = (hash ^ number) * 1099511628211u; };
  for (const Result& result : results) {
    add(result.dims.size());
    for (const int64_t n : result.dims) {
      add(static_cast<uint64_t>(n));
      numbers.push_back(static_cast<uint64_t>(n));
    }
  }
  if (numbers.size() > kMostDims - 1) numbers.resize(kMostDims - 1);
  numbers.push_back(hash >> 32);
  return numbers;
}

// Throws Invalid for less than 0, and for more than there can be.
size_t bytes_of(const std::vector<uint64_t>& dims, size_t width) {
  size_t bytes = width;
  for (const uint64_t n : dims) {
    if (n > std::numeric_limits<int64_t>::max()) throw Invalid("a result with a negative dimension");
    if (n && bytes > std::numeric_limits<int64_t>::max() / n) throw Invalid("a result of more than 2^63 bytes");
    bytes *= n;
  }
  return bytes;
}

// A list of how many elements go to, or come from, each rank; empty: there is none.
void check_counts(const std::vector<uint64_t>& counts, uint64_t elements, const char* what) {
  if (counts.empty()) return;
  const uint64_t ranks = Engine::instance().ranks();
  if (ranks && counts.size() != ranks) {
    throw Invalid(std::to_string(counts.size()) + " counts for " + std::to_string(ranks) + " ranks");
  }
  uint64_t sum = 0;
  for (const uint64_t n : counts) {
    if (n > std::numeric_limits<int64_t>::max()) throw Invalid("a number below 0 among the rows for each rank");
    sum += n;
  }
  if (sum != elements) {
    throw Invalid("the rows " + std::string(what) + " all ranks have " + std::to_string(sum) +
                  " elements, the tensor has " + std::to_string(elements));
  }
}

// With a sequence number (the first input) a tag is used once; without, the core counts the tag's operations.
std::string tag_of(const Attributes& attributes, const Tensor& sequence, hdp_request& request) {
  int64_t number = -1;
  if (sequence.bytes() == sizeof number) memcpy(&number, sequence.data(), sizeof number);
  request.once = number >= 0;
  return number >= 0 ? attributes.tag + "#" + std::to_string(number) : attributes.tag;
}

// Gradients that travel together: one after the other in one buffer, reduced in place, and handed out as parts of it.
void start_allreduce(const Attributes& attributes, std::unique_ptr<Pending>& pending) {
  hdp_request request{};
  const std::string tag = tag_of(attributes, pending->inputs[0], request);
  const TF_DataType dtype = api().TensorType(pending->inputs[1].get());
  const size_t tensors = pending->inputs.size() - 1, width = bytes_of(dtype);
  size_t bytes = 0;
  for (size_t i = 1; i <= tensors; ++i) {
    const Tensor& tensor = pending->inputs[i];
    pending->results.push_back({dtype, dims_of(tensor), bytes, tensor.bytes()});
    bytes += tensors == 1 ? tensor.bytes() : aligned(tensor.bytes());
  }
  try {
    pending->buffer = Engine::instance().take(bytes);
  } catch (const std::bad_alloc&) {
    return fail(*pending, HDP_SYSTEM, "no memory for " + std::to_string(bytes) + " bytes of gradients");
  }
  if (tensors == 1) {
    request.in = pending->inputs[1].data();
  } else {
    for (size_t i = 0; i < tensors; ++i) {
      const Result& result = pending->results[i];
      std::byte* to = pending->buffer->data() + result.offset;
      if (result.bytes) memcpy(to, pending->inputs[i + 1].data(), result.bytes);
      memset(to + result.bytes, 0, aligned(result.bytes) - result.bytes);
    }
    pending->inputs.clear();
    request.in = pending->buffer->data();
  }
  std::vector<uint64_t> compared;
  if (tensors > 1) {
    compared = shapes_of(pending->results);
  } else if (pending->results[0].dims.size() <= kMostDims) {
    compared.assign(pending->results[0].dims.begin(), pending->results[0].dims.end());
  }
  request.kind = HDP_ALLREDUCE;
  request.dtype = dtype_of(dtype);
  request.op = static_cast<uint32_t>(attributes.op);
  request.wire = wire_of(attributes, bytes);
  request.count = bytes / width;
  request.out = pending->buffer->data();
  request.shape = compared.data();
  request.dims = static_cast<uint32_t>(compared.size());
  request.tag = tag.c_str();
  Engine::instance().submit(request, pending);
}

// Every other kind: a tensor in, a tensor of a given shape out, and how many elements go to and come from each rank.
void start_exchange(const Attributes& attributes, std::unique_ptr<Pending>& pending) {
  hdp_request request{};
  const std::string tag = tag_of(attributes, pending->inputs[0], request);
  const Tensor& input = pending->inputs[1];
  const TF_DataType dtype = api().TensorType(input.get());
  const auto shape = values_of(pending->inputs[2]), send = values_of(pending->inputs[3]),
             receive = values_of(pending->inputs[4]);
  const std::vector<int64_t> dims(shape.begin(), shape.end());
  const size_t width = bytes_of(dtype);
  const size_t bytes = bytes_of(shape, width);
  const uint64_t elements = bytes / width, given = input.bytes() / width;
  check_counts(send, given, "for");
  check_counts(receive, attributes.kind == HDP_REDUCE_SCATTER ? given : elements, "from");
  if (attributes.kind == HDP_BROADCAST && elements != given) throw Invalid("a broadcast into another shape");
  try {
    pending->buffer = Engine::instance().take(bytes);
  } catch (const std::bad_alloc&) {
    return fail(*pending, HDP_SYSTEM, "no memory for a result of " + std::to_string(bytes) + " bytes");
  }
  pending->results.push_back({dtype, dims, 0, bytes});
  // Where ranks have numbers of rows of their own, a row has the same shape on all.
  const auto of_input = dims_of(input);
  const bool by_rows = !of_input.empty() && (!send.empty() || !receive.empty());
  const std::vector<uint64_t> compared(of_input.begin() + by_rows, of_input.end());
  request.kind = static_cast<uint32_t>(attributes.kind);
  request.dtype = dtype_of(dtype);
  request.op = static_cast<uint32_t>(attributes.op);
  request.root = static_cast<uint32_t>(attributes.root);
  request.wire = wire_of(attributes, input.bytes());
  request.count = attributes.kind == HDP_REDUCE_SCATTER ? elements : given;
  request.in = input.data();
  request.out = pending->buffer->data();
  request.send_counts = send.empty() ? nullptr : send.data();
  request.recv_counts = receive.empty() ? nullptr : receive.data();
  if (compared.size() <= kMostDims) {
    request.shape = compared.data();
    request.dims = static_cast<uint32_t>(compared.size());
  }
  request.tag = tag.c_str();
  Engine::instance().submit(request, pending);
}

void delete_kernel(void* kernel) { delete static_cast<Attributes*>(kernel); }

// Result i has the shape of tensor i.
void infer_allreduce(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = api().NewShapeHandle();
  for (int i = 1, n = static_cast<int>(api().ShapeInferenceContextNumInputs(context)); i < n; ++i) {
    api().ShapeInferenceContextGetInput(context, i, shape, status);
    if (api().GetCode(status) == 0) api().ShapeInferenceContextSetOutput(context, i - 1, shape, status);
  }
  api().DeleteShapeHandle(shape);
}

void infer_exchange(TF_ShapeInferenceContext* context, TF_Status* status) {
  api().ShapeInferenceContextSetUnknownShape(context, status);
}

constexpr const char* kTypes = "T: {half, bfloat16, float, double, int8, uint8, int32, int64, bool}";

// An operation: its own attributes, inputs and output beside those that all have, and what runs it.
struct Definition {
  const char* name;
  std::vector<const char*> attributes;
  std::vector<const char*> inputs;
  const char* output;
  InferShapes infer;
  Create create;
  ComputeAsync compute;
};

// TensorFlow describes an argument as "name: type", and a kernel names it alone.
std::string argument_name(const char* described) {
  const std::string_view text(described);
  return std::string(text.substr(0, text.find(':')));
}

bool define(const Definition& operation, std::string& why) {
  // The builder's "stateful" is left alone: calling it makes an operation stateful whatever it is told, and
  // stateful operations of a function run one after the other.
  TF_OpDefinitionBuilder* builder = api().NewOpDefinitionBuilder(operation.name);
  api().OpDefinitionBuilderAddAttr(builder, kTypes);
  api().OpDefinitionBuilderAddAttr(builder, "tag: string");
  for (const char* attribute : operation.attributes) api().OpDefinitionBuilderAddAttr(builder, attribute);
  for (const char* input : operation.inputs) api().OpDefinitionBuilderAddInput(builder, input);
  api().OpDefinitionBuilderAddOutput(builder, operation.output);
  api().OpDefinitionBuilderSetShapeInferenceFunction(builder, operation.infer);
  Status status;
  api().RegisterOpDefinition(builder, status);
  if (!status.ok()) why = status.text();
  return status.ok();
}

// On a GPU every argument is in host memory all the same: the core takes no other, and TensorFlow copies on both sides.
bool implement(const Definition& operation, const char* device, std::string& why) {
  TF_KernelBuilder* builder =
      api().NewAsyncKernelBuilder(operation.name, device, operation.create, operation.compute, delete_kernel);
  if (std::string_view(device) != "CPU") {
    for (const char* input : operation.inputs) {
      api().KernelBuilder_HostMemory(builder, argument_name(input).c_str());
    }
    api().KernelBuilder_HostMemory(builder, argument_name(operation.output).c_str());
  }
  Status status;
  api().RegisterKernelBuilder(operation.name, builder, status);
  if (!status.ok()) why = status.text();
  return status.ok();
}

bool add(const Definition& operation, std::string& why) {
  return define(operation, why) && implement(operation, "CPU", why) && implement(operation, "GPU", why);
}

}  // namespace

bool register_all(std::string& why) {
  const Definition allreduce{
      "HdpAllreduce",
      {"N: int >= 1", "op: int", "wire: int"},
      {"sequence: int64", "tensors: N * T"},
      "results: N * T",
      infer_allreduce,
      [](TF_OpKernelConstruction* construction) { return create_with(construction, {"op", "wire"}); },
      compute<start_allreduce>};
  const Definition exchange{
      "HdpExchange",
      {"kind: int", "op: int", "root: int", "wire: int"},
      {"sequence: int64", "tensor: T", "shape: int64", "send_counts: int64", "recv_counts: int64"},
      "result: T",
      infer_exchange,
      [](TF_OpKernelConstruction* construction) { return create_with(construction, {"kind", "op", "root", "wire"}); },
      compute<start_exchange>};
  return add(allreduce, why) && add(exchange, why);
}

}  // namespace hdp::tf
