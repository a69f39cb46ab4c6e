#include "fake_cuda_state.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "fake_cuda.h"

namespace hdp::fake {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

template <class F>
void each(const std::string& list, F f) {
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    f(list.substr(at, end - at));
    at = end + 1;
  }
}

}  // namespace

void broken(const std::string& what) {
  std::fprintf(stderr, "fake CUDA driver: %s\n", what.c_str());
  std::abort();
}

State& state() {
  static State* s = [] {
    auto* made = new State;
    Knobs& k = made->knobs;
    if (const auto v = variable("HDP_FAKE_CUDA_DEVICES"); !v.empty()) k.devices = std::stoi(v);
    if (const auto v = variable("HDP_FAKE_CUDA_GBPS"); !v.empty()) k.gbps = std::stod(v);
    if (const auto v = variable("HDP_FAKE_CUDA_LATENCY_US"); !v.empty())
      k.latency = std::chrono::microseconds(std::stoll(v));
    k.stuck = variable("HDP_FAKE_CUDA_STUCK") == "1";
    each(variable("HDP_FAKE_CUDA_REFUSE"), [&](const std::string& name) { k.refused.insert(name); });
    each(variable("HDP_FAKE_CUDA_FAIL"), [&](const std::string& item) {
      const size_t colon = item.find(':');
      made->failures[item.substr(0, colon)] = std::stoull(item.substr(colon + 1));
    });
    for (int i = 0; i < k.devices; ++i) made->contexts.push_back(std::make_unique<Context>(Context{i}));
    return made;
  }();
  return *s;
}

std::vector<Context*>& stack() {
  thread_local std::vector<Context*> contexts;
  return contexts;
}

Range* State::find(uintptr_t at, uint64_t bytes, uintptr_t* begin) {
  auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return nullptr;
  auto& [first, range] = *std::prev(next);
  if (at + bytes > first + range.bytes) return nullptr;
  if (begin != nullptr) *begin = first;
  return &range;
}

void push(StreamState& stream, std::function<void()> work) {
  stream.queue.push_back(std::move(work));
  ++stream.put;
  stream.filled.notify_one();
}

void run(const std::shared_ptr<StreamState>& stream) {
  // Detached: a stream outlives its handle until its queue is empty, and some end with the process.
  std::thread([stream] {
    State& s = state();
    std::unique_lock lock(s.mutex);
    for (;;) {
      stream->filled.wait(lock, [&] { return !stream->queue.empty() || stream->closed; });
      if (stream->queue.empty()) return;
      const std::function<void()> work = std::move(stream->queue.front());
      stream->queue.pop_front();
      lock.unlock();
      work();
      lock.lock();
      ++stream->done;
      s.changed.notify_all();
    }
  }).detach();
}

Stream* stream_of(void* handle) {
  State& s = state();
  if (handle != nullptr) return s.streams.contains(handle) ? static_cast<Stream*>(handle) : nullptr;
  Stream*& legacy = s.legacy[stack().back()];
  if (legacy == nullptr) {
    legacy = new Stream{stack().back()};
    run(legacy->state);
  }
  return legacy;
}

int enter(const char* function, bool needs_context) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  ++s.calls[function];
  if (!s.initialized && std::string(function) != "cuInit") return kNotInitialized;
  if (s.knobs.refused.contains(function)) return kNotSupported;
  if (auto found = s.failures.find(function); found != s.failures.end() && --found->second == 0) {
    s.failures.erase(found);
    return kUnknown;
  }
  return needs_context && (stack().empty() || stack().back() == nullptr) ? kInvalidContext : kOk;
}

}  // namespace hdp::fake

extern "C" {

void fake_cuda_fail(const char* function, uint64_t nth) {
  auto& s = hdp::fake::state();
  std::lock_guard lock(s.mutex);
  s.failures[function] = nth;
}

uint64_t fake_cuda_calls(const char* function) {
  auto& s = hdp::fake::state();
  std::lock_guard lock(s.mutex);
  return s.calls[function];
}

uint64_t fake_cuda_flying() {
  auto& s = hdp::fake::state();
  std::lock_guard lock(s.mutex);
  return s.flying;
}
}
