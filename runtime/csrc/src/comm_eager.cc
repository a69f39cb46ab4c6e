// A communicator's part in small operations (eager.h). Everything here is called under the communicator's mutex.
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "comm.h"
#include "kernels.h"

namespace hdp {
namespace {

// Whether it rings within a moment. A sleeper counts as waiting, so that no worker is woken in its place.
bool glance(Bell& bell, uint32_t seen) {
  const auto end = std::chrono::steady_clock::now() + kGlance;
  bell.waiting.fetch_add(1);
  while (bell.seq.load() == seen && std::chrono::steady_clock::now() < end) sched_yield();
  bell.waiting.fetch_sub(1);
  return bell.seq.load() != seen;
}

}  // namespace

// A small operation that is announced late, so that most never are.
void Comm::begin_small(const std::shared_ptr<Op>& op) {
  constexpr auto kPatience = std::chrono::milliseconds(20);
  op->small = true;
  const auto soonest = std::min(op->deadline, op->stall_at);
  op->announce_at = std::min(op->started + kPatience, op->started + (soonest - op->started) / 2);
  small_.push_back(op);
  if (enter_cell(*op)) settle_small();
}

// Put the operation into a cell of ours, if one is free. True: some operation may be complete now.
bool Comm::enter_cell(Op& op) {
  const auto free_cell = [this] {
    return std::find_if(own_cells_.begin(), own_cells_.end(),
                        [](const OwnCell& c) { return !c.held && (!c.published || c.cell->copiers.load() == 0); });
  };
  auto free = free_cell();
  if (free == own_cells_.end()) {
    // A Dekker pair with who copies out last: it sees this, or we see that it has.
    arena_.state(local_rank_).wants_cell.store(1);
    free = free_cell();
    if (free == own_cells_.end()) return false;
  }
  if (free->published) withdraw(*free->cell);
  const auto& local = op.group->local;
  const Operation& o = op.operation;
  if (o.count > 0) std::memcpy(arena_.data(*free->cell), op.in, o.count * element_bytes(o.dtype));
  hdp::publish(*free->cell, o, static_cast<uint32_t>(local.size()));
  *free = {free->cell, true, true};
  op.cell = free->cell;

  std::vector<EagerCell*> cells;
  for (uint32_t member : local) {
    EagerCell* cell = member == local_rank_ ? op.cell : find_cell(arena_, member, o.key);
    if (cell == nullptr) return false;
    if (!call_of(*cell).agrees(call_of(*op.cell))) {
      // Unless another member was the last one, and this cell is in use again already.
      if (find_cell(arena_, member, o.key) == cell)
        op.announce_at = Clock::now();  // the server finds out who calls what
      return false;
    }
    cells.push_back(cell);
  }
  Stage expected = Stage::kGathering;
  if (!cells.front()->stage.compare_exchange_strong(expected, Stage::kClaimed)) return false;
  combine_cells(op, cells);
  if (op.group->hosts.size() > 1) {
    cells.front()->stage.store(Stage::kHostSum, std::memory_order_release);
    arena_.signal().host_sums.fetch_add(1);
    ring_server();
    return false;
  }
  cells.front()->stage.store(Stage::kResult, std::memory_order_release);
  for (uint32_t member : local)
    if (member != local_rank_) ring_waiters(arena_, member);
  return true;
}

// The members' data, in rank order, into the first one's cell: as it travels, or the result.
void Comm::combine_cells(const Op& op, const std::vector<EagerCell*>& cells) {
  const Operation& o = op.operation;
  uint8_t* sum = arena_.data(*cells.front());
  std::vector<const void*> parts;
  for (const EagerCell* cell : cells) parts.push_back(arena_.data(*cell));
  const uint32_t ranks = op.group->size();
  const bool travels = op.group->hosts.size() > 1;
  const bool later = o.op == HDP_AVG && travels && (o.travel != o.dtype || !averaged_early(o.dtype));
  kernels().combine(o.dtype, later ? HDP_SUM : o.op, sum, parts.data(), parts.size(), o.count, ranks);
  if (o.travel != o.dtype) kernels().finish(o.travel, o.op, sum, o.count, ranks);
}

// Complete what has its result, and put what has no cell into one.
void Comm::settle_small() {
  for (size_t i = 0; i < small_.size();) {
    const std::shared_ptr<Op> op = small_[i];
    if (op->cell == nullptr) enter_cell(*op);
    if (op->cell == nullptr || !copy_result(*op)) {
      ++i;
      continue;
    }
    small_.erase(small_.begin() + static_cast<long>(i));
    waiting_.erase(op->ticket);
    if (op->announced) {
      withdrawals_.push_back(op->operation.key);
      ring_bell(bell());
    }
    settle(*op, HDP_OK, {});
    i = 0;  // a cell is free
  }
}

bool Comm::copy_result(Op& op) {
  const Operation& o = op.operation;
  const uint32_t first = op.group->local.front();
  if (op.first == nullptr) op.first = find_cell(arena_, first, o.key, &op.first_generation);
  if (op.first == nullptr || op.first->stage.load(std::memory_order_acquire) != Stage::kResult) return false;
  // Where the operation was granted and we don't know yet, the cell may hold another one's result.
  if (op.first->generation.load() != op.first_generation) return false;
  const uint8_t* result = arena_.data(*op.first);
  if (o.travel != o.dtype)
    kernels().start(o.travel, op.out, result, o.count);
  else if (o.count > 0)
    std::memcpy(op.out, result, o.count * element_bytes(o.dtype));
  // The first member's cell is in use until all have copied out.
  if (op.first->copiers.fetch_sub(1) == 1 && arena_.state(first).wants_cell.exchange(0) != 0 && first != local_rank_)
    ring_waiters(arena_, first);
  OwnCell& own = own_cell(op);
  own.held = false;
  if (first != local_rank_) {
    withdraw(*own.cell);
    own.published = false;
  }
  return true;
}

Comm::OwnCell& Comm::own_cell(const Op& op) {
  return *std::find_if(own_cells_.begin(), own_cells_.end(), [&](const OwnCell& c) { return c.cell == op.cell; });
}

// Granted, since not all members have cells: nobody looks at ours any more.
void Comm::leave_cell(Op& op) {
  if (!op.small) return;
  op.small = false;
  std::erase_if(small_, [&](const std::shared_ptr<Op>& other) { return other.get() == &op; });
  if (op.cell == nullptr) return;
  OwnCell& own = own_cell(op);
  withdraw(*own.cell);
  own.held = own.published = false;
  op.cell = nullptr;
  settle_small();
}

// Until `op` is complete, or no small operation any more, or `until`.
void Comm::wait_small(std::unique_lock<std::mutex>& lock, const Op& op, Clock::time_point until) {
  Bell& waiters = arena_.waiters(local_rank_);
  while (op.small && op.status == HDP_PENDING) {
    const uint32_t seen = waiters.seq.load();
    settle_small();
    const auto left = until - Clock::now();
    if (!op.small || op.status != HDP_PENDING || left <= Clock::duration::zero()) return;
    lock.unlock();
    if (!glance(waiters, seen))
      wait_bell(waiters, seen, std::chrono::duration_cast<std::chrono::nanoseconds>(left).count());
    lock.lock();
    settle_small();  // a ring for another operation may have found this thread and not the worker
  }
}

// Threads of this rank that wait for small operations look again; one that is about to sleep too, which shows only in
// the bell's seq: it read that under the mutex, which we hold.
void Comm::ring_own_waiters() { ring_bell(arena_.waiters(local_rank_)); }

void Comm::count_call(uint64_t group) {
  RankState& counts = arena_.state(local_rank_);
  const uint32_t used = counts.used.load(std::memory_order_relaxed);
  uint32_t i = 0;
  while (i < used && counts.group[i].load(std::memory_order_relaxed) != group) ++i;
  if (i == RankState::kGroups) return;
  if (i == used) {
    counts.group[i].store(group, std::memory_order_relaxed);
    counts.calls[i].store(0, std::memory_order_relaxed);
    counts.used.store(used + 1, std::memory_order_release);
  }
  counts.calls[i].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace hdp
