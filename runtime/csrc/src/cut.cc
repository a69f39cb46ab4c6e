#include "cut.h"

#include <algorithm>
#include <numeric>

#include "error.h"
#include "kernels.h"

namespace hdp {
namespace {

constexpr uint64_t kBlockAlign = 64;        // bytes
constexpr uint64_t kShareAlign = 16;        // elements
constexpr uint64_t kLeastChunk = 64 << 10;  // likewise
constexpr uint64_t kLeastDeviceChunk = 256 << 10;

uint64_t ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

uint64_t sum(const std::vector<uint64_t>& v) { return std::accumulate(v.begin(), v.end(), uint64_t{0}); }

uint64_t total_elements(const Operation& o, uint32_t size) {
  if (!cut_by_piece(o)) return o.count;
  return o.counts.empty() ? o.count * size : sum(o.counts);
}

uint64_t bytes_in_slot(const Operation& o) {
  return o.reduces() ? accumulator_bytes(o.travel) : element_bytes(o.dtype);
}

// A sixteenth of the vector, so that the stages overlap. Measured: one host is fastest at 128 KiB (2 ranks) to 256 KiB
// (4 ranks); between hosts 64 to 96 KiB win at 1 MiB (2 x 2 and 4 x 2 at 1 Gbit/s: 1.06 and 1.12 of the bound, against
// 1.09 and 1.18 with 128 KiB), and 256 to 512 KiB from 16 MiB on.
// On a device's memory each chunk costs a copy and an event each way, some microseconds whatever its size, which is
// what the copy of 256 KiB takes at the bandwidth of its bus: chunks are larger.
uint64_t chunk_bytes(uint64_t vector_bytes, const Group& group, uint64_t slot_bytes, bool device) {
  if (device) return std::clamp<uint64_t>(vector_bytes / 16, std::min(kLeastDeviceChunk, slot_bytes), slot_bytes);
  const bool one_host = group.hosts.size() == 1;
  const uint64_t most =
      std::min<uint64_t>(slot_bytes, one_host ? (group.size() <= 2 ? 128 << 10 : 256 << 10) : slot_bytes);
  return std::clamp<uint64_t>(vector_bytes / 16, std::min(kLeastChunk, most), most);
}

uint64_t piece_elements(const Operation& o, uint32_t size, const Cut& cut) {
  if (o.counts.empty()) return size * ceil_div(o.count, cut.chunks);
  uint64_t n = 0;
  for (uint64_t count : o.counts) n += ceil_div(count, cut.chunks);
  return n;
}

template <class Operations>
uint64_t exchange_elements(const Operations& local, const Cut& cut, uint64_t element) {
  uint64_t n = 0;
  for (const Operation& o : local)
    n += block_elements(o.sends, cut, element) + block_elements(o.receives, cut, element);
  return n;
}

[[noreturn]] void too_small(const Operation& o, const Group& group) {
  throw Error(HDP_SYSTEM, o.name() + " over " + std::to_string(group.size()) + " ranks needs a larger arena");
}

Cut cut_exchange(const Operation& o, const Group& group, const std::vector<std::vector<View>>& by_host,
                 uint64_t slot_bytes) {
  const uint64_t element = element_bytes(o.dtype), slot = slot_bytes / element;
  Cut cut;
  for (const std::vector<View>& views : by_host) {
    std::vector<Operation> local;
    uint64_t total = 0, largest = 0;
    for (const View& view : views) {
      local.push_back(view.operation);
      for (const auto* counts : {&view.operation.sends, &view.operation.receives})
        for (uint64_t n : *counts) {
          total += n;
          largest = std::max(largest, n);
        }
    }
    if (total == 0) continue;
    cut.chunks =
        std::max(cut.chunks, ceil_div(total, chunk_bytes(total * element, group, slot_bytes, o.device) / element));
    while (exchange_elements(local, cut, element) > slot) {
      if (cut.chunks > largest) too_small(o, group);
      cut.chunks += cut.chunks / 4 + 1;
    }
  }
  return cut;
}

}  // namespace

bool cut_by_piece(const Operation& o) {
  return o.exchanges() || o.kind == HDP_ALLGATHER || o.kind == HDP_REDUCE_SCATTER;
}

uint64_t part_begin(uint64_t n, uint64_t chunk, const Cut& cut) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(n) * chunk / cut.chunks);
}

Run host_share(uint64_t n, uint64_t hosts, uint64_t place) {
  const uint64_t width = ceil_div(ceil_div(n, hosts), kShareAlign) * kShareAlign;
  const uint64_t begin = std::min(n, place * width);
  return {begin, begin, std::min(n, begin + width) - begin};
}

Run whole_run(const Operation& o, const Cut& cut, uint64_t chunk) {
  const uint64_t first = chunk * cut.elements;
  return {0, first, std::min(cut.elements, o.count - first)};
}

void piece_runs(const Operation& o, uint32_t size, const Cut& cut, uint64_t chunk, std::vector<Run>& runs) {
  runs.resize(size);
  uint64_t slot = 0, array = 0;
  for (uint32_t place = 0; place < size; ++place) {
    const uint64_t n = o.count_of(place);
    const uint64_t begin = part_begin(n, chunk, cut), end = part_begin(n, chunk + 1, cut);
    runs[place] = {slot, array + begin, end - begin};
    slot += end - begin;
    array += n;
  }
}

void block_runs(const std::vector<uint64_t>& counts, uint64_t block, const Cut& cut, uint64_t chunk,
                std::vector<Run>& runs) {
  runs.resize(counts.size());
  uint64_t array = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const uint64_t begin = part_begin(counts[i], chunk, cut), end = part_begin(counts[i], chunk + 1, cut);
    runs[i] = {block, array + begin, end - begin};
    block += end - begin;
    array += counts[i];
  }
}

uint64_t block_elements(const std::vector<uint64_t>& counts, const Cut& cut, uint64_t element) {
  uint64_t n = 0;
  for (uint64_t count : counts) n += ceil_div(count, cut.chunks);
  const uint64_t step = std::max<uint64_t>(1, kBlockAlign / element);
  return ceil_div(n, step) * step;
}

Cut choose_cut(const Operation& o, const Group& group, const std::vector<std::vector<View>>& by_host,
               uint64_t slot_bytes) {
  if (o.exchanges()) return cut_exchange(o, group, by_host, slot_bytes);
  const uint64_t total = total_elements(o, group.size()), element = bytes_in_slot(o);
  if (total == 0 || o.kind == HDP_BARRIER) return {};
  const uint64_t elements = chunk_bytes(total * element, group, slot_bytes, o.device) / element;
  Cut cut;
  if (cut_by_piece(o)) {
    const uint64_t slot = slot_bytes / element;
    if (slot <= group.size()) too_small(o, group);
    cut.chunks = ceil_div(total, std::min(elements, slot - group.size()));  // each piece may round up
  } else {
    cut.elements = std::min(o.count, std::max<uint64_t>(1, elements / 64 * 64));
    cut.chunks = ceil_div(o.count, cut.elements);
  }
  return cut;
}

bool fits(const Operation& o, const Group& group, const std::vector<Operation>& local, const Cut& cut,
          uint64_t slot_bytes) {
  if (cut.chunks == 0) {
    if (!o.exchanges()) return total_elements(o, group.size()) == 0 || o.kind == HDP_BARRIER;
    return std::all_of(local.begin(), local.end(),
                       [](const Operation& l) { return sum(l.sends) + sum(l.receives) == 0; });
  }
  if (cut.chunks > UINT32_MAX || o.kind == HDP_BARRIER) return false;
  const uint64_t slot = slot_bytes / bytes_in_slot(o);
  if (o.exchanges()) return exchange_elements(local, cut, element_bytes(o.dtype)) <= slot;
  if (cut_by_piece(o)) return piece_elements(o, group.size(), cut) <= slot;
  return cut.elements > 0 && cut.elements <= slot && cut.chunks == ceil_div(o.count, cut.elements);
}

}  // namespace hdp
