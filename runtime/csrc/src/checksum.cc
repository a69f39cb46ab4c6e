// Two ways: the processor's CRC instructions, and tables of eight bytes a step for processors that have none.
//
// One CRC instruction takes three cycles, but one can start in each cycle. So a block is cut into three stretches whose
// CRCs are computed side by side, and then joined: the CRC of "a then b" is that of a followed by |b| zero bytes, xor
// that of b. To append n zero bytes to a CRC is a linear map of its 32 bits: four lookups, one for each of its bytes.
#include "checksum.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define HDP_CRC_TARGET __attribute__((target("sse4.2,crc32")))
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define HDP_CRC_TARGET
#endif

namespace hdp {
namespace {

static_assert(std::endian::native == std::endian::little, "words are taken from memory as they lie");

constexpr uint32_t kPolynomial = 0x82F63B78;  // bit-reversed, as the whole computation

// `crc` times x, modulo the polynomial: one zero bit is appended.
constexpr uint32_t times_x(uint32_t crc) { return crc >> 1 ^ (crc & 1 ? kPolynomial : 0); }

using Table = std::array<uint32_t, 256>;

// [k][b]: what byte b contributes when k more bytes follow it.
constexpr std::array<Table, 8> make_slices() {
  std::array<Table, 8> slices{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (auto& slice : slices) {
      for (int bit = 0; bit < 8; ++bit) crc = times_x(crc);
      slice[b] = crc;
    }
  }
  return slices;
}
constexpr auto kSlices = make_slices();

template <typename Word>
Word load(const uint8_t* p) {
  Word w;
  std::memcpy(&w, p, sizeof w);
  return w;
}

uint32_t table_step(uint32_t crc, uint8_t byte) { return crc >> 8 ^ kSlices[0][(crc ^ byte) & 0xFF]; }

uint32_t crc_by_tables(uint32_t crc, const void* data, size_t n) {
  const auto* p = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; n >= 8; n -= 8, p += 8) {
    const uint64_t w = load<uint64_t>(p) ^ crc;
    crc = kSlices[7][w & 0xFF] ^ kSlices[6][w >> 8 & 0xFF] ^ kSlices[5][w >> 16 & 0xFF] ^ kSlices[4][w >> 24 & 0xFF] ^
          kSlices[3][w >> 32 & 0xFF] ^ kSlices[2][w >> 40 & 0xFF] ^ kSlices[1][w >> 48 & 0xFF] ^ kSlices[0][w >> 56];
  }
  for (; n > 0; --n) crc = table_step(crc, *p++);
  return ~crc;
}

#ifdef HDP_CRC_TARGET

// The maps of "append `Bytes` zero bytes", by byte of the CRC.
class ZeroBytes {
 public:
  explicit constexpr ZeroBytes(size_t bytes) {
    // x^(8 * bytes), by squaring; a polynomial's term x^k is bit 31 - k.
    uint32_t power = uint32_t{1} << 31, square = uint32_t{1} << 23;
    for (size_t e = bytes; e > 0; e >>= 1, square = multiply(square, square))
      if (e & 1) power = multiply(power, square);
    for (uint32_t k = 0; k < 4; ++k)
      for (uint32_t b = 0; b < 256; ++b) maps_[k][b] = multiply(b << (8 * k), power);
  }
  uint32_t operator()(uint32_t crc) const {
    return maps_[0][crc & 0xFF] ^ maps_[1][crc >> 8 & 0xFF] ^ maps_[2][crc >> 16 & 0xFF] ^ maps_[3][crc >> 24];
  }

 private:
  static constexpr uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1, b = times_x(b))
      if (a & bit) product ^= b;
    return product;
  }
  std::array<Table, 4> maps_{};
};

// Long stretches make joining cheap, short ones leave little for the single stream at the end. Measured on 64 KiB.
constexpr size_t kLong = 4096, kShort = 256;
constexpr ZeroBytes kLongZeros(kLong), kShortZeros(kShort);

#if defined(__x86_64__)
HDP_CRC_TARGET inline uint32_t step(uint32_t crc, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
}
HDP_CRC_TARGET inline uint32_t step(uint32_t crc, uint8_t byte) { return _mm_crc32_u8(crc, byte); }
bool have_instructions() { return __builtin_cpu_supports("sse4.2"); }
#else
inline uint32_t step(uint32_t crc, uint64_t word) { return __crc32cd(crc, word); }
inline uint32_t step(uint32_t crc, uint8_t byte) { return __crc32cb(crc, byte); }
bool have_instructions() { return true; }  // the compiler was told so
#endif

// The (inverted) CRC after three stretches of `stretch` bytes.
HDP_CRC_TARGET inline uint32_t three_stretches(uint32_t crc, const uint8_t* p, size_t stretch, const ZeroBytes& zeros) {
  uint32_t second = 0, third = 0;
  for (const uint8_t* end = p + stretch; p < end; p += 8) {
    crc = step(crc, load<uint64_t>(p));
    second = step(second, load<uint64_t>(p + stretch));
    third = step(third, load<uint64_t>(p + 2 * stretch));
  }
  return zeros(zeros(crc) ^ second) ^ third;
}

HDP_CRC_TARGET uint32_t crc_by_instructions(uint32_t crc, const void* data, size_t n) {
  const auto* p = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; n >= 3 * kLong; n -= 3 * kLong, p += 3 * kLong) crc = three_stretches(crc, p, kLong, kLongZeros);
  for (; n >= 3 * kShort; n -= 3 * kShort, p += 3 * kShort) crc = three_stretches(crc, p, kShort, kShortZeros);
  for (; n >= 8; n -= 8, p += 8) crc = step(crc, load<uint64_t>(p));
  for (; n > 0; --n) crc = step(crc, *p++);
  return ~crc;
}

#endif

constexpr Crc32c kVariants[] = {
#ifdef HDP_CRC_TARGET
    {"instructions", crc_by_instructions},
#endif
    {"tables", crc_by_tables},
};

}  // namespace

std::span<const Crc32c> crc32c_variants() {
  std::span<const Crc32c> all(kVariants);
#ifdef HDP_CRC_TARGET
  static const bool usable = have_instructions();
  if (!usable) all = all.subspan(1);
#endif
  return all;
}

uint32_t crc32c(uint32_t crc, const void* data, size_t n) { return crc32c_variants().front().run(crc, data, n); }

}  // namespace hdp
