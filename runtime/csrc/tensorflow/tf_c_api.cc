#include "tf_c_api.h"

#include <dlfcn.h>

namespace hdp::tf {
namespace {

Api table;

// Which library has them differs by version and platform; what is loaded already isn't loaded again.
void* find(const char* name) {
  for (const char* library : {"libtensorflow_framework.so.2", "libtensorflow_cc.so.2"}) {
    void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) continue;
    void* found = dlsym(handle, name);
    dlclose(handle);
    if (found) return found;
  }
  return dlsym(RTLD_DEFAULT, name);
}

}  // namespace

const Api* load_api(std::string& why) {
#define HDP_TF_FIND(result, name, arguments)                             \
  table.name = reinterpret_cast<result(*) arguments>(find("TF_" #name)); \
  if (!table.name) {                                                     \
    why = "this TensorFlow has no TF_" #name;                            \
    return nullptr;                                                      \
  }
  HDP_TF_FUNCTIONS(HDP_TF_FIND)
#undef HDP_TF_FIND
  return &table;
}

const Api& api() { return table; }

}  // namespace hdp::tf
