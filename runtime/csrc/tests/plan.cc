#include "plan.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>

namespace hdp::plan {
namespace {

uint64_t given(const Plan& p, uint64_t from, uint64_t to) {
  switch (p.kind) {
    case HDP_GATHER: return to == p.root ? piece(p, from) : 0;
    case HDP_SCATTER: return from == p.root ? piece(p, to) : 0;
    case HDP_ALLTOALL: return piece(p, from, to);
    case HDP_SEND: return from == p.root && to == p.peer ? p.count : 0;
    default: return 0;
  }
}
std::vector<uint64_t> list_of(size_t size, const std::function<uint64_t(uint64_t)>& f) {
  std::vector<uint64_t> v(size);
  for (uint64_t i = 0; i < size; ++i) v[i] = f(i);
  return v;
}
uint64_t sum(const std::vector<uint64_t>& v) { return std::accumulate(v.begin(), v.end(), uint64_t{0}); }

int value(uint64_t op, int rank, uint64_t i, bool product) {
  uint64_t h = (op + 1) * 0x9e3779b97f4a7c15ULL + static_cast<uint64_t>(rank) * 0xbf58476d1ce4e5b9ULL +
               i * 0x94d049bb133111ebULL;
  h ^= h >> 29;
  return product ? 1 + static_cast<int>(h % 2) : static_cast<int>(h % 4);
}

uint16_t half(float f) {  // an integer of at most 11 bits
  _Float16 h = static_cast<_Float16>(f);
  uint16_t bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}

void put(uint32_t dtype, void* at, uint64_t i, double v) {
  auto store = [&](auto x) { std::memcpy(static_cast<uint8_t*>(at) + i * sizeof x, &x, sizeof x); };
  const auto whole = static_cast<int64_t>(v);
  switch (dtype) {
    case HDP_FLOAT16: return store(half(static_cast<float>(v)));
    case HDP_BFLOAT16: {
      const auto f = static_cast<float>(v);
      uint32_t bits;
      std::memcpy(&bits, &f, 4);
      return store(static_cast<uint16_t>(bits >> 16));
    }
    case HDP_FLOAT32: return store(static_cast<float>(v));
    case HDP_FLOAT64: return store(v);
    case HDP_INT8: return store(static_cast<int8_t>(whole));
    case HDP_UINT8: return store(static_cast<uint8_t>(whole));
    case HDP_INT32: return store(static_cast<int32_t>(whole));
    case HDP_INT64: return store(whole);
    case HDP_BOOL: return store(static_cast<uint8_t>(whole != 0));
  }
}

double reduced(const Plan& p, uint64_t op, const std::vector<int32_t>& members, uint64_t i) {
  const bool is_bool = p.dtype == HDP_BOOL, product = p.op == HDP_PRODUCT && !is_bool;
  double total = 0;
  for (size_t m = 0; m < members.size(); ++m) {
    double v = value(op, members[m], i, product);
    if (is_bool) v = v != 0;
    if (m == 0) {
      total = v;
      continue;
    }
    switch (p.op) {
      case HDP_SUM:
      case HDP_AVG: total = is_bool ? std::max(total, v) : total + v; break;
      case HDP_MIN: total = std::min(total, v); break;
      case HDP_MAX: total = std::max(total, v); break;
      case HDP_PRODUCT: total = is_bool ? std::min(total, v) : total * v; break;
    }
  }
  if (p.op != HDP_AVG) return total;
  return p.dtype == HDP_FLOAT32 ? static_cast<float>(total) / static_cast<float>(members.size())
                                : total / static_cast<double>(members.size());
}

}  // namespace

uint64_t piece(const Plan& p, uint64_t a, uint64_t b) {
  return p.varied ? (p.count * 7 + a * 131 + b * 17) % (p.count + 3) : p.count;
}
std::vector<uint64_t> sends(const Plan& p, size_t size, uint64_t place) {
  return list_of(size, [&](uint64_t to) { return given(p, place, to); });
}
std::vector<uint64_t> receives(const Plan& p, size_t size, uint64_t place) {
  return list_of(size, [&](uint64_t from) { return given(p, from, place); });
}
std::vector<uint64_t> pieces(const Plan& p, size_t size) {
  return list_of(size, [&](uint64_t place) { return piece(p, place); });
}
uint64_t in_elements(const Plan& p, size_t size, uint64_t place) {
  switch (p.kind) {
    case HDP_BARRIER: return 0;
    case HDP_ALLGATHER: return piece(p, place);
    case HDP_REDUCE_SCATTER: return sum(pieces(p, size));
    case HDP_ALLREDUCE:
    case HDP_REDUCE:
    case HDP_BROADCAST: return p.count;
    default: return sum(sends(p, size, place));
  }
}
uint64_t out_elements(const Plan& p, size_t size, uint64_t place) {
  switch (p.kind) {
    case HDP_BARRIER: return 0;
    case HDP_ALLGATHER: return sum(pieces(p, size));
    case HDP_REDUCE_SCATTER: return piece(p, place);
    case HDP_REDUCE: return place == p.root ? p.count : 0;
    case HDP_ALLREDUCE:
    case HDP_BROADCAST: return p.count;
    default: return sum(receives(p, size, place));
  }
}

void fill(const Plan& p, uint64_t op, int rank, uint64_t n, void* at) {
  const bool product = p.reduces() && p.op == HDP_PRODUCT && p.dtype != HDP_BOOL;
  for (uint64_t i = 0; i < n; ++i) put(p.dtype, at, i, value(op, rank, i, product));
}

namespace {

std::vector<double> expected_values(const Plan& p, uint64_t op, const std::vector<int32_t>& members, uint64_t place) {
  const size_t size = members.size();
  std::vector<double> all;
  const auto add = [&](int32_t rank, uint64_t first, uint64_t n) {
    for (uint64_t i = first; i < first + n; ++i) all.push_back(value(op, rank, i, false));
  };
  const auto before = [](const std::vector<uint64_t>& v, uint64_t place_of) {
    return std::accumulate(v.begin(), v.begin() + static_cast<long>(place_of), uint64_t{0});
  };
  switch (p.kind) {
    case HDP_BARRIER: break;
    case HDP_BROADCAST: add(members[p.root], 0, p.count); break;
    case HDP_ALLGATHER:
      for (size_t i = 0; i < size; ++i) add(members[i], 0, piece(p, i));
      break;
    case HDP_ALLREDUCE:
    case HDP_REDUCE:
    case HDP_REDUCE_SCATTER: {
      const uint64_t first = p.kind == HDP_REDUCE_SCATTER ? before(pieces(p, size), place) : 0;
      for (uint64_t i = 0; i < out_elements(p, size, place); ++i) all.push_back(reduced(p, op, members, first + i));
      break;
    }
    default:
      for (size_t from = 0; from < size; ++from)
        add(members[from], before(sends(p, size, from), place), given(p, from, place));
  }
  return all;
}

}  // namespace

std::vector<uint8_t> expected(const Plan& p, uint64_t op, const std::vector<int32_t>& members, uint64_t place) {
  const std::vector<double> values = expected_values(p, op, members, place);
  std::vector<uint8_t> bytes(values.size() * kSizes[p.dtype]);
  for (size_t i = 0; i < values.size(); ++i) put(p.dtype, bytes.data(), i, values[i]);
  return bytes;
}

Plan random_plan(Rng& rng, const std::vector<std::vector<int32_t>>& groups, uint64_t largest) {
  Plan p{};
  p.group = pick(rng, groups.size());
  static const uint32_t kinds[] = {HDP_ALLREDUCE, HDP_ALLREDUCE, HDP_ALLREDUCE, HDP_BROADCAST,
                                   HDP_ALLGATHER, HDP_BARRIER,   HDP_REDUCE,    HDP_REDUCE_SCATTER,
                                   HDP_GATHER,    HDP_SCATTER,   HDP_ALLTOALL,  HDP_SEND};
  const size_t size = groups[p.group].size();
  p.kind = kinds[pick(rng, std::size(kinds))];
  if (p.kind == HDP_SEND && size < 2) p.kind = HDP_REDUCE;
  p.dtype = static_cast<uint32_t>(pick(rng, 9));
  p.op = p.reduces() ? static_cast<uint32_t>(pick(rng, 5)) : 0;
  if (p.op == HDP_AVG && p.dtype != HDP_FLOAT32 && p.dtype != HDP_FLOAT64) p.op = HDP_SUM;
  // The numbers are exact in half types too, unless they are averages.
  if (p.reduces() && p.dtype == HDP_FLOAT32 && p.op != HDP_AVG) p.wire = static_cast<uint32_t>(pick(rng, 3));
  p.root = static_cast<uint32_t>(pick(rng, size));
  p.peer = static_cast<uint32_t>((p.root + 1 + pick(rng, std::max<size_t>(1, size - 1))) % size);
  p.varied = p.kind != HDP_ALLREDUCE && p.kind != HDP_REDUCE && p.kind != HDP_BROADCAST && p.kind != HDP_BARRIER &&
             p.kind != HDP_SEND && pick(rng, 2);
  const uint64_t big[] = {1, 20, 700, 5000, 40000, largest};
  p.count = pick(rng, 12) == 0 ? 0 : 1 + pick(rng, big[pick(rng, 6)]);
  if (p.kind == HDP_BARRIER) p.count = 0;
  if (p.kind == HDP_ALLTOALL || p.kind == HDP_ALLGATHER || p.kind == HDP_REDUCE_SCATTER) p.count /= 3;
  if (pick(rng, 2)) p.tag = "t" + std::to_string(pick(rng, 6));
  return p;
}

}  // namespace hdp::plan
