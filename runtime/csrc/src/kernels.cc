#include "kernels.h"

namespace hdp {

namespace baseline {
extern const Kernels table;
}
namespace x86_64_v3 {
extern const Kernels table;
}

size_t element_bytes(hdp_dtype dtype) {
  switch (dtype) {
    case HDP_FLOAT16:
    case HDP_BFLOAT16: return 2;
    case HDP_FLOAT32:
    case HDP_INT32: return 4;
    case HDP_FLOAT64:
    case HDP_INT64: return 8;
    case HDP_INT8:
    case HDP_UINT8:
    case HDP_BOOL: return 1;
  }
  return 0;
}

size_t accumulator_bytes(hdp_dtype dtype) {
  return dtype == HDP_FLOAT16 || dtype == HDP_BFLOAT16 ? 4 : element_bytes(dtype);
}

const Kernels& kernels() {
#ifdef HDP_HAS_X86_64_V3
  static const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
  if (v3) return x86_64_v3::table;
#endif
  return baseline::table;
}

}  // namespace hdp
