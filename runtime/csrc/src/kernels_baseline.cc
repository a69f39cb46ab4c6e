#define HDP_KERNELS baseline
#include "kernels_impl.h"
