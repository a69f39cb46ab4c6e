// A CUDA device, as a communicator uses it: streams for copies, pinned memory, events, and words that streams wait on.
//
// The device's primary context, which is the one that frameworks use, is retained. Two streams of the highest priority
// carry the copies, one to the host (kIn: into an operation) and one to the device (kOut). Only copies that can run at
// once are put into them, so they never wait for anybody's kernels, and synchronising them takes no longer than the
// copies. The arena is registered, so that slots are the ends of copies; a few more pinned buffers (PinnedRing) are for
// data that the host has to look at first.
//
// Whoever waits for a copy or for the caller's stream sleeps on the communicator's bell: a stream of its own waits for
// the event and then runs a host function that rings it. Host functions would stop the stream that they are put into.
//
// A stream that waits for an operation (hdp_stream_wait) waits for a *word* of pinned memory to reach the operation's
// number. A word serves one operation after the other and only counts up, so a stream that looks late is not held. Its
// page is never freed, since a stream may have to look at it after the communicator is gone.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "ringer.h"

namespace hdp {

enum Direction : uint32_t { kIn = 0, kOut = 1 };

struct WaitWord {
  std::atomic<uint32_t>* at = nullptr;
  CuPointer address = 0;  // for the device
  uint32_t value = 0;     // of the operation that has it, or had it last
};

// Pinned buffers of one size, made at the first use.
class PinnedRing {
 public:
  PinnedRing(const CudaDriver& driver, uint32_t slots, uint64_t bytes);
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;
  uint8_t* take();  // null: all are in use; throws Error where there can be none
  void give(uint8_t* slot) { free_.push_back(slot); }

 private:
  const CudaDriver& driver_;
  const uint32_t slots_;
  const uint64_t bytes_;
  uint8_t* all_ = nullptr;
  std::vector<uint8_t*> free_;
};

class Device {
 public:
  // A copy in a stream of ours, or several, up to an event.
  struct Flight {
    CuEvent event = nullptr;
    uint64_t number = 0;  // in its stream, where they end in order
  };
  using Log = std::function<void(const std::string&)>;

  // Throws Error. `log` takes what the device can't do, now or in a call of `hold`.
  Device(uint32_t ordinal, std::shared_ptr<Ringer> ringer, void* arena, uint64_t arena_bytes, uint64_t slot_bytes,
         Log log);
  ~Device();  // `settle` was called
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // For callers, from any thread.
  CuEvent record(uint64_t stream);  // what is in the caller's stream now; null: it is done. Rings when it is.
  // Let the caller's stream wait. False: it can't.
  bool hold(uint64_t stream, const WaitWord& word);

  // For the worker's thread, in whose calls `enter` comes first.
  void enter();
  bool fired(CuEvent event);
  void give(CuEvent event);
  void fetch(void* host, const void* device, uint64_t bytes);
  void put(void* device, const void* host, uint64_t bytes);
  void copy(void* to, const void* from, uint64_t bytes);  // on the device, in the stream of `put`
  Flight mark(Direction direction);                       // the end of what was put into the stream since the last one
  bool landed(Direction direction, const Flight& flight);
  bool flying() const { return !lanes_[kIn].flights.empty() || !lanes_[kOut].flights.empty(); }
  void arm();              // ring when the next copy of either stream ends
  void settle() noexcept;  // wait for all copies
  bool registered() const { return registered_; }
  PinnedRing& ring(Direction direction) { return *rings_[direction]; }

  // Under the communicator's mutex.
  WaitWord* take_word();  // null: streams can't wait, or all words are in use
  void give_word(WaitWord* word) { free_words_.push_back(word); }

  std::string name() const { return "CUDA device " + std::to_string(ordinal_); }

 private:
  struct Lane {
    CuStream copies = nullptr, notify = nullptr;
    std::deque<Flight> flights;  // not known to have ended
    uint64_t marked = 0, ended = 0, armed = 0;
  };
  class Current;

  void open(void* arena, uint64_t arena_bytes);
  void make_words();
  bool waits_work(CuPointer scratch);
  bool test_waits();
  bool until(CuEvent event);
  CuEvent take_event();
  CuStream make_stream(int priority);
  void ring_after(CuStream notify, CuEvent event);
  void check(const char* function, int result) const;
  void close() noexcept;

  const CudaDriver& driver_;
  const uint32_t ordinal_;
  const std::shared_ptr<Ringer> ringer_;
  const Log log_;
  CuDevice device_ = 0;
  CuContext context_ = nullptr;
  int least_priority_ = 0, greatest_priority_ = 0;
  std::array<Lane, 2> lanes_;
  std::array<std::unique_ptr<PinnedRing>, 2> rings_;
  void* arena_ = nullptr;
  bool registered_ = false;
  std::vector<WaitWord> words_;
  std::vector<WaitWord*> free_words_;
  std::atomic<bool> streams_wait_{false};

  std::mutex mutex_;  // the two below
  std::vector<CuEvent> events_;
  // Of each of the caller's streams: in one for all, an event that is late would hide those of other streams.
  std::map<uint64_t, CuStream> notify_;
};

}  // namespace hdp
