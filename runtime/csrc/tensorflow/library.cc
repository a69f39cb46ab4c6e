// What happens when the library is loaded, and what hdp.tensorflow.native calls.
#include <cstdio>
#include <string>

#include "engine.h"
#include "kernels.h"
#include "tf_c_api.h"

namespace {

std::string why_not;

// tf.load_op_library makes Python functions of the operations that appear while it loads the library.
const bool registered = [] { return hdp::tf::load_api(why_not) && hdp::tf::register_all(why_not); }();

}  // namespace

extern "C" {

// Why the operations aren't there; empty: they are.
HDP_API const char* hdp_tf_why_not(void) { return registered ? "" : why_not.c_str(); }

HDP_API int32_t hdp_tf_attach(hdp_comm* comm, uint64_t ranks, uint64_t timeout_ms, uint64_t stall_ms, char* error,
                              size_t error_bytes) {
  std::string text;
  const int32_t status = hdp::tf::Engine::instance().attach(comm, ranks, timeout_ms, stall_ms, text);
  if (error && error_bytes) snprintf(error, error_bytes, "%s", text.c_str());
  return status;
}

HDP_API void hdp_tf_stop(void) { hdp::tf::Engine::instance().stop(); }

HDP_API void hdp_tf_fail_pending(const char* why) { hdp::tf::Engine::instance().fail_pending(why); }

}  // extern "C"
