#include "cuda_driver.h"

#include <dlfcn.h>

#include <cstdlib>

#include "error.h"

namespace hdp {
namespace {

CudaDriver load() {
  const char* chosen = std::getenv("HDP_CUDA_DRIVER");
  const std::string path = chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
  // Never closed: the driver's own threads outlive every communicator.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(HDP_SYSTEM, std::string("CUDA's driver can't be loaded: ") + dlerror());
  CudaDriver driver;
  const auto find = [&](const char* name) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr)
      throw Error(HDP_SYSTEM, path + ", CUDA's driver, has no " + name + "; expected one of CUDA 12 or later");
    return symbol;
  };
#define HDP_FIND(name, parameters) driver.name = reinterpret_cast<int(*) parameters>(find(#name));
  HDP_CUDA_FUNCTIONS(HDP_FIND)
#undef HDP_FIND
  HDP_CU(driver, cuInit, 0);
  return driver;
}

}  // namespace

const CudaDriver& CudaDriver::get() {
  static const CudaDriver driver = load();  // again at the next call, where it throws
  return driver;
}

int CudaDriver::device_count() const {
  int count = 0;
  HDP_CU(*this, cuDeviceGetCount, &count);
  return count;
}

std::string CudaDriver::text(const char* function, int result) const {
  const char *name = nullptr, *explained = nullptr;
  if (cuGetErrorName(result, &name) != kCuSuccess || name == nullptr)
    return std::string(function) + ": error " + std::to_string(result) + " of CUDA's driver";
  std::string text = std::string(function) + ": " + name;
  if (cuGetErrorString(result, &explained) == kCuSuccess && explained != nullptr)
    text += std::string(" (") + explained + ")";
  return text;
}

void CudaDriver::check(const char* function, int result) const {
  if (result != kCuSuccess) throw Error(HDP_SYSTEM, text(function, result));
}

}  // namespace hdp
