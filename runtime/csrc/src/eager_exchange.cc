#include "eager_exchange.h"

#include <algorithm>
#include <cstring>

#include "cut.h"
#include "kernels.h"

namespace hdp {
namespace {

// Bytes that a host sends at most in one hop: above, two hops send less. Measured in the data path's trial.
constexpr uint64_t kOneHopBytes = 48 << 10;
// Operations of which a host may be ahead of this one; far above what programs do.
constexpr size_t kMaxEarly = 4096;

}  // namespace

void RecentKeys::add(const Key& key) {
  if (!known_.insert(key).second) return;
  order_.push_back(key);
  if (order_.size() <= kKept) return;
  known_.erase(order_.front());
  order_.pop_front();
}

EagerExchange::EagerExchange(const Topology& topology, Arena& arena, std::vector<Connection>& peers,
                             const Groups& groups)
    : topology_(topology), arena_(arena), peers_(peers), groups_(groups) {}

void EagerExchange::look() {
  const uint64_t made = arena_.signal().host_sums.load();
  if (made == seen_) return;
  seen_ = made;
  for (uint32_t local = 0; local < topology_.local_size(); ++local)
    for (uint32_t i = 0; i < kEagerCells; ++i) {
      EagerCell& cell = arena_.cell(local, i);
      // In this order: the stage may be that of an operation before, and the cell be published anew meanwhile.
      const uint64_t generation = cell.generation.load();
      if (generation % 2 == 0 || cell.stage.load(std::memory_order_acquire) != Stage::kHostSum) continue;
      const Key key = key_of(cell);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (cell.generation.load() == generation) take(local, key, cell);
    }
}

void EagerExchange::take(uint32_t local, const Key& key, EagerCell& cell) {
  if (granted_.contains(key) || poisoned_.contains(key.group)) return;
  auto group = groups_.find(key.group);
  if (group == groups_.end()) {
    seen_ = 0;  // its declaration is still in the rank's socket; then we look again
    return;
  }
  if (group->second->local.empty() || group->second->local.front() != local || cell.dtype > HDP_BOOL ||
      cell.travel > HDP_BOOL || cell.count > kEagerBytes / element_bytes(cell.dtype))
    throw Error(HDP_SYSTEM, "a rank's cell makes no sense");
  cell.stage.store(Stage::kExchanging, std::memory_order_relaxed);
  Small& small = small_[key];
  small.cell = &cell;
  small.group = group->second;
  const bool two = two_hops(small);
  const uint32_t me = small.group->host_index(topology_.host), hosts = static_cast<uint32_t>(small.group->hosts.size());
  for (uint32_t step = 1; step < hosts; ++step) {
    const uint32_t place = (me + step) % hosts;
    send(key, small, small.group->hosts[place], 1, two ? share(small, place) : Region{0, bytes(small)});
  }
  advance(key, small);
}

void EagerExchange::arrived(uint32_t host, Reader& body) {
  const Key key = body.key();
  Part part;
  part.call.fingerprint = body.u64();
  part.call.shape = body.u64();
  const uint32_t hop = body.u32();
  part.bytes = body.text();
  if (granted_.contains(key) || poisoned_.contains(key.group)) return;
  Small& small = small_[key];
  if (small.cell == nullptr && early(host) >= kMaxEarly)
    throw Error(HDP_SYSTEM, "too many small operations arrived before anybody here called them");
  const bool known = hop == 1 || (hop == 2 && small.parts.contains(host));
  if (!known || complete_.contains(key) || part.bytes.size() > kEagerBytes ||
      !(hop == 1 ? small.parts : small.shares).emplace(host, std::move(part)).second)
    throw Error(HDP_SYSTEM, "unexpected data: of a small operation");
  if (small.cell != nullptr) advance(key, small);
}

size_t EagerExchange::early(uint32_t host) const {
  return static_cast<size_t>(std::count_if(small_.begin(), small_.end(), [&](const auto& item) {
    return item.second.cell == nullptr && item.second.parts.contains(host);
  }));
}

// Take every step that is possible now. The operation may be forgotten then.
void EagerExchange::advance(const Key& key, Small& small) {
  const auto& hosts = small.group->hosts;
  const uint32_t me = small.group->host_index(topology_.host);
  const bool two = two_hops(small);
  const Region own = two ? share(small, me) : Region{0, bytes(small)};
  const auto check = [&](const std::map<uint32_t, Part>& all) {
    for (const auto& [host, part] : all) {
      if (!part.call.agrees(call_of(*small.cell))) return false;  // the ranks will be told, when they announce it
      const Region expected = &all == &small.parts ? own : share(small, small.group->host_index(host));
      if (!small.group->on_host(host) || part.bytes.size() != expected.bytes)
        throw Error(HDP_SYSTEM, "unexpected data: a small operation of the wrong size");
    }
    return all.size() + 1 == hosts.size();
  };
  if (!check(small.parts)) return;
  if (!small.shared) {
    combine(small, own);
    small.shared = true;
    for (size_t step = 1; two && step < hosts.size(); ++step)
      send(key, small, hosts[(me + step) % hosts.size()], 2, own);
  }
  if (two) {
    if (!check(small.shares)) return;
    for (const auto& [host, part] : small.shares)
      std::memcpy(arena_.data(*small.cell) + share(small, small.group->host_index(host)).offset, part.bytes.data(),
                  part.bytes.size());
  }
  small.cell->stage.store(Stage::kResult, std::memory_order_release);
  for (uint32_t local : small.group->local) ring_waiters(arena_, local);
  complete_.add(key);
  small_.erase(key);
}

// What all hosts have of a region, into our cell.
void EagerExchange::combine(const Small& small, Region region) {
  const EagerCell& cell = *small.cell;
  if (region.bytes == 0) return;
  uint8_t* own = arena_.data(cell) + region.offset;
  std::vector<const void*> parts;
  for (uint32_t host : small.group->hosts)
    parts.push_back(host == topology_.host ? own : static_cast<const void*>(small.parts.at(host).bytes.data()));
  const bool averaged = cell.op == HDP_AVG && averaged_early(cell.travel);
  kernels().combine(cell.travel, averaged ? HDP_SUM : cell.op, own, parts.data(), parts.size(),
                    region.bytes / element_bytes(cell.travel), small.group->size());
}

void EagerExchange::send(const Key& key, const Small& small, uint32_t host, uint32_t hop, Region region) {
  const auto* data = reinterpret_cast<const char*>(arena_.data(*small.cell)) + region.offset;
  Writer body;
  const Call call = call_of(*small.cell);
  body.key(key).u64(call.fingerprint).u64(call.shape).u32(hop);
  peers_[host].send(Type::kEager, body.text({data, region.bytes}).take());
}

EagerExchange::Region EagerExchange::share(const Small& small, uint32_t place) const {
  const Run share = host_share(small.cell->count, small.group->hosts.size(), place);
  const uint64_t element = element_bytes(small.cell->travel);
  return {share.slot * element, share.count * element};
}

bool EagerExchange::two_hops(const Small& small) const {
  const uint64_t others = small.group->hosts.size() - 1;
  return others > 1 && others * bytes(small) > kOneHopBytes;  // two hosts send as much either way
}

uint64_t EagerExchange::bytes(const Small& small) const {
  return small.cell->count * element_bytes(small.cell->travel);
}

void EagerExchange::granted(const Key& key) {
  small_.erase(key);
  granted_.add(key);
}

void EagerExchange::poisoned(uint64_t group) {
  poisoned_.insert(group);
  std::erase_if(small_, [&](const auto& item) { return item.first.group == group; });
}

bool EagerExchange::called(const Key& key, uint32_t rank) {
  if (complete_.contains(key)) return true;
  const uint32_t host = topology_.host_of(rank);
  if (host != topology_.host) {
    auto found = small_.find(key);
    return found != small_.end() && found->second.parts.contains(host);
  }
  if (find_cell(arena_, rank - topology_.first_rank[host], key) != nullptr) return true;
  // Its cell may be in use again; the first member's is not before all have copied out.
  for (uint32_t local = 0; local < topology_.local_size(); ++local)
    if (const EagerCell* cell = find_cell(arena_, local, key); cell != nullptr)
      if (cell->stage.load(std::memory_order_acquire) != Stage::kGathering) return true;
  return false;
}

}  // namespace hdp
