// An operation as a rank announces it, and how it is named in messages.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hdp.h"
#include "topology.h"

namespace hdp {

inline constexpr size_t kMaxTag = 63;
inline constexpr size_t kMaxDims = 32;
inline constexpr uint64_t kMaxElements = uint64_t{1} << 48;  // of one array

const char* kind_name(hdp_kind kind);
const char* dtype_name(hdp_dtype dtype);
const char* op_name(hdp_op op);

// Names an operation the same way on every rank.
struct Key {
  uint64_t group = 0;
  uint64_t tag_hash = 0;
  uint64_t counter = 0;
  auto operator<=>(const Key&) const = default;
};

struct Operation {
  Key key;
  hdp_kind kind{};
  hdp_dtype dtype{};
  hdp_dtype travel{};  // what crosses the wire: `dtype`, or a half type for sums of float32
  hdp_op op{};
  uint32_t root = 0;             // send, recv: the sender
  uint32_t peer = 0;             // send, recv: the receiver
  uint64_t count = 0;            // elements, where all ranks have as many
  std::vector<uint64_t> shape;   // as the caller sees it; empty: not compared
  std::vector<uint64_t> counts;  // allgather, reduce_scatter: of each rank; empty: `count`
  // gather, scatter, alltoall, send, recv: elements that this rank gives to and takes from each participant.
  std::vector<uint64_t> sends, receives;
  std::string tag;
  bool device = false;  // the caller's buffers are on a device, which may differ between ranks

  // Throws Error where this can't be an operation of `group`: for what comes from a socket.
  void check(const Group& group) const;
  bool same_call(const Operation& other) const;
  std::string name() const;  // "allreduce #17" or "allreduce 'loss' #2"
  std::string call() const;  // "allreduce(float32[1000], sum)"

  // Of the participant `place`, where counts may differ.
  uint64_t count_of(uint32_t place) const { return counts.empty() ? count : counts[place]; }
  bool is_message() const { return kind == HDP_SEND || kind == HDP_RECV; }
  // Every participant gives other elements to every other one.
  bool exchanges() const { return kind == HDP_GATHER || kind == HDP_SCATTER || kind == HDP_ALLTOALL || is_message(); }
  // Ranks add up, in their order.
  bool reduces() const { return kind == HDP_ALLREDUCE || kind == HDP_REDUCE || kind == HDP_REDUCE_SCATTER; }
  // Who calls it: the group, or the sender and the receiver of a message (in this order).
  std::shared_ptr<const Group> participants(const Topology& topology, std::shared_ptr<const Group> group) const;
};

// What some ranks called; several views of one operation are a mismatch.
struct View {
  Operation operation;
  std::vector<uint32_t> ranks;
};

// "rank 0 (algo-1), rank 2 (algo-2) called ...; rank 1 (algo-1) called ...": by call, each with all of its ranks.
std::string list_calls(const Topology& topology, const std::vector<View>& views);

std::string left_text(const Topology& topology, uint32_t rank, const Operation& operation);

}  // namespace hdp
