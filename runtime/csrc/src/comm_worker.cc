// The worker of a communicator: the thread that moves the data.
#include <algorithm>

#include "comm.h"
#include "kernels.h"

namespace hdp {
namespace {

using std::chrono::milliseconds;

// An operation whose time is up is reported to the server again after this, should the first report have crossed a
// grant.
constexpr milliseconds kExpiryRepeat{3000};
// The same, of an operation in transfer, which fails where nothing moves from one report to the next.
constexpr milliseconds kStillRepeat{1000};
// A server that works answers within its query time; one that has not after so many reports never will.
constexpr uint32_t kExpiryReports = 4;
// Results from so many bytes on are written past the caches, which they would only sweep: about half the time.
constexpr uint64_t kStreamed = 8 << 20;
constexpr milliseconds kDeviceCheck{100};

}  // namespace

// ---- the worker ----------------------------------------------------------------------------------------------------

void Comm::work() {
  Clock::time_point last_moved;
  for (;;) {
    const uint32_t seen = bell().seq.load();
    bool moved = apply_failures();
    {
      std::lock_guard lock(mutex_);
      if (closing_) break;
    }
    take_grants();
    {
      std::lock_guard lock(mutex_);
      settle_small();
    }
    send_withdrawals();
    if (announce_ready()) moved = true;
    pinned_taken_ = false;
    for (auto it = active_.begin(); it != active_.end();) {
      Op& op = *it->second;
      while (step(op)) moved = true;
      const bool complete = op.next_in == op.grant.chunks && (!op.copies_out || op.next_out == op.grant.chunks) &&
                            (!op.on || op.on->idle());
      if (complete) this->complete(op, HDP_OK, {});
      it = complete ? active_.erase(it) : std::next(it);
    }
    if (moved) {
      if (entered_ != nullptr) last_moved = Clock::now();
      continue;
    }
    if (entered_ != nullptr && watch_copies(last_moved)) continue;
    const auto now = Clock::now();
    if (!check_alarms(now)) wait_bell(bell(), seen, sleep_ns(now));
  }
  settle_copies();
  {
    std::lock_guard lock(mutex_);
    settle_small();
  }
  send_withdrawals();  // before the word that we leave
  std::lock_guard lock(mutex_);
  for (auto* table : {&waiting_, &active_})
    for (auto& [number, op] : *table)
      if (op->status == HDP_PENDING) {
        abandoned_ = op->operation.name();
        op->status = HDP_PEER_LOST;
        op->text = op->operation.name() + ": this rank closed its communicator before it was complete";
        if (timeline_) record(*op);
        free_streams(*op);
      }
  small_.clear();
  done_.notify_all();
  ring_own_waiters();
}

void Comm::take_grants() {
  GrantRing& ring = arena_.ring(local_rank_);
  const uint64_t first = ring.tail.load(std::memory_order_relaxed);
  uint64_t tail = first;
  for (; tail != ring.head.load(std::memory_order_acquire); ++tail) {
    const Grant grant = ring.items[tail % kGrantRing];
    std::shared_ptr<Op> op;
    {
      std::lock_guard lock(mutex_);
      auto found = waiting_.find(grant.ticket);
      if (found == waiting_.end()) continue;  // it failed before
      op = found->second;
      waiting_.erase(found);
      leave_cell(*op);
    }
    if (!sane(*op, grant)) {
      const std::string text = op->operation.name() + ": the server granted another operation than this rank called";
      complete(*op, HDP_SYSTEM, text);
      fail_all(HDP_SYSTEM, text);
      ring_bell(bell());
      continue;
    }
    begin(*op, grant);
    if (grant.chunks == 0)
      complete(*op, HDP_OK, {});
    else
      active_[grant.base] = op;
  }
  if (tail == first) return;
  // A Dekker pair: the rank writes tail then reads head, the server writes head then reads tail, all sequentially
  // consistent. So either the server sees the room, or the rank sees that the ring was full, and wakes the server.
  ring.tail.store(tail);
  if (ring.head.load() - first >= kGrantRing) ring_server();
}

// A group's failure is for what was not granted before it; a failure of all groups is for everything.
bool Comm::apply_failures() {
  std::vector<std::pair<std::shared_ptr<Op>, Failure>> ended;
  std::optional<Failure> failed;
  std::map<uint64_t, Failure> groups;
  {
    std::lock_guard lock(mutex_);
    if (!failures_changed_) return false;
    failures_changed_ = false;
    failed = failed_;  // a failure that comes from here on may have grants before it
    groups = failed_groups_;
  }
  take_grants();  // the server wrote the grants that came before the poison first
  {
    std::lock_guard lock(mutex_);
    settle_small();  // what is complete doesn't fail
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      auto group = groups.find(it->second->group->id);
      if (!failed && group == groups.end()) {
        ++it;
        continue;
      }
      ended.emplace_back(it->second, group != groups.end() ? group->second : *failed);
      std::erase(small_, it->second);  // its cell stays as it is
      it = waiting_.erase(it);
    }
    if (failed)
      for (auto& [base, op] : active_) ended.emplace_back(op, *failed);
  }
  if (failed) {
    settle_copies();
    active_.clear();
  }
  for (auto& [op, failure] : ended) complete(*op, failure.status, failure.text);
  return !ended.empty();
}

// Tell the server of operations that are slow or whose time is up. False: of none.
bool Comm::check_alarms(Clock::time_point now) {
  std::vector<std::shared_ptr<Op>> due, late;
  {
    std::lock_guard lock(mutex_);
    if (now < next_alarm_) return false;
    next_alarm_ = Clock::time_point::max();
    for (const auto* table : {&waiting_, &active_})
      for (const auto& [number, op] : *table) {
        if (now >= op->alarm()) due.push_back(op);
        if (now >= op->announce_at) {
          op->announce_at = Clock::time_point::max();
          op->announced = true;
          if (op->cell == nullptr) leave_cell(*op);  // from now on it goes without
          late.push_back(op);
        }
        next_alarm_ = std::min(next_alarm_, op->alarm());
      }
  }
  for (const auto& op : late) announce(*op);
  for (const auto& op : due)
    if (now >= op->deadline || now >= op->stall_at) ring_alarm(*op, now);
  return true;
}

void Comm::announce(Op& op) {
  send(Type::kAnnounce, Writer().operation(op.operation).u64(op.ticket).u32(op.cell != nullptr).take());
}

void Comm::send_withdrawals() {
  std::vector<Key> keys;
  {
    std::lock_guard lock(mutex_);
    keys.swap(withdrawals_);
  }
  for (const Key& key : keys) send(Type::kWithdraw, Writer().key(key).take());
}

// A slow operation is told after its stall time, then after twice as long, and so on.
void Comm::ring_alarm(Op& op, Clock::time_point now) {
  const auto in_ms = [](Clock::duration d) {
    return static_cast<uint64_t>(std::max<int64_t>(0, std::chrono::duration_cast<milliseconds>(d).count()));
  };
  const uint64_t waited = in_ms(now - op.started);
  if (now >= op.deadline) {
    const uint64_t progress = arena_.progress();
    if (std::exchange(op.progress, progress) != progress) op.reports = 0;
    if (++op.reports > kExpiryReports)
      fail_all(HDP_TIMEOUT, op.operation.name() + ": the server of this host does not answer");
    send(Type::kExpired, Writer().key(op.operation.key).u64(waited).take());
    op.deadline = now + (op.granted ? kStillRepeat : kExpiryRepeat);
    op.stall_at = Clock::time_point::max();
  } else {
    op.stall_at = now + (now - op.started);
    send(Type::kStalled, Writer().key(op.operation.key).u64(waited).u64(in_ms(op.deadline - now)).take());
  }
}

// Nothing comes from the server any more, not even what is wrong.
void Comm::fail_all(hdp_status status, const std::string& text) {
  std::lock_guard lock(mutex_);
  if (!failed_) failed_ = Failure{status, text};
  failures_changed_ = true;
}

int64_t Comm::sleep_ns(Clock::time_point now) {
  std::lock_guard lock(mutex_);
  auto until = next_alarm_;
  // A driver that has failed calls nobody: look at it from time to time.
  const bool flying = std::any_of(active_.begin(), active_.end(),
                                  [](const auto& item) { return item.second->on && !item.second->on->idle(); });
  if (flying || !unready_.empty()) until = std::min(until, now + kDeviceCheck);
  if (until == Clock::time_point::max()) return -1;
  return std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(until - now).count());
}

// Whether chunks of that cut stay within a slot and within the caller's arrays.
bool Comm::sane(const Op& op, const Grant& grant) {
  const Operation& o = op.operation;
  const Cut cut{grant.chunks, grant.elements};
  const auto own = o.exchanges() ? std::vector<Operation>{o} : std::vector<Operation>{};
  if (!fits(o, *op.group, own, cut, arena_.slot_bytes())) return false;
  if (!o.exchanges() || cut.chunks == 0) return true;
  const uint64_t element = element_bytes(o.dtype), slot = arena_.slot_bytes() / element;
  const auto inside = [&](uint64_t at, const std::vector<uint64_t>& counts) {
    return at <= slot && block_elements(counts, cut, element) <= slot - at;
  };
  return inside(grant.out_block, o.sends) && inside(grant.in_block, o.receives);
}

void Comm::begin(Op& op, const Grant& grant) {
  op.grant = grant;
  op.granted = true;
  if (op.traced) op.granted_at = Clock::now();
  const auto& local = op.group->local;
  op.place = static_cast<uint32_t>(std::find(local.begin(), local.end(), local_rank_) - local.begin());
  op.contributors = static_cast<uint32_t>(local.size());
  const Operation& o = op.operation;
  const bool last = op.place + 1 == op.contributors;
  const bool root = (o.kind == HDP_BROADCAST || o.kind == HDP_REDUCE) && op.group->members[o.root] == rank_;
  if (o.kind == HDP_BROADCAST) {
    op.contributes = root;
    op.contributors = topology_.host_of(op.group->members[o.root]) == topology_.host ? 1 : 0;
    op.place = 0;
    op.copies_out = !root;
  } else if (o.kind == HDP_ALLREDUCE || o.kind == HDP_REDUCE) {
    const bool wants = root || o.kind == HDP_ALLREDUCE;
    op.straight = wants && last && grant.local_final && !op.on;
    op.copies_out = wants && !op.straight;
  }
  if (!op.contributes) op.next_in = grant.chunks;
  if (op.on) begin_device(op);
  op.streams = o.count * element_bytes(o.dtype) * (cut_by_piece(o) ? op.group->size() : 1) >= kStreamed;
}

bool Comm::step(Op& op) {
  if (op.on) return step_device(op);
  const bool in = contribute(op);
  const bool out = copy_out(op);
  if (op.traced) note_first_out(op);
  return in || out;
}

bool Comm::contribute(Op& op) {
  if (op.next_in == op.grant.chunks) return false;
  const uint64_t q = op.grant.base + op.next_in;
  SlotControl& control = arena_.control(q);
  if (control.open.load(std::memory_order_acquire) != q) return false;
  const bool in_turn = !op.operation.reduces() || control.turn.load(std::memory_order_acquire) == op.place;
  if (!in_turn) return false;
  const auto from = op.traced ? Clock::now() : Clock::time_point{};
  add_chunk(op, q, op.next_in);
  ++op.next_in;
  if (op.traced) note_in(op, from);
  contributed(op, q);
  if (!op.copies_out) copied(op, q);
  return true;
}

// The runs of a chunk that this rank adds ...
void Comm::in_runs(const Op& op, uint64_t chunk) {
  const Operation& o = op.operation;
  const Cut cut{op.grant.chunks, op.grant.elements};
  if (o.exchanges()) return block_runs(o.sends, op.grant.out_block, cut, chunk, runs_);
  if (!cut_by_piece(o)) return runs_.assign(1, whole_run(o, cut, chunk));
  piece_runs(o, op.group->size(), cut, chunk, runs_);
  if (o.kind == HDP_ALLGATHER) own_run(op, chunk);
}

// ... and those that it copies out.
void Comm::out_runs(const Op& op, uint64_t chunk) {
  const Operation& o = op.operation;
  const Cut cut{op.grant.chunks, op.grant.elements};
  if (o.exchanges()) return block_runs(o.receives, op.grant.in_block, cut, chunk, runs_);
  if (!cut_by_piece(o)) return runs_.assign(1, whole_run(o, cut, chunk));
  piece_runs(o, op.group->size(), cut, chunk, runs_);
  if (o.kind == HDP_REDUCE_SCATTER) own_run(op, chunk);
}

// Of the runs of all pieces, that of this rank's own, where its array is that piece alone.
void Comm::own_run(const Op& op, uint64_t chunk) {
  const uint32_t own = op.group->local_places[op.place];
  const Cut cut{op.grant.chunks, op.grant.elements};
  const Run run{runs_[own].slot, part_begin(op.operation.count_of(own), chunk, cut), runs_[own].count};
  runs_.assign(1, run);
}

// This rank's data of one chunk goes into the slot.
void Comm::add_chunk(Op& op, uint64_t q, uint64_t chunk) {
  const Operation& o = op.operation;
  const uint64_t element = element_bytes(o.dtype);
  uint8_t* slot = arena_.slot(q);
  const bool last = op.place + 1 == op.contributors;
  in_runs(op, chunk);
  uint64_t total = 0;
  for (const Run& run : runs_) {
    if (run.count == 0) continue;
    total += run.count;
    const uint8_t* in = op.in + run.array * element;
    if (o.reduces()) {
      add_to_sum(op, q, run, in, last);
      continue;
    }
    std::memcpy(slot + run.slot * element, in, run.count * element);
    if (o.kind == HDP_BROADCAST && op.out != op.in) std::memcpy(op.out + run.array * element, in, run.count * element);
  }
  if (!o.reduces() || !last || (op.straight && op.place > 0)) return;
  finish_sum(op, q, total);
  if (op.straight) std::memcpy(op.out + runs_[0].array * element, slot, total * element);
}

// The last contributor turns the sum into what travels, or into the result.
void Comm::finish_sum(Op& op, uint64_t q, uint64_t elements) {
  const Operation& o = op.operation;
  // What crosses the wire is elements; the average is then taken by the share's owner, of half types before that.
  const bool later = o.op == HDP_AVG && !op.grant.local_final && !averaged_early(o.travel);
  kernels().finish(o.travel, later ? HDP_SUM : o.op, arena_.slot(q), elements, op.group->size());
}

void Comm::add_to_sum(Op& op, uint64_t q, const Run& run, const uint8_t* in, bool last) {
  const Operation& o = op.operation;
  const Kernels& k = kernels();
  const uint64_t element = element_bytes(o.dtype);
  uint8_t* sum = arena_.slot(q) + run.slot * accumulator_bytes(o.travel);
  if (op.place == 0)
    k.start(o.dtype, sum, in, run.count);
  else if (op.straight && last)
    k.add_finish(o.dtype, o.op, sum, in, op.out + run.array * element, run.count, op.group->size());
  else
    k.add(o.dtype, o.op, sum, in, run.count);
}

void Comm::contributed(Op& op, uint64_t q) {
  SlotControl& control = arena_.control(q);
  const uint32_t turn = control.turn.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (turn < op.contributors) {
    if (op.operation.reduces()) ring_bell(arena_.bell(op.group->local[turn]));
  } else if (op.grant.local_final) {
    publish(op, q);
  } else {
    ring_server();
  }
}

void Comm::publish(const Op& op, uint64_t q) {
  arena_.control(q).result.store(q, std::memory_order_release);
  for (uint32_t local : op.group->local)
    if (local != local_rank_) ring_bell(arena_.bell(local));
}

bool Comm::copy_out(Op& op) {
  if (!op.copies_out || op.next_out == op.grant.chunks) return false;
  const uint64_t q = op.grant.base + op.next_out;
  if (arena_.control(q).result.load(std::memory_order_acquire) != q) return false;
  const auto from = op.traced ? Clock::now() : Clock::time_point{};
  const Operation& o = op.operation;
  const uint64_t element = element_bytes(o.dtype), in_slot = element_bytes(o.travel);
  out_runs(op, op.next_out);
  for (const Run& run : runs_) {
    uint8_t* out = op.out + run.array * element;
    const uint8_t* result = arena_.slot(q) + run.slot * in_slot;
    if (o.travel != o.dtype)
      kernels().start(o.travel, out, result, run.count);  // a half type's accumulator is float32
    else if (op.streams)
      kernels().stream(out, result, run.count * element);
    else if (run.count != 0)
      std::memcpy(out, result, run.count * element);
  }
  ++op.next_out;
  if (op.traced) note_out(op, from);
  copied(op, q);
  return true;
}

// This rank is done with the slot; the last one hands it on.
void Comm::copied(Op& op, uint64_t q) {
  SlotControl& control = arena_.control(q);
  const uint32_t done = control.done.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (done < op.group->local.size()) return;
  const uint64_t next = q + arena_.slots();
  if (!op.grant.local_final || next >= op.grant.base + op.grant.chunks) {
    control.released.store(q, std::memory_order_release);
    ring_server();
    return;
  }
  control.turn.store(0, std::memory_order_relaxed);
  control.done.store(0, std::memory_order_relaxed);
  control.open.store(next, std::memory_order_release);
  wake_first(op);
}

void Comm::wake_first(const Op& op) {
  if (op.operation.kind != HDP_BROADCAST && !op.operation.reduces()) {
    for (uint32_t local : op.group->local)
      if (local != local_rank_) ring_bell(arena_.bell(local));
    return;
  }
  const uint32_t first = op.operation.kind == HDP_BROADCAST
                             ? op.group->members[op.operation.root] - topology_.first_rank[topology_.host]
                             : op.group->local.front();
  if (first != local_rank_) ring_bell(arena_.bell(first));
}

void Comm::complete(Op& op, hdp_status status, const std::string& text) {
  std::lock_guard lock(mutex_);
  settle(op, status, text);
}

void Comm::settle(Op& op, hdp_status status, const std::string& text) {
  op.status = status;
  op.text = text;
  if (timeline_) record(op);
  free_streams(op);
  if (op.notify) notify_.push_back(op.ticket);
  done_.notify_all();
  ring_own_waiters();
}

}  // namespace hdp
