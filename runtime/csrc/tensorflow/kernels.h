#ifndef HDP_TF_KERNELS_H_
#define HDP_TF_KERNELS_H_

#include <string>

namespace hdp::tf {

// Make the operations known to TensorFlow. False, with the reason in `why`: it doesn't take them.
bool register_all(std::string& why);

}  // namespace hdp::tf
#endif
