#include "operation.h"

#include <algorithm>

#include "error.h"

namespace hdp {
namespace {

std::string listed(const std::vector<uint64_t>& values) {
  constexpr size_t kNamed = 8;
  std::string text;
  for (size_t i = 0; i < values.size() && i < kNamed; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return values.size() > kNamed ? text + ", ..." : text;
}

hdp_kind as_called_by_sender(hdp_kind k) { return k == HDP_RECV ? HDP_SEND : k; }

}  // namespace

const char* kind_name(hdp_kind k) {
  switch (k) {
    case HDP_ALLREDUCE: return "allreduce";
    case HDP_BROADCAST: return "broadcast";
    case HDP_ALLGATHER: return "allgather";
    case HDP_BARRIER: return "barrier";
    case HDP_REDUCE: return "reduce";
    case HDP_REDUCE_SCATTER: return "reduce_scatter";
    case HDP_GATHER: return "gather";
    case HDP_SCATTER: return "scatter";
    case HDP_ALLTOALL: return "alltoall";
    case HDP_SEND: return "send";
    case HDP_RECV: return "recv";
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

void Operation::check(const Group& group) const {
  const size_t size = group.size(), ends = !exchanges() ? 0 : is_message() ? 2 : size;
  bool valid = root < size && peer < size && (!is_message() || root != peer);
  valid = valid && (counts.empty() || counts.size() == size) && sends.size() == ends && receives.size() == ends;
  uint64_t total = 0;
  for (const auto* list : {&counts, &sends, &receives})
    for (uint64_t n : *list) valid = valid && n <= kMaxElements && (total += n) <= 4 * kMaxElements;
  valid = valid && (op != HDP_AVG || dtype <= HDP_FLOAT64);
  valid = valid && (travel == dtype || (reduces() && dtype == HDP_FLOAT32 && travel <= HDP_BFLOAT16));
  if (!valid || count > kMaxElements) throw Error(HDP_SYSTEM, "a malformed operation arrived");
}

bool Operation::same_call(const Operation& o) const {
  // What each rank of a gather, scatter or alltoall has is its own; the sequencer compares the two ends of each piece.
  const bool own_counts = exchanges() && !is_message();
  return as_called_by_sender(kind) == as_called_by_sender(o.kind) && dtype == o.dtype && travel == o.travel &&
         op == o.op && root == o.root && peer == o.peer && counts == o.counts &&
         (own_counts || !counts.empty() || count == o.count) && (shape.empty() || o.shape.empty() || shape == o.shape);
}

std::string Operation::name() const {
  std::string text = kind_name(kind);
  if (!tag.empty()) text += " '" + tag + "'";
  return text + " #" + std::to_string(key.counter);
}

std::string Operation::call() const {
  if (kind == HDP_BARRIER) return "barrier()";
  std::string text = std::string(kind_name(kind)) + "(" + dtype_name(dtype);
  text += '[';
  text += shape.empty() ? std::to_string(count) : listed(shape);
  text += ']';
  if (reduces()) text += std::string(", ") + op_name(op);
  if (travel != dtype) text += std::string(", ") + dtype_name(travel) + " on the wire";
  if (kind == HDP_BROADCAST || kind == HDP_REDUCE || kind == HDP_GATHER || kind == HDP_SCATTER)
    text += ", root " + std::to_string(root);
  if (kind == HDP_SEND) text += ", to " + std::to_string(peer);
  if (kind == HDP_RECV) text += ", from " + std::to_string(root);
  if (!counts.empty()) text += ", counts " + listed(counts);
  if (kind == HDP_ALLTOALL) text += ", sends " + listed(sends) + ", receives " + listed(receives);
  return text + ")";
}

std::shared_ptr<const Group> Operation::participants(const Topology& topology,
                                                     std::shared_ptr<const Group> group) const {
  if (!is_message()) return group;
  if (root >= group->size() || peer >= group->size()) throw Error(HDP_SYSTEM, "a message of a rank outside its group");
  return std::make_shared<const Group>(Group::of(topology, group->id, {group->members[root], group->members[peer]}));
}

std::string list_calls(const Topology& topology, const std::vector<View>& views) {
  std::vector<std::pair<std::string, std::vector<uint32_t>>> by_call;
  for (const View& view : views) {
    const std::string call = view.operation.call();
    auto found = std::find_if(by_call.begin(), by_call.end(), [&](const auto& item) { return item.first == call; });
    if (found == by_call.end()) found = by_call.insert(by_call.end(), {call, {}});
    found->second.insert(found->second.end(), view.ranks.begin(), view.ranks.end());
  }
  std::string text;
  for (auto& [call, ranks] : by_call) {
    std::sort(ranks.begin(), ranks.end());
    text += (text.empty() ? "" : "; ") + topology.rank_names(ranks) + " called " + call;
  }
  return text;
}

std::string left_text(const Topology& topology, uint32_t rank, const Operation& operation) {
  return operation.name() + ", " + operation.call() + ": " + topology.rank_name(rank) +
         " has left and can't take part any more";
}

}  // namespace hdp
