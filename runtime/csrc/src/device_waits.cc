// Whether streams may wait for operations here (device.h): tried once, since drivers don't say.
//
// Two things could keep an operation from ending while a stream waits for it. Streams share the hardware's queues, and
// one that waits may not be overtaken. And a program's other calls may wait for all streams while they keep everybody
// out of the driver: to give memory back, or to load the code of a kernel before it is launched. Both are tried with a
// word of ours, which ends the trial whatever happens.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "device.h"
#include "error.h"

namespace hdp {
namespace {

constexpr uint64_t kCopied = 256;  // each way, from and to a place of its own
// More than a driver keeps of what it is given back.
constexpr uint64_t kFreed = 16 << 20;
// Far longer than such a copy takes, on a device that others use too.
constexpr auto kTestTime = std::chrono::seconds(1);
// For a stream to come to its wait, and for calls to come to theirs.
constexpr auto kTestPause = std::chrono::milliseconds(5);
// Does nothing, on every device that a driver of today knows.
constexpr char kKernel[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry hdp_nothing()\n{\n  ret;\n}\n";

}  // namespace

struct Device::Trial {
  WaitWord& word;
  CuPointer copied = 0, freed = 0;  // on the device
  void* host = nullptr;             // pinned
  CuStream held = nullptr, busy = nullptr;
  CuEvent done = nullptr, in = nullptr, out = nullptr;
};

bool Device::test_waits() {
  try {
    make_words();
  } catch (const Error&) {
    return false;
  }
  Trial t{words_.front()};
  t.word.value = 1;
  bool works = driver_.cuMemAlloc_v2(&t.copied, 2 * kCopied) == kCuSuccess &&
               driver_.cuMemHostAlloc(&t.host, 2 * kCopied, kCuHostPortable) == kCuSuccess;
  if (driver_.cuMemAlloc_v2(&t.freed, kFreed) != kCuSuccess) t.freed = 0;  // the device is full: without
  try {
    works = works && waits_work(t);
  } catch (const Error&) {
    works = false;
  }
  t.word.at->store(t.word.value, std::memory_order_release);
  settle();
  for (CuStream stream : {t.held, t.busy})
    if (stream != nullptr) driver_.cuStreamDestroy_v2(stream);
  for (CuEvent event : {t.done, t.in, t.out})
    if (event != nullptr) give(event);
  for (CuPointer memory : {t.copied, t.freed})
    if (memory != 0) driver_.cuMemFree_v2(memory);
  if (t.host != nullptr) driver_.cuMemFreeHost(t.host);
  if (works)
    for (WaitWord& word : words_) free_words_.push_back(&word);
  return works;
}

// Hold a stream, and see whether copies of ours pass it: alone, and while a program makes calls.
bool Device::waits_work(Trial& t) {
  t.held = make_stream(least_priority_);
  t.busy = make_stream(least_priority_);
  for (CuEvent* event : {&t.done, &t.in, &t.out}) *event = take_event();
  // The stream must have come to its wait before the copies begin.
  check("cuEventRecord", driver_.cuEventRecord(t.done, t.held));
  if (!until(t.done)) return false;
  check("cuStreamWaitValue32",
        driver_.cuStreamWaitValue32_v2(t.held, t.word.address, t.word.value, kCuWaitGreaterOrEqual));
  check("cuEventRecord", driver_.cuEventRecord(t.done, t.held));
  std::this_thread::sleep_for(kTestPause);
  if (!copies_pass(t) || driver_.cuEventQuery(t.done) != kCuNotReady) return false;

  std::mutex mutex;
  std::condition_variable changed;
  bool tried = false, passed = false;
  std::thread program([&] { call_what_programs_do(t); });
  std::this_thread::sleep_for(kTestPause);
  std::thread ours([&] {
    bool did = false;
    try {
      const Current current(*this);
      did = copies_pass(t);
    } catch (const Error&) {
    }
    std::lock_guard lock(mutex);
    tried = true;
    passed = did;
    changed.notify_all();
  });
  bool works = false;
  {
    // No call of the driver here: it could be the one that waits.
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kTestTime, [&] { return tried; });
    works = passed;
  }
  t.word.at->store(t.word.value, std::memory_order_release);
  ours.join();
  program.join();
  return until(t.done) && works;
}

bool Device::copies_pass(Trial& t) {
  const void* out = static_cast<uint8_t*>(t.host) + kCopied;
  return driver_.cuMemcpyDtoHAsync_v2(t.host, t.copied, kCopied, lanes_[kIn].copies) == kCuSuccess &&
         driver_.cuEventRecord(t.in, lanes_[kIn].copies) == kCuSuccess &&
         driver_.cuMemcpyHtoDAsync_v2(t.copied + kCopied, out, kCopied, lanes_[kOut].copies) == kCuSuccess &&
         driver_.cuEventRecord(t.out, lanes_[kOut].copies) == kCuSuccess && until(t.in) && until(t.out);
}

// Whether they succeed doesn't matter, only whom they keep waiting.
void Device::call_what_programs_do(Trial& t) try {
  const Current current(*this);
  CuModule module = nullptr;
  CuFunction kernel = nullptr;
  const bool loaded = driver_.cuModuleLoadData(&module, kKernel) == kCuSuccess;
  if (loaded && driver_.cuModuleGetFunction(&kernel, module, "hdp_nothing") == kCuSuccess)
    driver_.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, t.busy, nullptr, nullptr);
  if (t.freed != 0) driver_.cuMemFree_v2(t.freed);
  t.freed = 0;
  if (loaded) driver_.cuModuleUnload(module);
} catch (const Error&) {
}

bool Device::until(CuEvent event) {
  const auto end = std::chrono::steady_clock::now() + kTestTime;
  int result;
  while ((result = driver_.cuEventQuery(event)) == kCuNotReady && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  return result == kCuSuccess;
}

}  // namespace hdp
