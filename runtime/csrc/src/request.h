// A caller's request, checked and turned into an operation.
#pragma once

#include "operation.h"

namespace hdp {

// All but the key's counter. Throws Error (HDP_INVALID) that says what is wrong.
Operation operation_of(const hdp_request& request, const Group& group, uint32_t rank);
// Throws Error where a buffer that the operation needs is NULL.
void check_buffers(const hdp_request& request, const Operation& operation, const Group& group, uint32_t rank);

}  // namespace hdp
