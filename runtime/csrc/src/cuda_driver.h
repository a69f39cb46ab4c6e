// CUDA's driver API, found at run time: nothing here needs CUDA to be built, and nothing is loaded before an operation
// has a device.
//
// Only libcuda.so.1 (the driver) is used, not the CUDA runtime, so that any version of it, or none, may be in the
// process. Its functions have a version in their name where their signature has changed; these are the ones that every
// driver since CUDA 12 exports, with the legacy default stream as stream 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hdp {

using CuContext = void*;
using CuStream = void*;
using CuEvent = void*;
using CuPointer = unsigned long long;  // of device memory
using CuDevice = int;
using CuHostFunction = void (*)(void*);

// CUresult, as far as somebody looks at it.
enum CuResult : int { kCuSuccess = 0, kCuNotReady = 600 };

// Flags, by cuda.h.
inline constexpr unsigned kCuStreamNonBlocking = 1;
inline constexpr unsigned kCuEventDisableTiming = 2;
inline constexpr unsigned kCuHostPortable = 1;
inline constexpr unsigned kCuHostDeviceMap = 2;
inline constexpr unsigned kCuWaitGreaterOrEqual = 0;  // cyclic: (int32_t)(*word - value) >= 0
inline constexpr int kCuCaptureRelaxed = 2;

// X(name in the library, parameters); all return a CUresult.
#define HDP_CUDA_FUNCTIONS(X)                                          \
  X(cuInit, (unsigned))                                                \
  X(cuDeviceGetCount, (int*))                                          \
  X(cuDeviceGet, (CuDevice*, int))                                     \
  X(cuDevicePrimaryCtxRetain, (CuContext*, CuDevice))                  \
  X(cuDevicePrimaryCtxRelease_v2, (CuDevice))                          \
  X(cuCtxPushCurrent_v2, (CuContext))                                  \
  X(cuCtxPopCurrent_v2, (CuContext*))                                  \
  X(cuCtxSetCurrent, (CuContext))                                      \
  X(cuCtxGetStreamPriorityRange, (int*, int*))                         \
  X(cuThreadExchangeStreamCaptureMode, (int*))                         \
  X(cuStreamCreateWithPriority, (CuStream*, unsigned, int))            \
  X(cuStreamDestroy_v2, (CuStream))                                    \
  X(cuStreamSynchronize, (CuStream))                                   \
  X(cuStreamWaitEvent, (CuStream, CuEvent, unsigned))                  \
  X(cuStreamWaitValue32_v2, (CuStream, CuPointer, uint32_t, unsigned)) \
  X(cuStreamIsCapturing, (CuStream, int*))                             \
  X(cuEventCreate, (CuEvent*, unsigned))                               \
  X(cuEventDestroy_v2, (CuEvent))                                      \
  X(cuEventRecord, (CuEvent, CuStream))                                \
  X(cuEventQuery, (CuEvent))                                           \
  X(cuMemAlloc_v2, (CuPointer*, size_t))                               \
  X(cuMemFree_v2, (CuPointer))                                         \
  X(cuMemHostAlloc, (void**, size_t, unsigned))                        \
  X(cuMemFreeHost, (void*))                                            \
  X(cuMemHostRegister_v2, (void*, size_t, unsigned))                   \
  X(cuMemHostUnregister, (void*))                                      \
  X(cuMemHostGetDevicePointer_v2, (CuPointer*, void*, unsigned))       \
  X(cuMemcpyDtoHAsync_v2, (void*, CuPointer, size_t, CuStream))        \
  X(cuMemcpyHtoDAsync_v2, (CuPointer, const void*, size_t, CuStream))  \
  X(cuMemcpyDtoDAsync_v2, (CuPointer, CuPointer, size_t, CuStream))    \
  X(cuLaunchHostFunc, (CuStream, CuHostFunction, void*))               \
  X(cuGetErrorName, (int, const char**))                               \
  X(cuGetErrorString, (int, const char**))

struct CudaDriver {
#define HDP_DECLARE(name, parameters) int(*name) parameters = nullptr;
  HDP_CUDA_FUNCTIONS(HDP_DECLARE)
#undef HDP_DECLARE

  // Loads it on the first call. Throws Error (HDP_SYSTEM) that says why there is none.
  static const CudaDriver& get();
  int device_count() const;
  // "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  std::string text(const char* function, int result) const;
  // Throws Error (HDP_SYSTEM) unless `result` is success.
  void check(const char* function, int result) const;
};

// driver.check of a call, with the function's name.
#define HDP_CU(driver, function, ...) (driver).check(#function, (driver).function(__VA_ARGS__))

}  // namespace hdp
