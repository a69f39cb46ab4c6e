// A GPU for TensorFlow on machines without one: a plugin (TensorFlow's C API for devices) whose device is of the type
// "GPU". Its memory is mapped twice: where TensorFlow has it, the host may not touch it, so that code that takes a
// tensor on the device for one in host memory crashes; the other mapping is what the copies use. A stream is a thread
// that takes its time over each copy, so that what doesn't wait for a copy finds stale data.
//
// It computes nothing: TensorFlow's own kernels for any device (variables, identities, constants) run on it, and what
// it has no kernel for goes to the CPU.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace {

constexpr uint64_t kBytes = 1 << 30;  // TensorFlow leaves about a quarter of it to others
constexpr auto kCopyTakes = std::chrono::microseconds(200);

// As TensorFlow's allocator above takes it all at once, nothing is given back.
struct Memory {
  char* seen = nullptr;  // by TensorFlow
  char* real = nullptr;
  std::atomic<uint64_t> used{0};

  Memory() {
    const int file = memfd_create("fake-gpu", 0);
    if (file < 0 || ftruncate(file, kBytes)) abort();
    seen = static_cast<char*>(mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED, file, 0));
    real = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    if (seen == MAP_FAILED || real == MAP_FAILED) abort();
    close(file);
  }
  char* at(const SP_DeviceMemoryBase* memory) const { return real + (static_cast<char*>(memory->opaque) - seen); }
};

Memory& memory() {
  static Memory* one = new Memory;
  return *one;
}

std::atomic<uint64_t> to_host, to_device;

}  // namespace

struct SP_Event_st {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, done = 0;

  uint64_t record() {
    const std::lock_guard lock(mutex);
    return ++recorded;
  }
  void complete(uint64_t number) {
    const std::lock_guard lock(mutex);
    done = number;
    changed.notify_all();
  }
  uint64_t last() {
    const std::lock_guard lock(mutex);
    return recorded;
  }
  void wait(uint64_t number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= number; });
  }
  bool pending() {
    const std::lock_guard lock(mutex);
    return done < recorded;
  }
};
using Event = std::shared_ptr<SP_Event_st>;  // streams may have one that its owner has destroyed

struct SP_Stream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> todo;
  bool closed = false;
  std::thread thread{[this] { run(); }};

  ~SP_Stream_st() {
    {
      const std::lock_guard lock(mutex);
      closed = true;
    }
    changed.notify_all();
    thread.join();
  }
  void add(std::function<void()> step) {
    {
      const std::lock_guard lock(mutex);
      todo.push_back(std::move(step));
    }
    changed.notify_all();
  }
  void copy(void* to, const void* from, uint64_t bytes) {
    add([=] {
      std::this_thread::sleep_for(kCopyTakes);
      memcpy(to, from, bytes);
    });
  }
  void record(Event event) {
    const uint64_t number = event->record();
    add([event, number] { event->complete(number); });
  }
  void wait_for(Event event) {
    add([event, number = event->last()] { event->wait(number); });
  }
  void finish() {
    const auto end = std::make_shared<SP_Event_st>();
    record(end);
    end->wait(1);
  }
  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return closed || !todo.empty(); });
      if (todo.empty()) return;
      const std::function<void()> step = std::move(todo.front());
      todo.pop_front();
      lock.unlock();
      step();
      lock.lock();
    }
  }
};

namespace {

Event& of(SP_Event event) { return *reinterpret_cast<Event*>(event); }

void nothing(const SP_Device*, TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

SP_Stream_st& own_stream() {  // of the copies that have none
  static SP_Stream_st* one = new SP_Stream_st;
  return *one;
}

void fill(SP_StreamExecutor* se) {
  se->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  se->allocate = [](const SP_Device*, uint64_t size, int64_t, SP_DeviceMemoryBase* given) {
    const uint64_t rounded = (size + 4095) / 4096 * 4096, at = memory().used.fetch_add(rounded);
    given->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
    given->opaque = at + rounded <= kBytes ? memory().seen + at : nullptr;
    given->size = given->opaque ? size : 0;
  };
  se->deallocate = [](const SP_Device*, SP_DeviceMemoryBase* given) { given->opaque = nullptr; };
  se->host_memory_allocate = [](const SP_Device*, uint64_t size) { return aligned_alloc(64, (size + 63) / 64 * 64); };
  se->host_memory_deallocate = [](const SP_Device*, void* given) { free(given); };
  se->get_allocator_stats = [](const SP_Device*, SP_AllocatorStats*) -> TF_Bool { return 0; };
  se->device_memory_usage = [](const SP_Device*, int64_t* unused, int64_t* total) -> TF_Bool {
    *total = kBytes;
    *unused = kBytes - memory().used.load();
    return 1;
  };
  se->create_stream = [](const SP_Device*, SP_Stream* stream, TF_Status*) { *stream = new SP_Stream_st; };
  se->destroy_stream = [](const SP_Device*, SP_Stream stream) { delete stream; };
  se->create_stream_dependency = [](const SP_Device*, SP_Stream dependent, SP_Stream other, TF_Status*) {
    const auto event = std::make_shared<SP_Event_st>();
    other->record(event);
    dependent->wait_for(event);
  };
  se->get_stream_status = [](const SP_Device*, SP_Stream, TF_Status* status) { TF_SetStatus(status, TF_OK, ""); };
  se->create_event = [](const SP_Device*, SP_Event* event, TF_Status*) {
    *event = reinterpret_cast<SP_Event>(new Event(std::make_shared<SP_Event_st>()));
  };
  se->destroy_event = [](const SP_Device*, SP_Event event) { delete reinterpret_cast<Event*>(event); };
  se->get_event_status = [](const SP_Device*, SP_Event event) {
    return of(event)->pending() ? SE_EVENT_PENDING : SE_EVENT_COMPLETE;
  };
  se->record_event = [](const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*) { stream->record(of(event)); };
  se->wait_for_event = [](const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*) {
    stream->wait_for(of(event));
  };
  se->create_timer = [](const SP_Device*, SP_Timer* timer, TF_Status*) { *timer = nullptr; };
  se->destroy_timer = [](const SP_Device*, SP_Timer) {};
  se->start_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  se->stop_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  se->memcpy_dtoh = [](const SP_Device*, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
                       TF_Status*) {
    ++to_host;
    stream->copy(to, memory().at(from), size);
  };
  se->memcpy_htod = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                       TF_Status*) {
    ++to_device;
    stream->copy(memory().at(to), from, size);
  };
  se->memcpy_dtod = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                       uint64_t size, TF_Status*) { stream->copy(memory().at(to), memory().at(from), size); };
  se->sync_memcpy_dtoh = [](const SP_Device*, void* to, const SP_DeviceMemoryBase* from, uint64_t size, TF_Status*) {
    ++to_host;
    own_stream().copy(to, memory().at(from), size);
    own_stream().finish();
  };
  se->sync_memcpy_htod = [](const SP_Device*, SP_DeviceMemoryBase* to, const void* from, uint64_t size, TF_Status*) {
    ++to_device;
    own_stream().copy(memory().at(to), from, size);
    own_stream().finish();
  };
  se->sync_memcpy_dtod = [](const SP_Device*, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t size,
                            TF_Status*) { memcpy(memory().at(to), memory().at(from), size); };
  se->block_host_for_event = [](const SP_Device*, SP_Event event, TF_Status*) { of(event)->wait(of(event)->last()); };
  se->block_host_until_done = [](const SP_Device*, SP_Stream stream, TF_Status*) { stream->finish(); };
  se->synchronize_all_activity = nothing;
  se->mem_zero = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, uint64_t size, TF_Status*) {
    stream->add([at = memory().at(to), size] { memset(at, 0, size); });
  };
  se->memset = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, uint8_t value, uint64_t size,
                  TF_Status*) { stream->add([at = memory().at(to), value, size] { memset(at, value, size); }); };
  se->memset32 = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, uint32_t value, uint64_t size,
                    TF_Status*) {
    stream->add([at = memory().at(to), value, size] {
      for (uint64_t i = 0; i < size; i += sizeof value) memcpy(at + i, &value, sizeof value);
    });
  };
  se->host_callback = [](const SP_Device*, SP_Stream stream, SE_StatusCallbackFn call, void* argument) -> TF_Bool {
    stream->add([call, argument] {
      TF_Status* status = TF_NewStatus();
      call(argument, status);
      TF_DeleteStatus(status);
    });
    return 1;
  };
}

}  // namespace

extern "C" {

// How often TensorFlow has copied each way.
uint64_t fake_gpu_copies_to_host() { return to_host; }
uint64_t fake_gpu_copies_to_device() { return to_device; }
// For the test of this file: reads of device memory as the host does that takes it for its own.
int fake_gpu_touch() { return *static_cast<volatile char*>(memory().seen); }

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status*) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "FAKE";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = 1;
  SP_PlatformFns* fns = params->platform_fns;
  fns->get_device_count = [](const SP_Platform*, int* count, TF_Status*) { *count = 1; };
  fns->create_device = [](const SP_Platform*, SE_CreateDeviceParams* given, TF_Status*) {
    given->device->struct_size = SP_DEVICE_STRUCT_SIZE;
    given->device->ordinal = given->ordinal;
    given->device->hardware_name = "none";
    given->device->device_vendor = "none";
    given->device->pci_bus_id = "0000:00:00.0";
  };
  fns->destroy_device = [](const SP_Platform*, SP_Device*) {};
  fns->create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* given, TF_Status*) {
    given->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  };
  fns->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  fns->create_stream_executor = [](const SP_Platform*, SE_CreateStreamExecutorParams* given, TF_Status*) {
    fill(given->stream_executor);
  };
  fns->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  fns->create_timer_fns = [](const SP_Platform*, SP_TimerFns* given, TF_Status*) {
    given->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    given->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
  };
  fns->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
}

}  // extern "C"
