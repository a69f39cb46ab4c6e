// What a communicator tells its timeline (timeline.h).
#include <array>
#include <span>

#include "comm.h"

namespace hdp {

void Comm::trace(int timeline_fd, hdp_log_function log) {
  auto timeline = std::make_unique<Timeline>(timeline_fd, Timeline::Row::of_rank(topology_, rank_), log);
  std::lock_guard lock(mutex_);
  if (closing_) throw Error(HDP_INVALID, "the communicator is closed");
  if (timeline_) throw Error(HDP_INVALID, "the communicator has a timeline already");
  timeline_ = std::move(timeline);
}

// Where the result is made in place, its first chunk is out once the rank has added its own data.
void Comm::note_first_out(Op& op) {
  const bool out = op.copies_out ? op.next_out > 0 : op.next_in > 0;
  if (out && op.first_out == Clock::time_point{}) op.first_out = Clock::now();
}

void Comm::note_in(Op& op, Clock::time_point from) {
  if (op.in_from == Clock::time_point{}) op.in_from = from;
  op.in_to = Clock::now();
  op.in_busy += op.in_to - from;
}

void Comm::note_out(Op& op, Clock::time_point from) {
  if (op.out_from == Clock::time_point{}) op.out_from = from;
  op.out_to = Clock::now();
  op.out_busy += op.out_to - from;
}

void Comm::note_waiter(Op& op, bool comes) {
  const auto now = Clock::now();
  if (comes && op.waiters++ == 0) op.waiting_since = now;
  if (!comes && --op.waiters == 0) op.waited += now - op.waiting_since;
}

// How long the program has done nothing but wait for it: what its communication cost.
Comm::Clock::duration Comm::waited_for(const Op& op, Clock::time_point now) {
  return op.waited + (op.waiters > 0 ? now - op.waiting_since : Clock::duration{});
}

void Comm::record(const Op& op) {
  const auto end = Clock::now();
  const bool slots = op.granted && op.grant.chunks > 0;
  Fields more;
  more.number("rank", rank_).number("chunks", op.grant.chunks);
  more.text("by", slots ? "slots" : op.granted ? "grant" : op.cell != nullptr ? "cells" : "nothing");
  more.number("waited_us", std::chrono::duration_cast<std::chrono::microseconds>(waited_for(op, end)).count());
  more.text("status", hdp_status_name(op.status));
  if (!op.text.empty()) more.text("error", op.text);
  std::array<Timeline::Span, 3> parts;
  size_t count = 0;
  if (op.traced && !op.granted && op.cell == nullptr) parts[count++] = {"wait for ranks", op.started, end};
  if (op.traced && op.granted) {
    parts[count++] = {"wait for ranks", op.started, op.granted_at};
    if (slots) parts[count++] = {"transfer", op.granted_at, end};
    if (op.grant.chunks > 1 && op.first_out != Clock::time_point{})
      parts[count++] = {"first chunk", op.granted_at, op.first_out};
  }
  const std::string name = op.operation.name();
  timeline_->operation(op.operation, *op.group, {name, op.started, end}, more, std::span(parts).first(count));
  if (op.in_busy > Clock::duration{})
    timeline_->phase(Timeline::Phase::kIn, op.operation, {name, op.in_from, op.in_to}, op.in_busy);
  if (op.out_busy > Clock::duration{})
    timeline_->phase(Timeline::Phase::kOut, op.operation, {name, op.out_from, end}, op.out_busy);
}

}  // namespace hdp
