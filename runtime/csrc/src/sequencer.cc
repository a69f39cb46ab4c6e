#include "sequencer.h"

#include <algorithm>

#include "kernels.h"

namespace hdp {

Sequencer::Sequencer(const Topology& topology, uint64_t slot_bytes, Decisions& out)
    : topology_(topology), slot_bytes_(slot_bytes), out_(out) {}

void Sequencer::declare(const Group& group) { groups_.emplace(group.id, group); }

void Sequencer::ready(uint32_t host, const Operation& operation) {
  if (poisoned_.contains(operation.key.group)) return;
  auto found = groups_.find(operation.key.group);
  if (found == groups_.end()) throw Error(HDP_SYSTEM, "an operation of an undeclared group arrived");
  const Group& group = found->second;
  Entry& entry = waiting_.try_emplace(operation.key, Entry{operation, {}}).first->second;
  entry.by_host[host] = operation;
  if (!entry.first.same_call(operation)) {
    complain(group.id, HDP_MISMATCH, disagreement(group, entry));
    return;
  }
  if (entry.by_host.size() < group.hosts.size()) {
    check_left(operation.key, entry);
    return;
  }
  const uint64_t chunk = chunk_count(operation, group, slot_bytes_);
  const Key key = operation.key;
  waiting_.erase(key);
  const uint64_t seq = next_seq_++;
  for (uint32_t h : group.hosts) out_.grant(h, key, seq, chunk);
}

void Sequencer::complain(uint64_t group, hdp_status status, const std::string& text) {
  if (!groups_.contains(group) || !poisoned_.insert(group).second) return;
  std::erase_if(waiting_, [&](const auto& item) { return item.first.group == group; });
  for (uint32_t host : groups_.at(group).hosts) out_.verdict(host, group, status, text);
}

void Sequencer::left(uint32_t rank) {
  left_.insert(rank);
  std::vector<Key> keys;
  for (const auto& [key, entry] : waiting_) keys.push_back(key);
  for (const Key& key : keys)
    if (auto it = waiting_.find(key); it != waiting_.end()) check_left(key, it->second);
}

// An operation that waits for a host whose member has left can't complete.
bool Sequencer::check_left(const Key& key, const Entry& entry) {
  const Group& group = groups_.at(key.group);
  for (uint32_t rank : left_) {
    if (!group.has(rank) || entry.by_host.contains(topology_.host_of(rank))) continue;
    complain(group.id, HDP_PEER_LOST, left_text(topology_, rank, entry.first));
    return true;
  }
  return false;
}

std::string Sequencer::disagreement(const Group& group, const Entry& entry) const {
  std::string text = "the ranks disagree on operation #" + std::to_string(entry.first.key.counter) + " of their group:";
  const char* separator = " ";
  for (const auto& [host, operation] : entry.by_host) {
    std::vector<uint32_t> ranks;
    for (uint32_t rank : group.members)
      if (topology_.host_of(rank) == host) ranks.push_back(rank);
    std::sort(ranks.begin(), ranks.end());
    text += separator + topology_.rank_names(ranks) + " called " + operation.call();
    separator = "; ";
  }
  return text;
}

std::string left_text(const Topology& topology, uint32_t rank, const Operation& operation) {
  return operation.name() + ", " + operation.call() + ": " + topology.rank_name(rank) +
         " has left and can't take part any more";
}

uint64_t chunk_count(const Operation& operation, const Group& group, uint64_t slot_bytes) {
  if (operation.count == 0 || operation.kind == HDP_BARRIER) return 1;
  const uint64_t element =
      operation.kind == HDP_ALLREDUCE ? accumulator_bytes(operation.dtype) : element_bytes(operation.dtype);
  if (operation.kind == HDP_ALLGATHER)
    return std::max<uint64_t>(1, std::min(operation.count, slot_bytes / (element * group.size())));
  // An eighth of the vector, so that the stages overlap. Measured in the data path's trial: one host is fastest at
  // 128 KiB (2 ranks) to 256 KiB (4 ranks); between hosts 128 KiB wins at 1 MiB, and 256 to 512 KiB above.
  const bool one_host = group.hosts.size() == 1;
  const uint64_t least = one_host ? 64 << 10 : 128 << 10;
  const uint64_t most =
      std::min<uint64_t>(slot_bytes, one_host ? (group.size() <= 2 ? 128 << 10 : 256 << 10) : slot_bytes);
  const uint64_t bytes = std::clamp<uint64_t>(operation.count * element / 8, std::min(least, most), most);
  return std::min(operation.count, std::max<uint64_t>(1, bytes / element / 64 * 64));
}

}  // namespace hdp
