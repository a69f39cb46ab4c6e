// What the self-checking programs share.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace hdp::units {

using Clock = std::chrono::steady_clock;
using Rng = std::mt19937_64;

#define CHECK(condition, ...)                                                                                 \
  do {                                                                                                        \
    if (!(condition))                                                                                         \
      fail(std::string(__FILE__ ":") + std::to_string(__LINE__) + ": " #condition, std::string(__VA_ARGS__)); \
  } while (false)

[[noreturn]] inline void fail(const std::string& what, const std::string& more) {
  std::fprintf(stderr, "FAILED: %s %s\n", what.c_str(), more.c_str());
  std::abort();
}

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline std::vector<uint8_t> random_bytes(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<uint8_t> bytes(n);
  for (auto& b : bytes) b = static_cast<uint8_t>(rng());
  return bytes;
}

// tls_units.cc. `total`: bytes that the large exchange moves in each direction.
void test_tls(const std::string& libssl, uint64_t total);

}  // namespace hdp::units
