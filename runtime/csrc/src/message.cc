#include "message.h"

#include "kernels.h"

namespace hdp {
namespace {

const char* kind_name(hdp_kind k) {
  switch (k) {
    case HDP_ALLREDUCE: return "allreduce";
    case HDP_BROADCAST: return "broadcast";
    case HDP_ALLGATHER: return "allgather";
    case HDP_BARRIER: return "barrier";
  }
  return "?";
}

const char* dtype_name(hdp_dtype d) {
  switch (d) {
    case HDP_FLOAT16: return "float16";
    case HDP_BFLOAT16: return "bfloat16";
    case HDP_FLOAT32: return "float32";
    case HDP_FLOAT64: return "float64";
    case HDP_INT8: return "int8";
    case HDP_UINT8: return "uint8";
    case HDP_INT32: return "int32";
    case HDP_INT64: return "int64";
    case HDP_BOOL: return "bool";
  }
  return "?";
}

const char* op_name(hdp_op o) {
  switch (o) {
    case HDP_SUM: return "sum";
    case HDP_AVG: return "avg";
    case HDP_MIN: return "min";
    case HDP_MAX: return "max";
    case HDP_PRODUCT: return "product";
  }
  return "?";
}

[[noreturn]] void malformed() { throw Error(HDP_SYSTEM, "a malformed message arrived"); }

}  // namespace

std::string Operation::name() const {
  std::string text = kind_name(kind);
  if (!tag.empty()) text += " '" + tag + "'";
  return text + " #" + std::to_string(key.counter);
}

std::string Operation::call() const {
  if (kind == HDP_BARRIER) return "barrier()";
  std::string text = std::string(kind_name(kind)) + "(" + dtype_name(dtype) + "[" + std::to_string(count) + "]";
  if (kind == HDP_ALLREDUCE) text += std::string(", ") + op_name(op);
  if (kind == HDP_BROADCAST) text += ", root " + std::to_string(root);
  return text + ")";
}

const char* Reader::need(size_t n) {
  if (static_cast<size_t>(end_ - at_) < n) malformed();
  const char* p = at_;
  at_ += n;
  return p;
}

std::string Reader::text() {
  const uint32_t n = u32();
  return std::string(need(n), n);
}

std::vector<uint32_t> Reader::list() {
  const uint32_t n = u32();
  const char* p = need(size_t{n} * sizeof(uint32_t));
  std::vector<uint32_t> v(n);
  if (n != 0) std::memcpy(v.data(), p, size_t{n} * sizeof(uint32_t));
  return v;
}

Key Reader::key() {
  Key k;
  k.group = u64();
  k.tag_hash = u64();
  k.counter = u64();
  return k;
}

Operation Reader::operation() {
  Operation o;
  o.key = key();
  const uint32_t kind = u32(), dtype = u32(), op = u32();
  if (kind > HDP_BARRIER || dtype > HDP_BOOL || op > HDP_PRODUCT) malformed();
  o.kind = static_cast<hdp_kind>(kind);
  o.dtype = static_cast<hdp_dtype>(dtype);
  o.op = static_cast<hdp_op>(op);
  o.root = u32();
  o.count = u64();
  o.tag = text();
  if (o.tag.size() > kMaxTag) malformed();
  return o;
}

}  // namespace hdp
