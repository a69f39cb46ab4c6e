// What the fake driver's functions share: contexts, streams, events, and who has which memory.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace hdp::fake {

enum Result : int {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotReady = 600,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kNotSupported = 801,
  kUnknown = 999,
};

[[noreturn]] void broken(const std::string& what);

struct Context {
  int device;
  int retained = 0;
};

// What an event stands for: how often it was recorded, and how many of these records are done.
struct EventState {
  uint64_t recorded = 0, done = 0;
};
struct Event {
  Context* context;
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

struct StreamState {
  std::deque<std::function<void()>> queue;
  std::condition_variable filled;  // or closed
  uint64_t put = 0, done = 0;
  bool closed = false;
};
struct Stream {
  Context* context;
  std::shared_ptr<StreamState> state = std::make_shared<StreamState>();
};

enum class Kind { kDevice, kPinned, kRegistered };
struct Range {
  Kind kind;
  uint64_t bytes;
  uint8_t* view;  // where the host finds it
  uint64_t flying = 0;
};

struct Knobs {
  int devices = 1;
  double gbps = 0;
  std::chrono::microseconds latency{0};
  std::set<std::string> refused;
  bool stuck = false;
};

// One mutex for all of it: this is for tests.
struct State {
  std::mutex mutex;
  std::condition_variable changed;  // something is done
  bool initialized = false;
  Knobs knobs;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, uint64_t> failures;  // the call, counted down
  std::vector<std::unique_ptr<Context>> contexts;
  std::map<Context*, Stream*> legacy;
  std::map<uintptr_t, Range> ranges;
  std::set<void*> streams, events;
  uint64_t flying = 0;
  uint64_t held = 0;  // streams that wait for a word

  Range* find(uintptr_t at, uint64_t bytes, uintptr_t* begin = nullptr);  // that holds all of it
};

// Never destroyed: streams run until the process ends.
State& state();
// Contexts of this thread, the current one last.
std::vector<Context*>& stack();

// Start a stream's thread.
void run(const std::shared_ptr<StreamState>& stream);
// Under the mutex.
void push(StreamState& stream, std::function<void()> work);
// The stream of a handle, 0 being the legacy one; null: there is none. Under the mutex.
Stream* stream_of(void* handle);

// Counts the call. Not kOk: it fails with that.
int enter(const char* function, bool needs_context = true);

}  // namespace hdp::fake
