// A rank's end of the library.
//
// Callers only queue operations and wait. A *worker* thread moves the data: it sleeps on the rank's bell, takes grants
// from the arena's ring, adds the rank's data to chunks whose turn it is and copies results out, for all operations in
// transfer at once. Small operations (eager.h) are moved by whoever is awake: the caller that starts or awaits one, or
// the worker. A *listener* thread blocks on the socket and takes poison from the server (or its end). Only the
// worker touches the callers' buffers and completes operations, so that a buffer is the caller's again exactly when
// the operation is complete. Operations on device memory go the same way, by copies that the device makes
// (comm_device.cc).
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "arena.h"
#include "cut.h"
#include "descriptor.h"
#include "device.h"
#include "message.h"
#include "timeline.h"
#include "topology.h"

namespace hdp {

class Comm {
 public:
  Comm(const hdp_layout& layout, uint32_t rank, int socket_fd, int arena_fd, int event_fd);  // throws Error
  ~Comm();
  // Leave: operations that aren't complete fail, threads end. Waiting callers return.
  void close();

  uint64_t add_group(std::vector<uint32_t> members, const std::string& name);
  uint64_t submit(const hdp_request& request);
  // HDP_PENDING, or the operation's status and, where that is an error, its text.
  std::pair<hdp_status, std::string> wait(uint64_t ticket, std::chrono::milliseconds timeout);
  // hdp_stream_wait: HDP_OK, HDP_PENDING, or the status of an operation that has failed.
  std::pair<hdp_status, std::string> stream_wait(uint64_t ticket, uint64_t stream);
  std::optional<uint64_t> next_done(std::chrono::milliseconds timeout);  // throws Error once interrupted
  void release(uint64_t ticket);
  void interrupt();
  void log_to(hdp_log_function log);
  // From now on.
  void trace(int timeline_fd, hdp_log_function log);

 private:
  using Clock = std::chrono::steady_clock;
  struct Failure {
    hdp_status status;
    std::string text;
  };
  // Of an operation on device memory.
  struct DevicePart {
    struct Chunk {
      uint64_t number = 0;
      Device::Flight flight;
      uint8_t* pinned = nullptr;    // null: the copy's end is the slot
      Clock::time_point started{};  // for the timeline
    };
    Device* device = nullptr;
    CuEvent ready = nullptr;  // the caller's stream, when it was called; null: what is in it is done
    std::chrono::milliseconds timeout{}, stall{};
    bool pinned_in = false, pinned_out = false;  // through pinned memory of ours
    uint64_t fetched = 0, put = 0;               // chunks whose copies were started
    std::deque<Chunk> ins, outs;                 // those of them that are on their way
    std::optional<Device::Flight> own;           // a broadcast's root copies on the device
    WaitWord* word = nullptr;                    // that streams wait for, and the value of this operation
    uint32_t value = 0;

    bool idle() const { return ins.empty() && outs.empty() && !own; }
  };
  struct Op {
    Operation operation;
    std::shared_ptr<const Group> group;  // the participants
    uint64_t ticket = 0;
    const uint8_t* in = nullptr;
    uint8_t* out = nullptr;
    bool notify = false;
    Clock::time_point started, deadline = Clock::time_point::max(), stall_at = Clock::time_point::max();
    uint32_t reports = 0;   // of its expiry, since something moved
    uint64_t progress = 0;  // of the arena, at the last one
    // transfer
    Grant grant{};
    bool granted = false;
    uint32_t place = 0;  // among the local contributors
    uint32_t contributors = 0;
    bool contributes = true;
    bool copies_out = true;
    bool streams = false;   // the result is too large for the caches
    bool straight = false;  // the last contributor of a local sum has the result in its hands
    uint64_t next_in = 0, next_out = 0;
    // by cells
    bool small = false;  // it may complete so
    bool announced = false;
    Clock::time_point announce_at = Clock::time_point::max();
    EagerCell *cell = nullptr, *first = nullptr;  // ours; that of the first member on this host
    uint64_t first_generation = 0;                // of `first`, while it is this operation's
    std::unique_ptr<DevicePart> on;               // null: host memory
    // for the timeline
    bool traced = false;
    Clock::time_point granted_at, first_out;             // the latter: of the first chunk; the epoch: not yet
    Clock::time_point in_from, in_to, out_from, out_to;  // own data into slots; results out of them
    Clock::duration in_busy{}, out_busy{};               // in copies and sums alone
    uint32_t waiters = 0;                                // threads in `wait`, and since when there are some
    Clock::time_point waiting_since;
    Clock::duration waited{};  // by earlier ones
    // outcome
    hdp_status status = HDP_PENDING;
    std::string text;

    // Its time begins.
    void begin_time(std::chrono::milliseconds timeout, std::chrono::milliseconds stall) {
      started = Clock::now();
      deadline = started + timeout;
      stall_at = stall.count() == 0 ? Clock::time_point::max() : started + stall;
    }
    Clock::time_point alarm() const { return std::min({deadline, stall_at, announce_at}); }
  };

  struct OwnCell {
    EagerCell* cell;
    bool held = false;       // by an operation in flight, or for good after an error
    bool published = false;  // others may still copy out of it
  };

  std::shared_ptr<Op> make_op(const hdp_request& request, Device* device, CuEvent ready);
  void work();
  void listen();
  void take_grants();
  bool apply_failures();
  bool check_alarms(Clock::time_point now);
  void ring_alarm(Op& op, Clock::time_point now);
  void fail_all(hdp_status status, const std::string& text);
  bool sane(const Op& op, const Grant& grant);
  int64_t sleep_ns(Clock::time_point now);
  void begin(Op& op, const Grant& grant);
  bool step(Op& op);
  bool contribute(Op& op);
  bool copy_out(Op& op);
  void add_chunk(Op& op, uint64_t q, uint64_t chunk);
  void add_to_sum(Op& op, uint64_t q, const Run& run, const uint8_t* in, bool last);
  void finish_sum(Op& op, uint64_t q, uint64_t elements);
  void in_runs(const Op& op, uint64_t chunk);
  void out_runs(const Op& op, uint64_t chunk);
  void own_run(const Op& op, uint64_t chunk);
  void contributed(Op& op, uint64_t q);
  void copied(Op& op, uint64_t q);
  void publish(const Op& op, uint64_t q);
  void wake_first(const Op& op);
  void complete(Op& op, hdp_status status, const std::string& text);
  void settle(Op& op, hdp_status status, const std::string& text);  // the same, under the mutex
  void announce(Op& op);
  void send_withdrawals();
  // comm_device.cc
  Device& open_device(uint32_t ordinal);
  void enter(Device& device);
  bool announce_ready();
  void begin_device(Op& op);
  bool step_device(Op& op);
  bool fetch_chunk(Op& op);
  bool deliver_chunk(Op& op);
  bool put_chunk(Op& op);
  bool land_chunk(Op& op);
  bool land_own(Op& op);
  bool watch_copies(Clock::time_point moved);
  void settle_copies();
  void device_failed(const std::string& text);
  void free_streams(Op& op);  // that wait for it; under the mutex
  // comm_eager.cc
  void begin_small(const std::shared_ptr<Op>& op);
  bool enter_cell(Op& op);
  void combine_cells(const Op& op, const std::vector<EagerCell*>& cells);
  void settle_small();
  bool copy_result(Op& op);
  OwnCell& own_cell(const Op& op);
  void leave_cell(Op& op);
  void wait_small(std::unique_lock<std::mutex>& lock, const Op& op, Clock::time_point until);
  void ring_own_waiters();
  void count_call(uint64_t group);
  // comm_timeline.cc
  void note_first_out(Op& op);
  static void note_in(Op& op, Clock::time_point from);
  static void note_out(Op& op, Clock::time_point from);
  static void note_waiter(Op& op, bool comes);  // these under the mutex
  static Clock::duration waited_for(const Op& op, Clock::time_point now);
  void record(const Op& op);  // that it has ended
  // A server that stands still for `patience` is given up, and everything fails.
  void send(Type type, const std::string& body, std::chrono::milliseconds patience = std::chrono::seconds(10));
  void ring_server();
  Bell& bell() { return arena_.bell(local_rank_); }

  const Topology topology_;
  const uint32_t rank_, local_rank_;
  Descriptor socket_;
  Arena arena_;
  Descriptor event_;
  const std::shared_ptr<Ringer> ringer_ = std::make_shared<Ringer>(bell());

  std::mutex mutex_;  // all below
  std::condition_variable done_;
  std::map<uint64_t, std::shared_ptr<const Group>> groups_;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> counters_;  // (group, tag) -> operations so far
  std::unordered_map<uint64_t, std::shared_ptr<Op>> ops_;       // by ticket, until released and complete
  std::map<uint64_t, std::shared_ptr<Op>> waiting_;             // submitted, not granted
  std::vector<std::shared_ptr<Op>> small_;                      // those of them that may complete by cells
  std::vector<OwnCell> own_cells_;
  std::vector<Key> withdrawals_;  // to send: announced, and then complete by cells
  std::map<uint64_t, Failure> failed_groups_;
  std::optional<Failure> failed_;                            // all groups
  Clock::time_point next_alarm_ = Clock::time_point::max();  // no later than any operation's
  bool failures_changed_ = false;
  std::deque<uint64_t> notify_;
  uint64_t next_ticket_ = 1;
  bool closing_ = false;
  bool interrupted_ = false;
  std::string abandoned_;  // an operation that wasn't complete at the end
  std::unique_ptr<Timeline> timeline_;
  std::atomic<hdp_log_function> log_{nullptr};
  std::vector<std::shared_ptr<Op>> unready_;  // those of `waiting_` whose input isn't written yet

  std::mutex devices_mutex_;
  std::map<uint32_t, std::unique_ptr<Device>> devices_;  // by ordinal; under it or `mutex_`

  std::mutex send_mutex_;
  bool mute_ = false;                               // under it: nothing can be sent any more
  std::map<uint64_t, std::shared_ptr<Op>> active_;  // in transfer, by first chunk; the worker's alone
  std::vector<Run> runs_;                           // the worker's scratch
  Device* entered_ = nullptr;                       // whose context the worker has
  bool pinned_taken_ = false;                       // by operations that were granted before
  std::thread worker_, listener_;
};

}  // namespace hdp
