#include "request.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "error.h"

namespace hdp {
namespace {

// Ranks of an exchange: a pair of them is numbered in 32 bits.
constexpr uint32_t kMaxExchange = 65535;

[[noreturn]] void invalid(const std::string& what) { throw Error(HDP_INVALID, what); }

bool has_root(uint32_t kind) {
  switch (kind) {
    case HDP_BROADCAST:
    case HDP_REDUCE:
    case HDP_GATHER:
    case HDP_SCATTER:
    case HDP_SEND:
    case HDP_RECV: return true;
    default: return false;
  }
}

Operation as_kind(uint32_t kind) {
  Operation o;
  o.kind = static_cast<hdp_kind>(kind);
  return o;
}

void check_enums(const hdp_request& r) {
  if (r.kind > HDP_RECV) invalid("there is no operation of kind " + std::to_string(r.kind));
  if (r.dtype > HDP_BOOL) invalid("there is no dtype " + std::to_string(r.dtype));
  if (r.op > HDP_PRODUCT) invalid("there is no reduction " + std::to_string(r.op));
  if (r.op == HDP_AVG && r.dtype > HDP_FLOAT64)
    invalid("avg is for floating-point types; sum integers and divide them yourself");
  if (r.wire > HDP_WIRE_BFLOAT16) invalid("there is no wire format " + std::to_string(r.wire));
  if (r.wire != HDP_WIRE_SAME && r.dtype != HDP_FLOAT32) invalid("only float32 can be rounded on the wire");
  if (r.wire != HDP_WIRE_SAME && !as_kind(r.kind).reduces())
    invalid("only sums can be rounded on the wire: of allreduce, reduce and reduce_scatter");
  if (r.tag != nullptr && std::strlen(r.tag) > kMaxTag)
    invalid("a tag is longer than " + std::to_string(kMaxTag) + " bytes");
  if (r.dims > kMaxDims) invalid("a shape of " + std::to_string(r.dims) + " dimensions");
  if (r.count > kMaxElements) invalid("an array of " + std::to_string(r.count) + " elements");
}

// A list of the caller's, or `count` for each rank.
std::vector<uint64_t> counts_or(const uint64_t* list, uint64_t count, uint32_t size) {
  if (list == nullptr) return std::vector<uint64_t>(size, count);
  std::vector<uint64_t> counts(list, list + size);
  for (uint64_t n : counts)
    if (n > kMaxElements) invalid("a count of " + std::to_string(n) + " elements");
  return counts;
}

std::vector<uint64_t> only(uint32_t place, uint64_t count, uint32_t size) {
  std::vector<uint64_t> counts(size, 0);
  counts[place] = count;
  return counts;
}

void fill_ends(Operation& o, const hdp_request& r, const Group& group, uint32_t place) {
  const uint32_t size = group.size();
  if (size > kMaxExchange) invalid("a group of " + std::to_string(size) + " ranks is too large for this operation");
  switch (o.kind) {
    case HDP_GATHER:
      o.sends = only(r.root, r.count, size);
      o.receives = place == r.root ? counts_or(r.recv_counts, r.count, size) : std::vector<uint64_t>(size, 0);
      break;
    case HDP_SCATTER:
      o.sends = place == r.root ? counts_or(r.send_counts, r.count, size) : std::vector<uint64_t>(size, 0);
      o.receives = only(r.root, r.count, size);
      break;
    case HDP_ALLTOALL:
      o.sends = counts_or(r.send_counts, r.count, size);
      o.receives = counts_or(r.recv_counts, r.count, size);
      break;
    default:  // a message: the sender is participant 0
      o.sends = o.kind == HDP_SEND ? std::vector<uint64_t>{0, r.count} : std::vector<uint64_t>{0, 0};
      o.receives = o.kind == HDP_RECV ? std::vector<uint64_t>{r.count, 0} : std::vector<uint64_t>{0, 0};
  }
}

uint64_t total(const std::vector<uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

}  // namespace

Operation operation_of(const hdp_request& r, const Group& group, uint32_t rank) {
  check_enums(r);
  const uint32_t place = group.place_of(rank);
  if (has_root(r.kind) && r.root >= group.size())
    invalid("rank " + std::to_string(r.root) + " in a group of " + std::to_string(group.size()));
  Operation o;
  o.kind = static_cast<hdp_kind>(r.kind);
  o.dtype = static_cast<hdp_dtype>(r.dtype);
  if (o.reduces()) o.op = static_cast<hdp_op>(r.op);
  if (has_root(r.kind)) o.root = r.root;
  if (o.kind == HDP_BARRIER) o.dtype = HDP_UINT8;
  o.travel = o.dtype;
  if (r.wire != HDP_WIRE_SAME && group.hosts.size() > 1)
    o.travel = r.wire == HDP_WIRE_FLOAT16 ? HDP_FLOAT16 : HDP_BFLOAT16;
  o.count = o.kind == HDP_BARRIER ? 0 : r.count;
  if (o.is_message()) {
    if (r.root == place) invalid("a message of a rank to itself");
    o.root = o.kind == HDP_SEND ? place : r.root;
    o.peer = o.kind == HDP_SEND ? r.root : place;
  }
  if (r.dims != 0 && o.kind != HDP_BARRIER) o.shape.assign(r.shape, r.shape + r.dims);
  if ((o.kind == HDP_ALLGATHER || o.kind == HDP_REDUCE_SCATTER) && r.recv_counts != nullptr) {
    o.counts = counts_or(r.recv_counts, 0, group.size());
    if (o.counts[place] != r.count)
      invalid("the counts give this rank " + std::to_string(o.counts[place]) + " elements, but it has " +
              std::to_string(r.count));
    if (std::all_of(o.counts.begin(), o.counts.end(), [&](uint64_t n) { return n == r.count; })) o.counts.clear();
  }
  if (o.exchanges()) fill_ends(o, r, group, place);
  if (o.kind == HDP_GATHER && place == r.root && o.receives[place] != r.count)
    invalid("the counts give this rank " + std::to_string(o.receives[place]) + " elements, but it has " +
            std::to_string(r.count));
  o.device = r.device != 0;
  o.tag = r.tag ? r.tag : "";
  o.key.group = group.id;
  o.key.tag_hash = r.tag ? hash_bytes(r.tag, o.tag.size(), 2) : 0;
  if (o.is_message()) {  // each pair of ranks counts its own
    const uint32_t ends[] = {o.root, o.peer};
    o.key.tag_hash = hash_bytes(ends, sizeof ends, o.key.tag_hash + 3);
  }
  return o;
}

void check_buffers(const hdp_request& r, const Operation& o, const Group& group, uint32_t rank) {
  const uint32_t place = group.place_of(rank);
  const bool at_root = place == o.root;
  bool reads = o.count > 0, writes = o.count > 0;
  if (o.kind == HDP_BROADCAST) reads = reads && at_root;
  if (o.kind == HDP_REDUCE) writes = writes && at_root;
  if (!o.counts.empty()) {
    const bool any = total(o.counts) > 0;
    reads = o.kind == HDP_ALLGATHER ? reads : any;
    writes = o.kind == HDP_ALLGATHER ? any : writes;
  }
  if (o.exchanges()) {
    reads = total(o.sends) > 0;
    writes = total(o.receives) > 0;
  }
  if ((reads && r.in == nullptr) || (writes && r.out == nullptr)) invalid("a buffer is NULL");
}

}  // namespace hdp
