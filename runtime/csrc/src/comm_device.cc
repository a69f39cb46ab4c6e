// A communicator's operations on device memory.
//
// An operation is announced once the caller's stream has come to it, so that nothing of ours waits behind somebody's
// kernels: not the arena's slots, nor our streams, nor an operation on which that stream waits before. From its grant
// on the worker keeps copies of its chunks in flight. What can be read from a slot or written to it by the device alone
// is; what the host adds to a sum comes through pinned memory, fetched before its turn. A slot is handed on when the
// event behind its copy has fired.
//
// Pinned memory for what comes in is given in the order of grants, in which slots open too: so the operation that the
// others wait for always finds some. What leaves has its own, which is free again as soon as the device has read it.
//
// Where the driver fails, all operations of the job do: a rank that can't take part in a granted operation has no way
// to let the others end it.
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "comm.h"
#include "kernels.h"

namespace hdp {

Device& Comm::open_device(uint32_t ordinal) {
  std::lock_guard opening(devices_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (auto found = devices_.find(ordinal); found != devices_.end()) return *found->second;
  }
  const auto log = [this](const std::string& line) {
    if (const hdp_log_function f = log_) f((topology_.rank_name(rank_) + ": " + line).c_str());
  };
  auto device = std::make_unique<Device>(ordinal, ringer_, arena_.begin(), arena_.size(), arena_.slot_bytes(), log);
  std::lock_guard lock(mutex_);
  return *(devices_[ordinal] = std::move(device));
}

std::pair<hdp_status, std::string> Comm::stream_wait(uint64_t ticket, uint64_t stream) {
  Device* device = nullptr;
  WaitWord word;
  {
    std::lock_guard lock(mutex_);
    auto found = ops_.find(ticket);
    if (found == ops_.end()) throw Error(HDP_INVALID, "there is no operation with ticket " + std::to_string(ticket));
    Op& op = *found->second;
    if (op.status != HDP_PENDING || !op.on) return {op.status, op.text};
    device = op.on->device;
    if (op.on->word == nullptr) {
      op.on->word = device->take_word();
      if (op.on->word == nullptr) return {HDP_PENDING, {}};
      op.on->value = op.on->word->value;
    }
    word = *op.on->word;
  }
  // Without the mutex, since a full stream blocks here until it moves on, for which the worker may be needed. If the
  // operation has ended in the meantime, the word has come to its value.
  return {device->hold(stream, word) ? HDP_OK : HDP_PENDING, {}};
}

void Comm::free_streams(Op& op) {
  if (!op.on || op.on->word == nullptr) return;
  op.on->word->at->store(op.on->value, std::memory_order_release);
  op.on->device->give_word(std::exchange(op.on->word, nullptr));
}

// Announce what the callers' streams have come to. An operation's time runs from then on.
bool Comm::announce_ready() {
  std::vector<std::shared_ptr<Op>> unready, ready;
  {
    std::lock_guard lock(mutex_);
    if (unready_.empty()) return false;
    unready = unready_;
  }
  for (const auto& op : unready) try {
      enter(*op->on->device);
      if (op->on->device->fired(op->on->ready)) ready.push_back(op);
    } catch (const Error& e) {
      device_failed(op->operation.name() + ": " + e.what());
      break;
    }
  std::vector<std::shared_ptr<Op>> called;
  {
    std::lock_guard lock(mutex_);
    const auto over = [&](const auto& op) {
      return op->status != HDP_PENDING || std::find(ready.begin(), ready.end(), op) != ready.end();
    };
    for (const auto& op : unready_) {
      if (!over(op)) continue;
      op->on->device->give(std::exchange(op->on->ready, nullptr));
      if (op->status != HDP_PENDING) continue;
      op->begin_time(op->on->timeout, op->on->stall);
      next_alarm_ = std::min(next_alarm_, op->alarm());
      count_call(op->operation.key.group);
      called.push_back(op);
    }
    std::erase_if(unready_, over);
  }
  for (const auto& op : called) announce(*op);
  return !called.empty();
}

void Comm::enter(Device& device) {
  if (entered_ == &device) return;
  device.enter();
  entered_ = &device;
}

void Comm::begin_device(Op& op) {
  DevicePart& on = *op.on;
  const Operation& o = op.operation;
  const bool starts = op.place == 0 && accumulator_bytes(o.dtype) == element_bytes(o.dtype);
  on.pinned_in = !on.device->registered() || (o.reduces() && !starts);
  on.pinned_out = !on.device->registered() || o.travel != o.dtype;
  if (!op.contributes) on.fetched = op.grant.chunks;
  if (o.kind != HDP_BROADCAST || !op.contributes || op.in == op.out || o.count == 0) return;
  try {
    enter(*on.device);
    on.device->copy(op.out, op.in, o.count * element_bytes(o.dtype));
    on.own = on.device->mark(kOut);
  } catch (const Error& e) {
    device_failed(o.name() + ": " + e.what());
  }
}

bool Comm::step_device(Op& op) {
  try {
    enter(*op.on->device);
    const bool fetched = fetch_chunk(op), delivered = deliver_chunk(op);
    const bool put = put_chunk(op), landed = land_chunk(op), own = land_own(op);
    if (op.traced) note_first_out(op);
    if (op.on->pinned_in && op.on->fetched < op.grant.chunks) pinned_taken_ = true;
    return fetched || delivered || put || landed || own;
  } catch (const Error& e) {
    device_failed(op.operation.name() + ": " + e.what());
    return false;
  }
}

// Start the copy of this rank's next data: into the slot once it is open, or into pinned memory before that.
bool Comm::fetch_chunk(Op& op) {
  DevicePart& on = *op.on;
  if (on.fetched == op.grant.chunks || (on.pinned_in && pinned_taken_)) return false;
  const uint64_t q = op.grant.base + on.fetched;
  DevicePart::Chunk chunk{on.fetched};
  if (on.pinned_in) {
    chunk.pinned = on.device->ring(kIn).take();
    if (chunk.pinned == nullptr) return false;
  } else if (arena_.control(q).open.load(std::memory_order_acquire) != q) {
    return false;
  }
  if (op.traced) chunk.started = Clock::now();
  const uint64_t element = element_bytes(op.operation.dtype);
  uint8_t* to = on.pinned_in ? chunk.pinned : arena_.slot(q);
  in_runs(op, on.fetched);
  for (const Run& run : runs_)
    if (run.count > 0) on.device->fetch(to + run.slot * element, op.in + run.array * element, run.count * element);
  chunk.flight = on.device->mark(kIn);
  on.ins.push_back(chunk);
  ++on.fetched;
  return true;
}

// Hand on the slot of the next chunk whose data are here, once it is this rank's turn.
bool Comm::deliver_chunk(Op& op) {
  DevicePart& on = *op.on;
  if (on.ins.empty()) return false;
  const DevicePart::Chunk chunk = on.ins.front();
  const uint64_t q = op.grant.base + chunk.number;
  const Operation& o = op.operation;
  const SlotControl& control = arena_.control(q);
  if (control.open.load(std::memory_order_acquire) != q) return false;
  if (o.reduces() && control.turn.load(std::memory_order_acquire) != op.place) return false;
  if (!on.device->landed(kIn, chunk.flight)) return false;
  const auto from = std::max(chunk.started, op.in_to);  // a part of the time in which copies overlap
  const uint64_t element = element_bytes(o.dtype);
  const bool last = op.place + 1 == op.contributors;
  uint64_t total = 0;
  in_runs(op, chunk.number);
  for (const Run& run : runs_) {
    total += run.count;
    if (chunk.pinned == nullptr || run.count == 0) continue;
    const uint8_t* in = chunk.pinned + run.slot * element;
    if (o.reduces())
      add_to_sum(op, q, run, in, last);
    else
      std::memcpy(arena_.slot(q) + run.slot * element, in, run.count * element);
  }
  if (o.reduces() && last) finish_sum(op, q, total);
  if (chunk.pinned != nullptr) on.device->ring(kIn).give(chunk.pinned);
  on.ins.pop_front();
  ++op.next_in;
  if (op.traced) note_in(op, from);
  contributed(op, q);
  if (!op.copies_out) copied(op, q);
  return true;
}

// Start the copy of the next result to the device: from the slot, or from pinned memory where the host converts it.
bool Comm::put_chunk(Op& op) {
  DevicePart& on = *op.on;
  if (!op.copies_out || on.put == op.grant.chunks) return false;
  const uint64_t q = op.grant.base + on.put;
  if (arena_.control(q).result.load(std::memory_order_acquire) != q) return false;
  DevicePart::Chunk chunk{on.put};
  if (on.pinned_out) {
    chunk.pinned = on.device->ring(kOut).take();
    if (chunk.pinned == nullptr) return false;
  }
  if (op.traced) chunk.started = Clock::now();
  const Operation& o = op.operation;
  const uint64_t element = element_bytes(o.dtype), in_slot = element_bytes(o.travel);
  uint8_t* pinned = chunk.pinned;
  out_runs(op, on.put);
  for (const Run& run : runs_) {
    if (run.count == 0) continue;
    const uint8_t* result = arena_.slot(q) + run.slot * in_slot;
    if (on.pinned_out) {
      if (o.travel != o.dtype)
        kernels().start(o.travel, pinned, result, run.count);  // a half type's accumulator is float32
      else
        std::memcpy(pinned, result, run.count * element);
      result = pinned;
      pinned += run.count * element;
    }
    on.device->put(op.out + run.array * element, result, run.count * element);
  }
  chunk.flight = on.device->mark(kOut);
  on.outs.push_back(chunk);
  ++on.put;
  if (on.pinned_out) {
    ++op.next_out;
    copied(op, q);
  }
  return true;
}

// The next result is on the device.
bool Comm::land_chunk(Op& op) {
  DevicePart& on = *op.on;
  if (on.outs.empty() || !on.device->landed(kOut, on.outs.front().flight)) return false;
  const DevicePart::Chunk chunk = on.outs.front();
  on.outs.pop_front();
  if (op.traced) note_out(op, std::max(chunk.started, op.out_to));
  if (chunk.pinned != nullptr) {
    on.device->ring(kOut).give(chunk.pinned);
  } else {
    ++op.next_out;
    copied(op, op.grant.base + chunk.number);
  }
  return true;
}

bool Comm::land_own(Op& op) {
  if (!op.on->own || !op.on->device->landed(kOut, *op.on->own)) return false;
  op.on->own.reset();
  return true;
}

// With copies in flight and nothing else to do. True: look again; false: sleep, a copy that ends will ring.
bool Comm::watch_copies(Clock::time_point moved) {
  std::vector<Device*> flying;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [ordinal, device] : devices_)
      if (device->flying()) flying.push_back(device.get());
  }
  if (flying.empty()) return false;
  if (Clock::now() - moved < kGlance) {  // a chunk's copy takes less than a callback
    sched_yield();
    return true;
  }
  try {
    for (Device* device : flying) {
      enter(*device);
      device->arm();
    }
  } catch (const Error& e) {
    device_failed(e.what());
  }
  return false;
}

// The copies of all active operations have ended, and their pinned memory is free.
void Comm::settle_copies() {
  std::vector<Device*> devices;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [ordinal, device] : devices_) devices.push_back(device.get());
  }
  for (Device* device : devices) device->settle();
  for (const auto& [base, op] : active_) {
    if (!op->on) continue;
    for (const auto& chunk : op->on->ins)
      if (chunk.pinned != nullptr) op->on->device->ring(kIn).give(chunk.pinned);
    for (const auto& chunk : op->on->outs)
      if (chunk.pinned != nullptr) op->on->device->ring(kOut).give(chunk.pinned);
    op->on->ins.clear();
    op->on->outs.clear();
    op->on->own.reset();
  }
}

void Comm::device_failed(const std::string& text) {
  send(Type::kFailed, Writer().text(text).take());
  fail_all(HDP_SYSTEM, text);
  ring_bell(bell());
}

}  // namespace hdp
