// What the ranks of a self-checking program call, and what they must get: small integers, exact in every dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "hdp.h"

namespace hdp::plan {

using Rng = std::mt19937_64;
inline uint64_t pick(Rng& rng, uint64_t n) { return rng() % n; }

struct Plan {
  uint32_t kind, dtype, wire, op, root, peer;
  uint64_t count;
  bool varied;  // each rank has another number of elements
  size_t group;
  std::string tag;  // empty: none
  bool reduces() const { return kind == HDP_ALLREDUCE || kind == HDP_REDUCE || kind == HDP_REDUCE_SCATTER; }
  bool is_message() const { return kind == HDP_SEND; }
  bool calls(size_t place) const { return !is_message() || place == root || place == peer; }
};

constexpr size_t kSizes[] = {2, 2, 4, 8, 1, 1, 4, 8, 1};  // bytes of an element, by dtype

// Elements of one rank's piece; of the pieces of all; of what `place` gives to each and takes from each.
uint64_t piece(const Plan& p, uint64_t a, uint64_t b = 0);
std::vector<uint64_t> pieces(const Plan& p, size_t size);
std::vector<uint64_t> sends(const Plan& p, size_t size, uint64_t place);
std::vector<uint64_t> receives(const Plan& p, size_t size, uint64_t place);
// Of the whole arrays.
uint64_t in_elements(const Plan& p, size_t size, uint64_t place);
uint64_t out_elements(const Plan& p, size_t size, uint64_t place);

// Operation `op`: the input of `rank`, n elements.
void fill(const Plan& p, uint64_t op, int rank, uint64_t n, void* at);
// The bytes that the rank at `place` of `members` must get.
std::vector<uint8_t> expected(const Plan& p, uint64_t op, const std::vector<int32_t>& members, uint64_t place);

// `largest`: elements of the longest arrays.
Plan random_plan(Rng& rng, const std::vector<std::vector<int32_t>>& groups, uint64_t largest);

}  // namespace hdp::plan
