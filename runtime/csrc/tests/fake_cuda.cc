// The fake driver's functions, by cuda.h.
#include "fake_cuda.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "fake_cuda_state.h"

using namespace hdp::fake;  // the library is nothing else

namespace {

using Pointer = unsigned long long;
constexpr uint64_t kPage = 4096;
// What the device calls a pinned word is another address than the host's.
constexpr Pointer kMapped = Pointer{1} << 60;

// Where the host finds what the device calls `pointer`. Under the mutex.
uint8_t* view_of(Pointer pointer, uint64_t bytes) {
  uintptr_t begin = 0;
  const Range* range = state().find(static_cast<uintptr_t>(pointer), bytes, &begin);
  if (range == nullptr) return reinterpret_cast<uint8_t*>(pointer);
  return range->kind == Kind::kDevice ? range->view + (pointer - begin) : nullptr;
}

void sleep_for(uint64_t bytes) {
  const Knobs& k = state().knobs;
  auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(k.latency);
  if (k.gbps > 0) time += std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / k.gbps));
  if (time.count() > 0) std::this_thread::sleep_for(time);
}

// The bytes travel in pieces, so that who looks early finds the end missing.
void move(void* to, const void* from, uint64_t bytes) {
  {
    State& s = state();
    std::unique_lock lock(s.mutex);
    s.changed.wait(lock, [&] { return !s.knobs.stuck || s.held == 0; });
  }
  sleep_for(bytes);
  std::memcpy(to, from, bytes);
}

// A copy, of which `host` is pinned and `device` isn't.
int copy(const char* function, bool to_host, void* host, Pointer device, size_t bytes, void* handle) {
  if (const int error = enter(function)) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidHandle;
  uintptr_t begin = 0;
  const Range* pinned = s.find(reinterpret_cast<uintptr_t>(host), bytes, &begin);
  if (pinned == nullptr || pinned->kind == Kind::kDevice) return kInvalidValue;
  uint8_t* view = view_of(device, bytes);
  if (view == nullptr) return kInvalidValue;
  uintptr_t device_begin = 0;
  const bool ours = s.find(static_cast<uintptr_t>(device), bytes, &device_begin) != nullptr;
  ++s.ranges.at(begin).flying;
  if (ours) ++s.ranges.at(device_begin).flying;
  ++s.flying;
  push(*stream->state, [=] {
    to_host ? move(host, view, bytes) : move(view, host, bytes);
    State& now = state();
    std::lock_guard again(now.mutex);
    --now.ranges.at(begin).flying;
    if (ours) --now.ranges.at(device_begin).flying;
    --now.flying;
  });
  return kOk;
}

int forget(uintptr_t at, Kind kind) {
  State& s = state();
  auto found = s.ranges.find(at);
  if (found == s.ranges.end() || found->second.kind != kind) return kInvalidValue;
  if (found->second.flying > 0) broken("memory is given up while a copy is in flight");
  s.ranges.erase(found);
  return kOk;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  if (const int error = enter("cuInit", false)) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.initialized = true;
  return kOk;
}

int cuGetErrorName(int error, const char** name) {
  switch (error) {
    case kInvalidValue: *name = "CUDA_ERROR_INVALID_VALUE"; return kOk;
    case kInvalidContext: *name = "CUDA_ERROR_INVALID_CONTEXT"; return kOk;
    case kNotSupported: *name = "CUDA_ERROR_NOT_SUPPORTED"; return kOk;
    case kUnknown: *name = "CUDA_ERROR_UNKNOWN"; return kOk;
    default: *name = nullptr; return kInvalidValue;
  }
}

int cuGetErrorString(int, const char** text) {
  *text = "as the test wants it";
  return kOk;
}

// ---- devices and contexts ------------------------------------------------------------------------------------------

int cuDeviceGetCount(int* count) {
  if (const int error = enter("cuDeviceGetCount", false)) return error;
  *count = state().knobs.devices;
  return kOk;
}

int cuDeviceGet(int* device, int ordinal) {
  if (const int error = enter("cuDeviceGet", false)) return error;
  *device = ordinal;
  return ordinal < state().knobs.devices ? kOk : kInvalidDevice;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (const int error = enter("cuDevicePrimaryCtxRetain", false)) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  Context* primary = s.contexts.at(static_cast<size_t>(device)).get();
  ++primary->retained;
  *context = primary;
  return kOk;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  if (const int error = enter("cuDevicePrimaryCtxRelease_v2", false)) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  return --s.contexts.at(static_cast<size_t>(device))->retained < 0 ? kInvalidContext : kOk;
}

int cuCtxPushCurrent_v2(void* context) {
  if (const int error = enter("cuCtxPushCurrent_v2", false)) return error;
  stack().push_back(static_cast<Context*>(context));
  return kOk;
}

int cuCtxPopCurrent_v2(void** context) {
  if (const int error = enter("cuCtxPopCurrent_v2")) return error;
  *context = stack().back();
  stack().pop_back();
  return kOk;
}

int cuCtxSetCurrent(void* context) {
  if (const int error = enter("cuCtxSetCurrent", false)) return error;
  if (stack().empty()) stack().push_back(nullptr);
  stack().back() = static_cast<Context*>(context);
  return kOk;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (const int error = enter("cuCtxGetStreamPriorityRange")) return error;
  *least = 0;
  *greatest = -5;
  return kOk;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int ours = 0;
  std::swap(ours, *mode);
  return kOk;
}

// ---- streams and events --------------------------------------------------------------------------------------------

int cuStreamCreateWithPriority(void** handle, unsigned flags, int priority) {
  if (const int error = enter("cuStreamCreateWithPriority")) return error;
  if (flags != 1 || priority > 0 || priority < -5) return kInvalidValue;
  State& s = state();
  std::lock_guard lock(s.mutex);
  auto* stream = new Stream{stack().back()};
  s.streams.insert(stream);
  run(stream->state);
  *handle = stream;
  return kOk;
}

int cuStreamDestroy_v2(void* handle) {
  if (const int error = enter("cuStreamDestroy_v2")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.streams.erase(handle) == 0) return kInvalidHandle;
  auto* stream = static_cast<Stream*>(handle);
  stream->state->closed = true;
  stream->state->filled.notify_one();
  delete stream;
  return kOk;
}

int cuStreamSynchronize(void* handle) {
  if (const int error = enter("cuStreamSynchronize", handle == nullptr)) return error;
  State& s = state();
  std::unique_lock lock(s.mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidHandle;
  const std::shared_ptr<StreamState> ours = stream->state;
  const uint64_t put = ours->put;
  s.changed.wait(lock, [&] { return ours->done >= put; });
  return kOk;
}

int cuStreamIsCapturing(void*, int* capturing) {
  if (const int error = enter("cuStreamIsCapturing")) return error;
  *capturing = 0;
  return kOk;
}

int cuEventCreate(void** handle, unsigned flags) {
  if (const int error = enter("cuEventCreate")) return error;
  if (flags != 2) return kInvalidValue;
  State& s = state();
  std::lock_guard lock(s.mutex);
  auto* event = new Event{stack().back()};
  s.events.insert(event);
  *handle = event;
  return kOk;
}

int cuEventDestroy_v2(void* handle) {
  if (const int error = enter("cuEventDestroy_v2")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.events.erase(handle) == 0) return kInvalidHandle;
  delete static_cast<Event*>(handle);
  return kOk;
}

int cuEventRecord(void* handle, void* stream_handle) {
  if (const int error = enter("cuEventRecord")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  Stream* stream = stream_of(stream_handle);
  if (stream == nullptr || !s.events.contains(handle)) return kInvalidHandle;
  auto* event = static_cast<Event*>(handle);
  if (event->context != stream->context) broken("an event is recorded in another device's stream");
  push(*stream->state, [event_state = event->state, number = ++event->state->recorded] {
    std::lock_guard again(state().mutex);
    event_state->done = std::max(event_state->done, number);
    state().changed.notify_all();
  });
  return kOk;
}

int cuEventQuery(void* handle) {
  if (const int error = enter("cuEventQuery", false)) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (!s.events.contains(handle)) return kInvalidHandle;
  const EventState& event = *static_cast<Event*>(handle)->state;
  return event.done >= event.recorded ? kOk : kNotReady;
}

int cuStreamWaitEvent(void* stream_handle, void* handle, unsigned) {
  if (const int error = enter("cuStreamWaitEvent")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  Stream* stream = stream_of(stream_handle);
  if (stream == nullptr || !s.events.contains(handle)) return kInvalidHandle;
  const std::shared_ptr<EventState> event = static_cast<Event*>(handle)->state;
  push(*stream->state, [event, number = event->recorded] {
    std::unique_lock again(state().mutex);
    state().changed.wait(again, [&] { return event->done >= number; });
  });
  return kOk;
}

int cuStreamWaitValue32_v2(void* handle, Pointer address, uint32_t value, unsigned flags) {
  if (const int error = enter("cuStreamWaitValue32_v2")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidHandle;
  const auto at = static_cast<uintptr_t>(address - kMapped);
  if (flags != 0 || s.find(at, sizeof value) == nullptr) return kInvalidValue;
  push(*stream->state, [at, value] {
    const auto& word = *reinterpret_cast<const std::atomic<uint32_t>*>(at);
    const auto held = [](int64_t by) {
      std::lock_guard again(state().mutex);
      state().held += static_cast<uint64_t>(by);
      state().changed.notify_all();
    };
    held(1);
    while (static_cast<int32_t>(word.load(std::memory_order_acquire) - value) < 0)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    held(-1);
  });
  return kOk;
}

int cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
  if (const int error = enter("cuLaunchHostFunc")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return kInvalidHandle;
  push(*stream->state, [function, data] { function(data); });
  return kOk;
}

// ---- memory --------------------------------------------------------------------------------------------------------

int cuMemAlloc_v2(Pointer* pointer, size_t bytes) {
  if (const int error = enter("cuMemAlloc_v2")) return error;
  const size_t mapped = (bytes + kPage - 1) / kPage * kPage;
  const int fd = memfd_create("device", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(mapped)) != 0) return kOutOfMemory;
  void* at = mmap(nullptr, mapped, PROT_NONE, MAP_SHARED, fd, 0);
  void* view = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at == MAP_FAILED || view == MAP_FAILED) return kOutOfMemory;
  *pointer = reinterpret_cast<Pointer>(at);
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.ranges[reinterpret_cast<uintptr_t>(at)] = {Kind::kDevice, mapped, static_cast<uint8_t*>(view)};
  return kOk;
}

int cuMemFree_v2(Pointer pointer) {
  if (const int error = enter("cuMemFree_v2")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  const auto at = static_cast<uintptr_t>(pointer);
  auto found = s.ranges.find(at);
  if (found == s.ranges.end()) return kInvalidValue;
  const Range range = found->second;
  if (const int error = forget(at, Kind::kDevice)) return error;
  munmap(reinterpret_cast<void*>(at), range.bytes);
  munmap(range.view, range.bytes);
  return kOk;
}

int cuMemHostAlloc(void** host, size_t bytes, unsigned) {
  if (const int error = enter("cuMemHostAlloc")) return error;
  const size_t mapped = (bytes + kPage - 1) / kPage * kPage;
  *host = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*host == MAP_FAILED) return kOutOfMemory;
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.ranges[reinterpret_cast<uintptr_t>(*host)] = {Kind::kPinned, mapped, static_cast<uint8_t*>(*host)};
  return kOk;
}

int cuMemFreeHost(void* host) {
  if (const int error = enter("cuMemFreeHost")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  const auto at = reinterpret_cast<uintptr_t>(host);
  const uint64_t bytes = s.ranges.contains(at) ? s.ranges.at(at).bytes : 0;
  if (const int error = forget(at, Kind::kPinned)) return error;
  munmap(host, bytes);
  return kOk;
}

int cuMemHostRegister_v2(void* host, size_t bytes, unsigned) {
  if (const int error = enter("cuMemHostRegister_v2")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  const auto at = reinterpret_cast<uintptr_t>(host);
  if (s.find(at, 1) != nullptr) return kAlreadyRegistered;
  s.ranges[at] = {Kind::kRegistered, bytes, static_cast<uint8_t*>(host)};
  return kOk;
}

int cuMemHostUnregister(void* host) {
  if (const int error = enter("cuMemHostUnregister")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  return forget(reinterpret_cast<uintptr_t>(host), Kind::kRegistered) == kOk ? kOk : kNotRegistered;
}

int cuMemHostGetDevicePointer_v2(Pointer* pointer, void* host, unsigned) {
  if (const int error = enter("cuMemHostGetDevicePointer_v2")) return error;
  *pointer = reinterpret_cast<Pointer>(host) + kMapped;
  return kOk;
}

int cuMemcpyDtoHAsync_v2(void* host, Pointer device, size_t bytes, void* stream) {
  return copy("cuMemcpyDtoHAsync_v2", true, host, device, bytes, stream);
}

int cuMemcpyHtoDAsync_v2(Pointer device, const void* host, size_t bytes, void* stream) {
  return copy("cuMemcpyHtoDAsync_v2", false, const_cast<void*>(host), device, bytes, stream);
}

int cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void* handle) {
  if (const int error = enter("cuMemcpyDtoDAsync_v2")) return error;
  return fake_cuda_kernel_copy(handle, to, from, bytes, 0);
}

// ---- for tests -----------------------------------------------------------------------------------------------------

void* fake_cuda_view(Pointer pointer) {
  std::lock_guard lock(state().mutex);
  return view_of(pointer, 1);
}

int fake_cuda_fill(void* handle, Pointer pointer, int byte, uint64_t n, uint64_t microseconds) {
  if (const int error = enter("fake_cuda_fill")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  Stream* stream = stream_of(handle);
  uint8_t* view = view_of(pointer, n);
  if (stream == nullptr || view == nullptr) return kInvalidValue;
  push(*stream->state, [=] {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    std::memset(view, byte, n);
  });
  return kOk;
}

int fake_cuda_kernel_copy(void* handle, Pointer to, Pointer from, uint64_t n, uint64_t microseconds) {
  if (const int error = enter("fake_cuda_kernel_copy")) return error;
  State& s = state();
  std::lock_guard lock(s.mutex);
  Stream* stream = stream_of(handle);
  uint8_t *target = view_of(to, n), *source = view_of(from, n);
  if (stream == nullptr || target == nullptr || source == nullptr) return kInvalidValue;
  push(*stream->state, [=] {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    move(target, source, n);
  });
  return kOk;
}
}
