// Built with -march=x86-64-v3 (AVX2, F16C); used where the processor has it.
#define HDP_KERNELS x86_64_v3
#include "kernels_impl.h"
