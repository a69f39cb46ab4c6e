#include "device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "error.h"

namespace hdp {
namespace {

// Chunks that are on their way through pinned memory at once: of what comes, so many as keep the copies going while
// this rank waits for its turn; of what leaves, one that is written while others travel.
constexpr uint32_t kRingSlots[] = {8, 4};
constexpr uint32_t kWords = 1024;  // operations in flight that streams wait for
constexpr uint64_t kWordsBytes = kWords * sizeof(uint32_t), kScratchBytes = 256;
// For the test of waits: far longer than a copy of a few bytes takes, on a device that others use too.
constexpr auto kTestTime = std::chrono::seconds(1);

bool wants_stream_waits() {
  const char* chosen = std::getenv("HDP_CUDA_WAIT");
  const std::string value = chosen == nullptr || *chosen == '\0' ? "stream" : chosen;
  if (value != "stream" && value != "host")
    throw Error(HDP_INVALID, "$HDP_CUDA_WAIT is '" + value + "'; expected stream or host");
  return value == "stream";
}

void ring_and_forget(void* ringer) {
  const std::unique_ptr<std::shared_ptr<Ringer>> ours(static_cast<std::shared_ptr<Ringer>*>(ringer));
  (*ours)->ring();
}

CuPointer address(const void* p) { return reinterpret_cast<CuPointer>(p); }
CuStream as_stream(uint64_t handle) { return reinterpret_cast<CuStream>(handle); }

}  // namespace

PinnedRing::PinnedRing(const CudaDriver& driver, uint32_t slots, uint64_t bytes)
    : driver_(driver), slots_(slots), bytes_(bytes) {}

PinnedRing::~PinnedRing() {
  if (all_ != nullptr) driver_.cuMemFreeHost(all_);
}

uint8_t* PinnedRing::take() {
  if (all_ == nullptr) {
    void* p = nullptr;
    HDP_CU(driver_, cuMemHostAlloc, &p, slots_ * bytes_, kCuHostPortable);
    all_ = static_cast<uint8_t*>(p);
    for (uint32_t i = slots_; i > 0; --i) free_.push_back(all_ + (i - 1) * bytes_);
  }
  if (free_.empty()) return nullptr;
  uint8_t* slot = free_.back();
  free_.pop_back();
  return slot;
}

// The device's context, for calls in a caller's thread. While a thread anywhere captures a graph, others may do what
// we do (it isn't part of the graph) only if they say so.
class Device::Current {
 public:
  explicit Current(const Device& device) : driver_(device.driver_) {
    device.check("cuCtxPushCurrent", driver_.cuCtxPushCurrent_v2(device.context_));
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~Current() {
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
    CuContext popped = nullptr;
    driver_.cuCtxPopCurrent_v2(&popped);
  }

 private:
  const CudaDriver& driver_;
  int mode_ = kCuCaptureRelaxed;
};

// ---- opening and closing -------------------------------------------------------------------------------------------

Device::Device(uint32_t ordinal, std::shared_ptr<Ringer> ringer, void* arena, uint64_t arena_bytes, uint64_t slot_bytes,
               Log log)
    : driver_(CudaDriver::get()), ordinal_(ordinal), ringer_(std::move(ringer)), log_(std::move(log)) {
  const bool waits = wants_stream_waits();
  const int count = driver_.device_count();
  if (ordinal >= static_cast<uint32_t>(count))
    throw Error(HDP_INVALID, "there is no " + name() + "; this process has " + std::to_string(count));
  check("cuDeviceGet", driver_.cuDeviceGet(&device_, static_cast<int>(ordinal)));
  check("cuDevicePrimaryCtxRetain", driver_.cuDevicePrimaryCtxRetain(&context_, device_));
  for (const Direction d : {kIn, kOut}) rings_[d] = std::make_unique<PinnedRing>(driver_, kRingSlots[d], slot_bytes);
  try {
    const Current current(*this);
    open(arena, arena_bytes);
    if (waits) streams_wait_ = test_waits();
  } catch (...) {
    close();
    throw;
  }
  if (waits && !streams_wait_)
    log_(name() + ": streams can't wait for an operation here without stopping our copies; threads wait instead");
}

void Device::open(void* arena, uint64_t arena_bytes) {
  check("cuCtxGetStreamPriorityRange", driver_.cuCtxGetStreamPriorityRange(&least_priority_, &greatest_priority_));
  for (Lane& lane : lanes_) {
    lane.copies = make_stream(greatest_priority_);
    lane.notify = make_stream(least_priority_);
  }
  const int result = driver_.cuMemHostRegister_v2(arena, arena_bytes, kCuHostPortable);
  registered_ = result == kCuSuccess;
  if (registered_)
    arena_ = arena;
  else
    log_(name() + ": shared memory can't be registered, so everything is copied once more on the host: " +
         driver_.text("cuMemHostRegister", result));
}

CuStream Device::make_stream(int priority) {
  CuStream stream = nullptr;
  check("cuStreamCreateWithPriority", driver_.cuStreamCreateWithPriority(&stream, kCuStreamNonBlocking, priority));
  return stream;
}

Device::~Device() { close(); }

// In any order of failure, and where the driver is at its end with the process: nothing is checked.
void Device::close() noexcept {
  if (context_ == nullptr || driver_.cuCtxPushCurrent_v2(context_) != kCuSuccess) return;
  if (registered_) driver_.cuMemHostUnregister(arena_);
  for (auto& ring : rings_) ring.reset();
  for (Lane& lane : lanes_)
    for (CuStream stream : {lane.copies, lane.notify})
      if (stream != nullptr) driver_.cuStreamDestroy_v2(stream);
  for (const auto& [callers, stream] : notify_) driver_.cuStreamDestroy_v2(stream);
  for (CuEvent event : events_) driver_.cuEventDestroy_v2(event);
  CuContext popped = nullptr;
  driver_.cuCtxPopCurrent_v2(&popped);
  driver_.cuDevicePrimaryCtxRelease_v2(device_);
}

void Device::check(const char* function, int result) const {
  if (result != kCuSuccess) throw Error(HDP_SYSTEM, driver_.text(function, result) + " on " + name());
}

// ---- streams that wait ---------------------------------------------------------------------------------------------

void Device::make_words() {
  void* page = nullptr;
  CuPointer device = 0;
  check("cuMemHostAlloc",
        driver_.cuMemHostAlloc(&page, kWordsBytes + kScratchBytes, kCuHostPortable | kCuHostDeviceMap));
  std::memset(page, 0, kWordsBytes + kScratchBytes);
  check("cuMemHostGetDevicePointer", driver_.cuMemHostGetDevicePointer_v2(&device, page, 0));
  auto* first = static_cast<std::atomic<uint32_t>*>(page);
  static_assert(sizeof *first == sizeof(uint32_t));
  words_.resize(kWords);
  for (uint32_t i = 0; i < kWords; ++i) words_[i] = {first + i, device + i * sizeof(uint32_t), 0};
}

// Whether our copies go on while another stream waits for a word. Streams share the hardware's queues, and not every
// driver lets one that waits be overtaken.
bool Device::test_waits() {
  CuPointer scratch = 0;
  if (driver_.cuMemAlloc_v2(&scratch, kScratchBytes) != kCuSuccess) return false;
  bool works = false;
  try {
    make_words();
    works = waits_work(scratch);
  } catch (const Error&) {
  }
  driver_.cuMemFree_v2(scratch);
  if (works)
    for (WaitWord& word : words_) free_words_.push_back(&word);
  return works;
}

bool Device::waits_work(CuPointer scratch) {
  WaitWord& word = words_.front();
  word.value = 1;
  const CuStream held = make_stream(least_priority_);
  const CuEvent done = take_event(), in = take_event(), out = take_event();
  void* host = reinterpret_cast<uint8_t*>(word.at) + kWordsBytes;
  bool works = driver_.cuStreamWaitValue32_v2(held, word.address, word.value, kCuWaitGreaterOrEqual) == kCuSuccess;
  if (works) {
    works = driver_.cuEventRecord(done, held) == kCuSuccess &&
            driver_.cuMemcpyDtoHAsync_v2(host, scratch, kScratchBytes, lanes_[kIn].copies) == kCuSuccess &&
            driver_.cuEventRecord(in, lanes_[kIn].copies) == kCuSuccess &&
            driver_.cuMemcpyHtoDAsync_v2(scratch, host, kScratchBytes, lanes_[kOut].copies) == kCuSuccess &&
            driver_.cuEventRecord(out, lanes_[kOut].copies) == kCuSuccess && until(in) && until(out) &&
            driver_.cuEventQuery(done) == kCuNotReady;
    word.at->store(word.value, std::memory_order_release);
    works = until(done) && works;
  }
  settle();
  driver_.cuStreamDestroy_v2(held);
  for (CuEvent event : {done, in, out}) give(event);
  return works;
}

bool Device::until(CuEvent event) {
  const auto end = std::chrono::steady_clock::now() + kTestTime;
  int result;
  while ((result = driver_.cuEventQuery(event)) == kCuNotReady && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  return result == kCuSuccess;
}

WaitWord* Device::take_word() {
  if (!streams_wait_ || free_words_.empty()) return nullptr;
  WaitWord* word = free_words_.back();
  free_words_.pop_back();
  ++word->value;
  return word;
}

bool Device::hold(uint64_t stream, const WaitWord& word) {
  const Current current(*this);
  const int result = driver_.cuStreamWaitValue32_v2(as_stream(stream), word.address, word.value, kCuWaitGreaterOrEqual);
  if (result == kCuSuccess) return true;
  if (streams_wait_.exchange(false))
    log_(name() + ": threads wait for operations from now on: " + driver_.text("cuStreamWaitValue32", result));
  return false;
}

// ---- events --------------------------------------------------------------------------------------------------------

CuEvent Device::take_event() {
  {
    std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      CuEvent event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  CuEvent event = nullptr;
  check("cuEventCreate", driver_.cuEventCreate(&event, kCuEventDisableTiming));
  return event;
}

void Device::give(CuEvent event) {
  std::lock_guard lock(mutex_);
  events_.push_back(event);
}

bool Device::fired(CuEvent event) {
  const int result = driver_.cuEventQuery(event);
  if (result == kCuNotReady) return false;
  check("cuEventQuery", result);
  return true;
}

CuEvent Device::record(uint64_t stream) {
  const Current current(*this);
  int capturing = 0;
  check("cuStreamIsCapturing", driver_.cuStreamIsCapturing(as_stream(stream), &capturing));
  if (capturing != 0)
    throw Error(HDP_INVALID,
                "the stream of the buffers is being captured into a CUDA graph, in which no collective "
                "operation can be: it moves data on the host");
  CuEvent event = take_event();
  try {
    check("cuEventRecord", driver_.cuEventRecord(event, as_stream(stream)));
    if (!fired(event)) {
      CuStream notify;
      {
        std::lock_guard lock(mutex_);
        CuStream& theirs = notify_[stream];
        if (theirs == nullptr) theirs = make_stream(least_priority_);
        notify = theirs;
      }
      ring_after(notify, event);
      return event;
    }
  } catch (const Error&) {
    give(event);
    throw;
  }
  give(event);
  return nullptr;
}

void Device::ring_after(CuStream notify, CuEvent event) {
  check("cuStreamWaitEvent", driver_.cuStreamWaitEvent(notify, event, 0));
  auto ours = std::make_unique<std::shared_ptr<Ringer>>(ringer_);
  check("cuLaunchHostFunc", driver_.cuLaunchHostFunc(notify, ring_and_forget, ours.get()));
  static_cast<void>(ours.release());  // the function's
}

// ---- the worker's copies -------------------------------------------------------------------------------------------

void Device::enter() {
  check("cuCtxSetCurrent", driver_.cuCtxSetCurrent(context_));
  int mode = kCuCaptureRelaxed;
  driver_.cuThreadExchangeStreamCaptureMode(&mode);
}

void Device::fetch(void* host, const void* device, uint64_t bytes) {
  check("cuMemcpyDtoHAsync", driver_.cuMemcpyDtoHAsync_v2(host, address(device), bytes, lanes_[kIn].copies));
}

void Device::put(void* device, const void* host, uint64_t bytes) {
  check("cuMemcpyHtoDAsync", driver_.cuMemcpyHtoDAsync_v2(address(device), host, bytes, lanes_[kOut].copies));
}

void Device::copy(void* to, const void* from, uint64_t bytes) {
  check("cuMemcpyDtoDAsync", driver_.cuMemcpyDtoDAsync_v2(address(to), address(from), bytes, lanes_[kOut].copies));
}

Device::Flight Device::mark(Direction direction) {
  Lane& lane = lanes_[direction];
  const CuEvent event = take_event();
  const int result = driver_.cuEventRecord(event, lane.copies);
  if (result != kCuSuccess) {
    give(event);
    check("cuEventRecord", result);
  }
  lane.flights.push_back({event, ++lane.marked});
  return lane.flights.back();
}

bool Device::landed(Direction direction, const Flight& flight) {
  Lane& lane = lanes_[direction];
  if (lane.ended >= flight.number) return true;
  if (!fired(flight.event)) return false;
  lane.ended = flight.number;
  while (!lane.flights.empty() && lane.flights.front().number <= lane.ended) {
    give(lane.flights.front().event);
    lane.flights.pop_front();
  }
  return true;
}

void Device::arm() {
  for (Lane& lane : lanes_) {
    if (lane.flights.empty() || lane.armed >= lane.flights.front().number) continue;
    lane.armed = lane.flights.front().number;
    ring_after(lane.notify, lane.flights.front().event);
  }
}

void Device::settle() noexcept {
  for (Lane& lane : lanes_) {
    driver_.cuStreamSynchronize(lane.copies);  // where it fails, nothing runs any more
    for (const Flight& flight : lane.flights) give(flight.event);
    lane.flights.clear();
    lane.ended = lane.marked;
  }
}

}  // namespace hdp
