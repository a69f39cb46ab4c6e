#include "stress_device.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace hdp::stress {

struct FakeDriver {
  int (*cuInit)(unsigned);
  int (*cuDevicePrimaryCtxRetain)(void**, int);
  int (*cuCtxSetCurrent)(void*);
  int (*cuStreamCreateWithPriority)(void**, unsigned, int);
  int (*cuStreamSynchronize)(void*);
  int (*cuMemAlloc_v2)(unsigned long long*, size_t);
  int (*cuMemFree_v2)(unsigned long long);
  void* (*fake_cuda_view)(unsigned long long);
  int (*fake_cuda_kernel_copy)(void*, unsigned long long, unsigned long long, uint64_t, uint64_t);
};

namespace {

void check(const char* what, int result) {
  if (result == 0) return;
  std::fprintf(stderr, "FAILED: %s of the fake driver: %d\n", what, result);
  std::abort();
}

FakeDriver load() {
  const char* path = std::getenv("HDP_CUDA_DRIVER");
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW);
  check("loading", library == nullptr);
  FakeDriver d{};
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    check(name, function == nullptr);
  };
  find(d.cuInit, "cuInit");
  find(d.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  find(d.cuCtxSetCurrent, "cuCtxSetCurrent");
  find(d.cuStreamCreateWithPriority, "cuStreamCreateWithPriority");
  find(d.cuStreamSynchronize, "cuStreamSynchronize");
  find(d.cuMemAlloc_v2, "cuMemAlloc_v2");
  find(d.cuMemFree_v2, "cuMemFree_v2");
  find(d.fake_cuda_view, "fake_cuda_view");
  find(d.fake_cuda_kernel_copy, "fake_cuda_kernel_copy");
  check("cuInit", d.cuInit(0));
  return d;
}

const FakeDriver& loaded() {
  static const FakeDriver driver = load();
  return driver;
}

}  // namespace

Device::Device() : driver_(loaded()) {
  void* context = nullptr;
  check("cuDevicePrimaryCtxRetain", driver_.cuDevicePrimaryCtxRetain(&context, 0));
  check("cuCtxSetCurrent", driver_.cuCtxSetCurrent(context));
  check("cuStreamCreateWithPriority", driver_.cuStreamCreateWithPriority(&stream_, 1, 0));
}

void Device::synchronize() const { check("cuStreamSynchronize", driver_.cuStreamSynchronize(stream_)); }

Memory::Memory(const Device& device, size_t bytes) : device_(device) {
  check("cuMemAlloc", device.driver().cuMemAlloc_v2(&pointer_, std::max<size_t>(1, bytes)));
  view_ = static_cast<uint8_t*>(device.driver().fake_cuda_view(pointer_));
}

Memory::~Memory() { check("cuMemFree", device_.driver().cuMemFree_v2(pointer_)); }

void Memory::write(const uint8_t* bytes, size_t n, uint64_t microseconds) {
  if (n == 0) return;
  origin_ = std::make_unique<Memory>(device_, n);
  std::memcpy(origin_->view(), bytes, n);
  void* stream = reinterpret_cast<void*>(device_.stream());
  check("a kernel", device_.driver().fake_cuda_kernel_copy(stream, pointer_, origin_->pointer_, n, microseconds));
}

}  // namespace hdp::stress
