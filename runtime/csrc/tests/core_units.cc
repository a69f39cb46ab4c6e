// Checks of single parts of the core: the checksum and TLS. Ends with "ok", or at the first check that fails.
//
//   core_units [--libssl PATH] [--mib N]
//
// --mib: how much the large TLS exchange moves in each direction.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "checksum.h"
#include "units.h"

namespace hdp::units {
namespace {

// ---- checksum ------------------------------------------------------------------------------------------------------

// By the definition, one bit at a time.
uint32_t slow_crc32c(uint32_t crc, const uint8_t* p, size_t n) {
  crc = ~crc;
  for (size_t i = 0; i < n; ++i) {
    crc ^= p[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  return ~crc;
}

// RFC 3720, B.4, and the usual check value.
void checksum_of_known_texts(const hdp::Crc32c& crc) {
  std::array<uint8_t, 32> zeros{}, ones, up;
  ones.fill(0xFF);
  for (size_t i = 0; i < up.size(); ++i) up[i] = static_cast<uint8_t>(i);
  CHECK(crc.run(0, "123456789", 9) == 0xE3069283u, crc.name);
  CHECK(crc.run(0, zeros.data(), 32) == 0x8A9136AAu, crc.name);
  CHECK(crc.run(0, ones.data(), 32) == 0x62A8AB43u, crc.name);
  CHECK(crc.run(0, up.data(), 32) == 0x46DD794Eu, crc.name);
  CHECK(crc.run(0x12345678, nullptr, 0) == 0x12345678u, crc.name);
}

void checksum_of_random_pieces(const hdp::Crc32c& crc) {
  const auto bytes = random_bytes(50000, 1);
  Rng rng(2);
  for (int i = 0; i < 400; ++i) {
    const size_t begin = rng() % 64, n = i < 100 ? static_cast<size_t>(i) : rng() % (bytes.size() - begin);
    const uint8_t* p = bytes.data() + begin;
    const uint32_t expected = slow_crc32c(0, p, n);
    CHECK(crc.run(0, p, n) == expected, crc.name);
    const size_t first = n ? rng() % (n + 1) : 0, second = rng() % (n - first + 1);
    const uint32_t one = crc.run(0, p, first), two = crc.run(one, p + first, second);
    CHECK(crc.run(two, p + first + second, n - first - second) == expected, crc.name);
  }
}

void checksum_speed(const hdp::Crc32c& crc, size_t block) {
  const auto bytes = random_bytes(block, 3);
  uint32_t value = 0;
  for (int i = 0; i < 8; ++i) value = crc.run(value, bytes.data(), block);
  std::vector<double> rates;
  for (int round = 0; round < 7; ++round) {
    const size_t times = (size_t{32} << 20) / block;
    const auto start = Clock::now();
    for (size_t i = 0; i < times; ++i) value = crc.run(value, bytes.data(), block);
    rates.push_back(static_cast<double>(times * block) / seconds_since(start) / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  std::printf("crc32c %-12s %4zu KiB: %.1f GB/s (median of 7, %.1f to %.1f; %08x)\n", crc.name, block / 1024, rates[3],
              rates.front(), rates.back(), value);
}

void test_checksum() {
  for (const auto& crc : hdp::crc32c_variants()) {
    checksum_of_known_texts(crc);
    checksum_of_random_pieces(crc);
    for (size_t kib : {64, 512}) checksum_speed(crc, kib * 1024);
  }
  CHECK(hdp::crc32c(0, "123456789", 9) == 0xE3069283u);
}

}  // namespace
}  // namespace hdp::units

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::string libssl = "libssl.so.3";
  uint64_t mib = 256;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--libssl")
      libssl = argv[i + 1];
    else if (option == "--mib")
      mib = std::strtoull(argv[i + 1], nullptr, 10);
    else
      hdp::units::fail("unknown option", option);
  }
  hdp::units::test_checksum();
  hdp::units::test_tls(libssl, mib << 20);
  std::printf("ok\n");
}
