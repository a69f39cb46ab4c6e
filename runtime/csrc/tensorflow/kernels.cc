// The operations: their attributes and inputs, turned into requests.
#include "kernels.h"

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>

#include "engine.h"

namespace hdp::tf {
namespace {

constexpr size_t kMostDims = 32;  // of hdp_request.shape

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

void* create_with(TF_OpKernelConstruction* construction, std::initializer_list<const char*> numbers) {
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

// What the kernels share: an operation in flight with its inputs, or nothing if TensorFlow won't give them.
std::unique_ptr<Pending> begin(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  auto pending = std::make_unique<Pending>();
  pending->context = context;
  pending->done = *reinterpret_cast<std::function<void()>*>(done);
  for (int i = 0, n = api().NumInputs(context); i < n; ++i) {
    Status status;
    TF_Tensor* tensor = nullptr;
    api().GetInput(context, i, &tensor, status);
    if (!status.ok()) {
      fail(*pending, HDP_SYSTEM, status.text());
      return nullptr;
    }
    pending->inputs.emplace_back(tensor);
  }
  return pending;
}

// With a sequence number (the first input) a tag is used once; without, the core counts the tag's operations.
std::string tag_of(const Attributes& attributes, const Tensor& sequence, hdp_request& request) {
  int64_t number = -1;
  if (sequence.bytes() == sizeof number) memcpy(&number, sequence.data(), sizeof number);
  request.once = number >= 0;
  return number >= 0 ? attributes.tag + "#" + std::to_string(number) : attributes.tag;
}

// Gradients that travel together: one after the other in one buffer, reduced in place, and handed out as parts of it.
void compute_allreduce(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const auto& attributes = *static_cast<const Attributes*>(kernel);
  auto pending = begin(context, done);
  if (!pending) return;
  hdp_request request{};
  const std::string tag = tag_of(attributes, pending->inputs[0], request);
  const TF_DataType dtype = api().TensorType(pending->inputs[1].get());
  const size_t tensors = pending->inputs.size() - 1, width = bytes_of(dtype);
  size_t bytes = 0;
  std::vector<uint64_t> counts;
  for (size_t i = 1; i <= tensors; ++i) {
    const Tensor& tensor = pending->inputs[i];
    pending->results.push_back({dtype, dims_of(tensor), bytes, tensor.bytes()});
    counts.push_back(tensor.bytes() / width);
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
  if (counts.size() > kMostDims) counts = {bytes / width};
  if (tensors == 1 && pending->results[0].dims.size() <= kMostDims) {
    counts.assign(pending->results[0].dims.begin(), pending->results[0].dims.end());
  }
  request.kind = HDP_ALLREDUCE;
  request.dtype = dtype_of(dtype);
  request.op = static_cast<uint32_t>(attributes.op);
  request.wire = static_cast<uint32_t>(attributes.wire);
  request.count = bytes / width;
  request.out = pending->buffer->data();
  request.shape = counts.data();
  request.dims = static_cast<uint32_t>(counts.size());
  request.tag = tag.c_str();
  Engine::instance().submit(request, std::move(pending));
}

// Every other kind: a tensor in, a tensor of a given shape out, and how many elements go to and come from each rank.
void compute_exchange(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const auto& attributes = *static_cast<const Attributes*>(kernel);
  auto pending = begin(context, done);
  if (!pending) return;
  hdp_request request{};
  const std::string tag = tag_of(attributes, pending->inputs[0], request);
  const Tensor& input = pending->inputs[1];
  const TF_DataType dtype = api().TensorType(input.get());
  const auto shape = values_of(pending->inputs[2]), send = values_of(pending->inputs[3]),
             receive = values_of(pending->inputs[4]);
  const std::vector<int64_t> dims(shape.begin(), shape.end());
  const size_t width = bytes_of(dtype);
  const uint64_t elements = std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
  try {
    pending->buffer = Engine::instance().take(elements * width);
  } catch (const std::bad_alloc&) {
    return fail(*pending, HDP_SYSTEM, "no memory for a result of " + std::to_string(elements * width) + " bytes");
  }
  pending->results.push_back({dtype, dims, 0, elements * width});
  const auto of_input = dims_of(input);
  const std::vector<uint64_t> compared(of_input.begin(), of_input.end());
  request.kind = static_cast<uint32_t>(attributes.kind);
  request.dtype = dtype_of(dtype);
  request.op = static_cast<uint32_t>(attributes.op);
  request.root = static_cast<uint32_t>(attributes.root);
  request.wire = static_cast<uint32_t>(attributes.wire);
  request.count = attributes.kind == HDP_REDUCE_SCATTER ? elements : input.bytes() / width;
  request.in = input.data();
  request.out = pending->buffer->data();
  request.send_counts = send.empty() ? nullptr : send.data();
  request.recv_counts = receive.empty() ? nullptr : receive.data();
  if (send.empty() && receive.empty() && compared.size() <= kMostDims) {
    request.shape = compared.data();
    request.dims = static_cast<uint32_t>(compared.size());
  }
  request.tag = tag.c_str();
  Engine::instance().submit(request, std::move(pending));
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

bool define(const char* name, std::initializer_list<const char*> attributes, std::initializer_list<const char*> inputs,
            const char* output, InferShapes infer, std::string& why) {
  // The builder's "stateful" is left alone: calling it makes an operation stateful whatever it is told, and
  // stateful operations of a function run one after the other.
  TF_OpDefinitionBuilder* builder = api().NewOpDefinitionBuilder(name);
  api().OpDefinitionBuilderAddAttr(builder, kTypes);
  api().OpDefinitionBuilderAddAttr(builder, "tag: string");
  for (const char* attribute : attributes) api().OpDefinitionBuilderAddAttr(builder, attribute);
  api().OpDefinitionBuilderAddInput(builder, "sequence: int64");
  for (const char* input : inputs) api().OpDefinitionBuilderAddInput(builder, input);
  api().OpDefinitionBuilderAddOutput(builder, output);
  api().OpDefinitionBuilderSetShapeInferenceFunction(builder, infer);
  Status status;
  api().RegisterOpDefinition(builder, status);
  if (!status.ok()) why = status.text();
  return status.ok();
}

bool implement(const char* name, Create create, ComputeAsync compute, std::string& why) {
  Status status;
  TF_KernelBuilder* builder = api().NewAsyncKernelBuilder(name, "CPU", create, compute, delete_kernel);
  api().RegisterKernelBuilder(name, builder, status);
  if (!status.ok()) why = status.text();
  return status.ok();
}

}  // namespace

bool register_all(std::string& why) {
  return define("HdpAllreduce", {"N: int >= 1", "op: int", "wire: int"}, {"tensors: N * T"}, "results: N * T",
                infer_allreduce, why) &&
         define("HdpExchange", {"kind: int", "op: int", "root: int", "wire: int"},
                {"tensor: T", "shape: int64", "send_counts: int64", "recv_counts: int64"}, "result: T", infer_exchange,
                why) &&
         implement(
             "HdpAllreduce",
             [](TF_OpKernelConstruction* construction) { return create_with(construction, {"op", "wire"}); },
             compute_allreduce, why) &&
         implement(
             "HdpExchange",
             [](TF_OpKernelConstruction* construction) {
               return create_with(construction, {"kind", "op", "root", "wire"});
             },
             compute_exchange, why);
}

}  // namespace hdp::tf
