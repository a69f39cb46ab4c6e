// Arithmetic on arrays: the only code that looks at elements.
//
// Half types are accumulated in float32: an *accumulator* of n float16 elements is n floats. Everything else
// accumulates in its own type (integers wrap). No kernel changes the order of a sum, so results do not depend on the
// instruction set that is chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hdp.h"

namespace hdp {

size_t element_bytes(hdp_dtype dtype);
size_t accumulator_bytes(hdp_dtype dtype);  // of one element

// Sums of half types could overflow where they are rounded to cross the wire: they are divided for HDP_AVG before that.
inline bool averaged_early(hdp_dtype dtype) { return accumulator_bytes(dtype) != element_bytes(dtype); }

struct Kernels {
  // acc[i] = in[i]
  void (*start)(hdp_dtype, void* acc, const void* in, size_t n);
  // acc[i] = acc[i] op in[i]
  void (*add)(hdp_dtype, hdp_op, void* acc, const void* in, size_t n);
  // Turn an accumulator into elements, in place; for HDP_AVG, divide by `ranks`.
  void (*finish)(hdp_dtype, hdp_op, void* acc, size_t n, uint32_t ranks);
  // out[i] = finish(acc[i] op in[i]), and the same into the place of acc; out may be in.
  void (*add_finish)(hdp_dtype, hdp_op, void* acc, const void* in, void* out, size_t n, uint32_t ranks);
  // out[i] = finish(parts[0][i] op parts[1][i] op ...), elements in and out; out may be one of the parts.
  void (*combine)(hdp_dtype, hdp_op, void* out, const void* const* parts, size_t num_parts, size_t n, uint32_t ranks);
  // Copies past the caches, for what won't be in them any more when it is read.
  void (*stream)(void* out, const void* in, size_t bytes);
};

// The fastest build for this processor.
const Kernels& kernels();

}  // namespace hdp
