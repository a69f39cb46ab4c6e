// What happened when, as a file in Chrome's trace event format, for Perfetto and chrome://tracing.
//
// A file is one JSON array with an event a line, so that what a killed process leaves lacks no more than the end of its
// last line and the bracket. Events go into a buffer, and a thread of the timeline's own writes it, some times a
// second: an operation waits for no disk. What finds the buffer full is dropped and counted; a file that is full, or
// can't be written, ends the timeline with a line for the log.
//
// A host is a process of the trace, a rank or a server a thread of it: its *row*. Operations overlap, which spans of
// one thread can't, so a row has as many lanes as it needs, for whole operations and for each of their phases. Times
// are CLOCK_REALTIME's, read once, and go on by the steady clock: files can be merged as far as the hosts' clocks
// agree.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "descriptor.h"
#include "operation.h"
#include "trace_json.h"

namespace hdp {

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  struct Row {
    uint32_t host;
    std::string host_name;
    uint32_t id;  // of the thread; neither process nor thread may be 0, which viewers take for the idle ones
    std::string name;
    static Row of_rank(const Topology& topology, uint32_t rank);
    static Row of_server(const Topology& topology);
  };
  struct Span {
    std::string_view name;
    Clock::time_point begin, end;
  };

  // Writes to a duplicate of `fd`. `log` gets what is wrong with it, from a thread of its own; null: nobody does.
  Timeline(int fd, Row row, hdp_log_function log);  // throws SystemError
  // Writes what is left, and the bracket.
  ~Timeline();

  // The three are for one thread at a time.
  // An operation, and what it did meanwhile: `parts` lie within it and one after the other, or within each other.
  void operation(const Operation& operation, const Group& participants, const Span& whole, const Fields& more,
                 std::span<const Span> parts = {});
  // What an operation did in one of its phases, which overlap each other and those of other operations: on a row of
  // its own. busy: how long it really worked meanwhile; zero: not known.
  enum class Phase : uint32_t { kWhole, kIn, kExchange, kOut };
  void phase(Phase phase, const Operation& operation, const Span& span, Clock::duration busy = {});
  // The value of a counter from now on.
  void counter(std::string_view name, uint64_t value);

 private:
  int64_t micros(Clock::time_point when) const;
  uint32_t lane(Phase phase, int64_t begin, int64_t end);
  void name_lane(uint32_t lane, const std::string& name);
  uint32_t thread_of(uint32_t lane) const;
  void begin(std::string& out, const char* phase, std::string_view name, uint32_t thread) const;
  void metadata(const char* what, uint32_t thread, const Fields& args);
  void span(const Span& span, std::string_view category, uint32_t thread, std::string_view args, std::string_view more);
  void add();
  void write_out();
  bool write_all(const std::string& text);
  void complain(const std::string& why) const;

  const Descriptor fd_;
  const Row row_;
  const std::string in_row_;  // what every event of the row says before its thread
  const hdp_log_function log_;
  const int64_t epoch_;  // microseconds since 1970 at `origin_`
  const Clock::time_point origin_;
  std::array<std::vector<int64_t>, 4> lane_ends_;  // of each phase: when the last span of each ends
  std::string events_;                             // of whoever calls, until `add`

  std::mutex mutex_;  // of what is below, but for the writer's own
  std::condition_variable wake_;
  std::string text_;
  uint64_t dropped_ = 0;
  bool closing_ = false, ended_ = false;
  uint64_t written_ = 0;  // the writer's
  std::thread writer_;
};

}  // namespace hdp
