// CRC-32C (Castagnoli), for the data of messages between hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hdp {

// The CRC of `data` after bytes whose CRC is `crc` (0: there are none): crc32c(crc32c(0, a), b) is that of a and b
// joined. crc32c(0, "123456789", 9) is 0xE3069283.
uint32_t crc32c(uint32_t crc, const void* data, size_t n);

// One way to compute it.
struct Crc32c {
  const char* name;
  uint32_t (*run)(uint32_t crc, const void* data, size_t n);
};

// Those that this processor can run, the fastest first; the first is what crc32c() uses.
std::span<const Crc32c> crc32c_variants();

}  // namespace hdp
