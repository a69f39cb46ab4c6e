// Definitions of the kernels, compiled once for each instruction set in a namespace of its own (HDP_KERNELS).
#include <cstdint>
#include <cstring>
#include <type_traits>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "kernels.h"

namespace hdp::HDP_KERNELS {
namespace {

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

struct Float16 {
  using Acc = float;
  uint16_t raw;
  static float up(Float16 h) {
    const uint32_t magnitude = h.raw & 0x7fffu;
    const uint32_t sign = static_cast<uint32_t>(h.raw & 0x8000u) << 16;
    // Exponent and mantissa, moved into place and rescaled by 2^112; exact for subnormals too.
    const uint32_t finite = bits<uint32_t>(bits<float>(magnitude << 13) * 0x1p112f);
    const uint32_t special = (magnitude << 13) | 0x7f800000u;
    return bits<float>((magnitude >= 0x7c00u ? special : finite) | sign);
  }
  static Float16 down(float f) {  // to nearest, ties to even
    const uint32_t whole = bits<uint32_t>(f);
    const uint32_t x = whole & 0x7fffffffu;
    const uint32_t sign = (whole >> 16) & 0x8000u;
    const uint32_t normal = (x + 0xc8000fffu + ((x >> 13) & 1u)) >> 13;
    // Adding 0.5 makes the float unit round at float16's subnormal spacing.
    const uint32_t subnormal = bits<uint32_t>(bits<float>(x) + 0.5f) - 0x3f000000u;
    const uint32_t special = x > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t small = x < 0x38800000u ? subnormal : normal;
    return {static_cast<uint16_t>((x >= 0x47800000u ? special : small) | sign)};
  }
};

struct BFloat16 {
  using Acc = float;
  uint16_t raw;
  static float up(BFloat16 h) { return bits<float>(static_cast<uint32_t>(h.raw) << 16); }
  static BFloat16 down(float f) {
    const uint32_t x = bits<uint32_t>(f);
    const uint32_t rounded = (x + 0x7fffu + ((x >> 16) & 1u)) >> 16;
    const uint32_t nan = (x >> 16) | 0x40u;
    return {static_cast<uint16_t>((x & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
  }
};

template <class T>
struct Plain {
  using Acc = T;
  T raw;
  static T up(Plain v) { return v.raw; }
  static Plain down(T v) { return {v}; }
};

struct Bool {
  using Acc = uint8_t;
  uint8_t raw;
  static uint8_t up(Bool v) { return v.raw != 0; }
  static Bool down(uint8_t v) { return {v}; }
};

template <class T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    using U = Wrapping<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) {
    // uint32_t at least: a product of two promoted 16-bit values could overflow int.
    using U = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 4, uint32_t, Wrapping<T>>;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
};
// A NaN on either side wins, as in NumPy and torch.
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return (a > b || a != a) ? a : b;
  }
};

template <class A>
inline A average(A a, A ranks) {
  return a / ranks;
}

template <class E>
void start(void* acc_, const void* in_, size_t n) {
  auto* acc = static_cast<typename E::Acc*>(acc_);
  const auto* in = static_cast<const E*>(in_);
  for (size_t i = 0; i < n; ++i) acc[i] = E::up(in[i]);
}

template <class E, class Op>
void add(void* acc_, const void* in_, size_t n) {
  auto* __restrict acc = static_cast<typename E::Acc*>(acc_);
  const auto* __restrict in = static_cast<const E*>(in_);
  for (size_t i = 0; i < n; ++i) acc[i] = Op::apply(acc[i], E::up(in[i]));
}

// In place from front to back: an element is never wider than its accumulator, so no unread one is overwritten.
// Blocks, because the compiler can't vectorise a loop whose store may alias a later load.
constexpr size_t kBlock = 512;

template <class E, bool Avg>
void finish(void* acc_, size_t n, uint32_t ranks) {
  using A = typename E::Acc;
  if constexpr (!Avg && sizeof(A) == sizeof(E)) return;
  auto* acc = static_cast<unsigned char*>(acc_);
  A wide[kBlock];
  E narrow[kBlock];
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t m = n - at < kBlock ? n - at : kBlock;
    std::memcpy(wide, acc + at * sizeof(A), m * sizeof(A));
    for (size_t i = 0; i < m; ++i) narrow[i] = E::down(Avg ? average<A>(wide[i], static_cast<A>(ranks)) : wide[i]);
    std::memcpy(acc + at * sizeof(E), narrow, m * sizeof(E));
  }
}

void stream(void* out_, const void* in_, size_t n) {
  auto* out = static_cast<unsigned char*>(out_);
  const auto* in = static_cast<const unsigned char*>(in_);
#ifdef __SSE2__
#ifdef __AVX__
  using Vector = __m256i;
  const auto move = [](unsigned char* to, const unsigned char* from) {
    _mm256_stream_si256(reinterpret_cast<Vector*>(to), _mm256_loadu_si256(reinterpret_cast<const Vector*>(from)));
  };
#else
  using Vector = __m128i;
  const auto move = [](unsigned char* to, const unsigned char* from) {
    _mm_stream_si128(reinterpret_cast<Vector*>(to), _mm_loadu_si128(reinterpret_cast<const Vector*>(from)));
  };
#endif
  constexpr size_t kStep = 4 * sizeof(Vector);
  const size_t head = (sizeof(Vector) - reinterpret_cast<uintptr_t>(out) % sizeof(Vector)) % sizeof(Vector);
  if (n >= head + kStep) {
    std::memcpy(out, in, head);
    size_t at = head;
    for (; at + kStep <= n; at += kStep)
      for (size_t i = 0; i < kStep; i += sizeof(Vector)) move(out + at + i, in + at + i);
    _mm_sfence();
    out += at;
    in += at;
    n -= at;
  }
#endif
  std::memcpy(out, in, n);
}

template <class E, class Op, bool Avg>
void add_finish(void* acc_, const void* in_, void* out_, size_t n, uint32_t ranks) {
  using A = typename E::Acc;
  auto* acc = static_cast<unsigned char*>(acc_);
  const auto* in = static_cast<const unsigned char*>(in_);
  auto* out = static_cast<unsigned char*>(out_);
  A wide[kBlock];
  E narrow[kBlock];
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t m = n - at < kBlock ? n - at : kBlock;
    std::memcpy(wide, acc + at * sizeof(A), m * sizeof(A));
    std::memcpy(narrow, in + at * sizeof(E), m * sizeof(E));
    for (size_t i = 0; i < m; ++i) {
      const A sum = Op::apply(wide[i], E::up(narrow[i]));
      narrow[i] = E::down(Avg ? average<A>(sum, static_cast<A>(ranks)) : sum);
    }
    std::memcpy(acc + at * sizeof(E), narrow, m * sizeof(E));
    std::memcpy(out + at * sizeof(E), narrow, m * sizeof(E));
  }
}

template <class E, class Op, bool Avg>
void combine(void* out_, const void* const* parts, size_t num_parts, size_t n, uint32_t ranks) {
  using A = typename E::Acc;
  auto* out = static_cast<unsigned char*>(out_);
  A wide[kBlock];
  E narrow[kBlock];
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t m = n - at < kBlock ? n - at : kBlock;
    for (size_t part = 0; part < num_parts; ++part) {
      std::memcpy(narrow, static_cast<const unsigned char*>(parts[part]) + at * sizeof(E), m * sizeof(E));
      if (part == 0)
        for (size_t i = 0; i < m; ++i) wide[i] = E::up(narrow[i]);
      else
        for (size_t i = 0; i < m; ++i) wide[i] = Op::apply(wide[i], E::up(narrow[i]));
    }
    for (size_t i = 0; i < m; ++i) narrow[i] = E::down(Avg ? average<A>(wide[i], static_cast<A>(ranks)) : wide[i]);
    std::memcpy(out + at * sizeof(E), narrow, m * sizeof(E));
  }
}

// Calls f.template operator()<E>() for the element type of `dtype`.
template <class F>
void by_type(hdp_dtype dtype, F f) {
  switch (dtype) {
    case HDP_FLOAT16: return f.template operator()<Float16>();
    case HDP_BFLOAT16: return f.template operator()<BFloat16>();
    case HDP_FLOAT32: return f.template operator()<Plain<float>>();
    case HDP_FLOAT64: return f.template operator()<Plain<double>>();
    case HDP_INT8: return f.template operator()<Plain<int8_t>>();
    case HDP_UINT8: return f.template operator()<Plain<uint8_t>>();
    case HDP_INT32: return f.template operator()<Plain<int32_t>>();
    case HDP_INT64: return f.template operator()<Plain<int64_t>>();
    case HDP_BOOL: return f.template operator()<Bool>();
  }
}

// Calls f.template operator()<E, Op, Avg>().
template <class E, class F>
void by_op(hdp_op op, F f) {
  constexpr bool is_bool = std::is_same_v<E, Bool>;
  switch (op) {
    case HDP_SUM: return f.template operator()<E, std::conditional_t<is_bool, Max, Sum>, false>();
    case HDP_AVG:
      if constexpr (std::is_floating_point_v<typename E::Acc>) return f.template operator()<E, Sum, true>();
      return;
    case HDP_MIN: return f.template operator()<E, Min, false>();
    case HDP_MAX: return f.template operator()<E, Max, false>();
    case HDP_PRODUCT: return f.template operator()<E, std::conditional_t<is_bool, Min, Product>, false>();
  }
}

}  // namespace

extern const Kernels table;
const Kernels table = {
    [](hdp_dtype d, void* acc, const void* in, size_t n) { by_type(d, [=]<class E>() { start<E>(acc, in, n); }); },
    [](hdp_dtype d, hdp_op o, void* acc, const void* in, size_t n) {
      by_type(d, [=]<class T>() { by_op<T>(o, [=]<class E, class Op, bool Avg>() { add<E, Op>(acc, in, n); }); });
    },
    [](hdp_dtype d, hdp_op o, void* acc, size_t n, uint32_t ranks) {
      by_type(d,
              [=]<class T>() { by_op<T>(o, [=]<class E, class Op, bool Avg>() { finish<E, Avg>(acc, n, ranks); }); });
    },
    [](hdp_dtype d, hdp_op o, void* acc, const void* in, void* out, size_t n, uint32_t ranks) {
      by_type(d, [=]<class T>() {
        by_op<T>(o, [=]<class E, class Op, bool Avg>() { add_finish<E, Op, Avg>(acc, in, out, n, ranks); });
      });
    },
    [](hdp_dtype d, hdp_op o, void* out, const void* const* parts, size_t num_parts, size_t n, uint32_t ranks) {
      by_type(d, [=]<class T>() {
        by_op<T>(o, [=]<class E, class Op, bool Avg>() { combine<E, Op, Avg>(out, parts, num_parts, n, ranks); });
      });
    },
    stream,
};

}  // namespace hdp::HDP_KERNELS
