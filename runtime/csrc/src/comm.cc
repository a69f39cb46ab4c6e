#include "comm.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "request.h"

namespace hdp {
namespace {

using std::chrono::milliseconds;

void read_all(int fd, void* into, size_t n) {
  auto* at = static_cast<char*>(into);
  while (n > 0) {
    const ssize_t got = recv(fd, at, n, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw Error(HDP_PEER_LOST, "");
    at += got;
    n -= static_cast<size_t>(got);
  }
}

// False: not before `deadline`.
bool wait_writable(int fd, std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  if (left <= 0) return false;
  pollfd waiting{fd, POLLOUT, 0};
  poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left, INT_MAX)));
  return true;  // or it is tried again
}

}  // namespace

Comm::Comm(const hdp_layout& layout, uint32_t rank, int socket_fd, int arena_fd, int event_fd)
    : topology_(Topology::from(layout)),
      rank_(rank),
      local_rank_(rank - topology_.first_rank[topology_.host]),
      socket_(socket_fd),
      arena_(arena_fd),
      event_(fcntl(event_fd, F_DUPFD_CLOEXEC, 0)) {
  if (rank >= topology_.world_size || topology_.host_of(rank) != topology_.host)
    throw Error(HDP_INVALID, "rank " + std::to_string(rank) + " isn't on host " + std::to_string(topology_.host));
  if (!event_) throw SystemError("dup of the eventfd");
  std::vector<uint32_t> everybody(topology_.world_size);
  for (uint32_t r = 0; r < topology_.world_size; ++r) everybody[r] = r;
  groups_.emplace(0, std::make_shared<const Group>(Group::of(topology_, 0, everybody)));
  for (uint32_t i = 0; i < kEagerCells; ++i) own_cells_.push_back({&arena_.cell(local_rank_, i)});
  worker_ = std::thread([this] { work(); });
  try {
    listener_ = std::thread([this] { listen(); });
  } catch (const std::system_error&) {
    close();
    throw;
  }
}

Comm::~Comm() { close(); }

void Comm::close() {
  {
    std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = true;
    interrupted_ = true;
    done_.notify_all();
    ring_own_waiters();
  }
  ring_bell(bell());
  worker_.join();
  ringer_->silence();
  send(Type::kLeave, Writer().text(abandoned_).take());
  shutdown(socket_.get(), SHUT_RDWR);  // ends the listener's recv; what was sent still arrives
  if (listener_.joinable()) listener_.join();
  std::unique_ptr<Timeline> timeline;
  std::lock_guard lock(mutex_);
  timeline.swap(timeline_);  // it is written out without the mutex
}

void Comm::send(Type type, const std::string& body, milliseconds patience) {
  Header header;
  header.type = type;
  header.bytes = body.size();
  header.seal(body.data());
  std::string message(reinterpret_cast<const char*>(&header), sizeof header);
  message += body;
  std::lock_guard lock(send_mutex_);
  const auto deadline = Clock::now() + patience;
  for (size_t at = 0; at < message.size() && !mute_;) {
    const ssize_t n = ::send(socket_.get(), message.data() + at, message.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      at += static_cast<size_t>(n);
    } else if (errno == EAGAIN && !wait_writable(socket_.get(), deadline)) {
      mute_ = true;  // half of a message may be out
      fail_all(HDP_TIMEOUT, "the server of host " + topology_.host_names[topology_.host] + " stands still");
      ring_bell(bell());
    } else if (errno != EAGAIN && errno != EINTR) {
      return;  // the listener finds out why
    }
  }
}

void Comm::ring_server() {
  const uint64_t one = 1;
  // Fails only where the counter is at its end, and then the server is awake.
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof one);
}

// ---- callers -------------------------------------------------------------------------------------------------------

uint64_t Comm::add_group(std::vector<uint32_t> members, const std::string& name) {
  const uint64_t id = Group::id_for(members, name);
  auto group = std::make_shared<const Group>(Group::of(topology_, id, members));
  if (!group->has(rank_))
    throw Error(HDP_INVALID, "this process, rank " + std::to_string(rank_) + ", isn't in the group");
  {
    std::lock_guard lock(mutex_);
    if (groups_.contains(id)) return id;
  }
  // Before anybody can announce an operation of it; the server takes it twice.
  send(Type::kDeclare, Writer().u64(id).list(members).take());
  std::lock_guard lock(mutex_);
  groups_.emplace(id, std::move(group));
  return id;
}

uint64_t Comm::submit(const hdp_request& r) {
  Device* device = r.device == 0 ? nullptr : &open_device(r.device - 1);
  const CuEvent ready = device == nullptr ? nullptr : device->record(r.stream);
  std::shared_ptr<Op> op;
  const milliseconds op_timeout(std::min<uint64_t>(r.timeout_ms, uint64_t{1} << 40));
  bool wake = false;   // the worker
  bool later = false;  // it is announced
  {
    std::lock_guard lock(mutex_);
    try {
      op = make_op(r, device, ready);
    } catch (...) {
      if (ready != nullptr) device->give(ready);
      throw;
    }
    ops_[op->ticket] = op;
    waiting_[op->ticket] = op;
    if (ready != nullptr) {
      unready_.push_back(op);
      wake = later = true;
    }
    if (failed_ || failed_groups_.contains(r.group))
      wake = failures_changed_ = true;  // it fails the operation
    else if (device == nullptr && is_small(op->operation))
      begin_small(op);
    if (op->status != HDP_PENDING) return op->ticket;
    later |= op->small;
    wake |= op->alarm() < next_alarm_;
    next_alarm_ = std::min(next_alarm_, op->alarm());
  }
  if (!later) send(Type::kAnnounce, Writer().operation(op->operation).u64(op->ticket).u32(0).take(), op_timeout);
  if (wake) ring_bell(bell());
  return op->ticket;
}

std::shared_ptr<Comm::Op> Comm::make_op(const hdp_request& r, Device* device, CuEvent ready) {
  if (closing_) throw Error(HDP_INVALID, "the communicator is closed");
  auto group = groups_.find(r.group);
  if (group == groups_.end()) throw Error(HDP_INVALID, "there is no group " + std::to_string(r.group));
  auto op = std::make_shared<Op>();
  op->operation = operation_of(r, *group->second, rank_);
  check_buffers(r, op->operation, *group->second, rank_);
  const uint64_t tag_hash = op->operation.key.tag_hash;
  op->operation.key.counter = r.once ? 1 : ++counters_[{r.group, tag_hash}];
  op->group = op->operation.participants(topology_, group->second);
  op->in = static_cast<const uint8_t*>(r.in);
  op->out = static_cast<uint8_t*>(r.out);
  op->notify = r.notify != 0;
  const auto bounded = [](uint64_t ms) { return milliseconds(std::min<uint64_t>(ms, uint64_t{1} << 40)); };
  if (device != nullptr) {
    op->on = std::make_unique<DevicePart>();
    op->on->device = device;
    op->on->ready = ready;
    op->on->timeout = bounded(r.timeout_ms);
    op->on->stall = bounded(r.stall_ms);
  }
  op->started = Clock::now();
  if (ready == nullptr) op->begin_time(bounded(r.timeout_ms), bounded(r.stall_ms));
  op->ticket = next_ticket_++;
  op->traced = timeline_ != nullptr;
  if (ready == nullptr) count_call(r.group);
  return op;
}

std::pair<hdp_status, std::string> Comm::wait(uint64_t ticket, milliseconds timeout) {
  std::unique_lock lock(mutex_);
  auto found = ops_.find(ticket);
  if (found == ops_.end()) throw Error(HDP_INVALID, "there is no operation with ticket " + std::to_string(ticket));
  const std::shared_ptr<Op> op = found->second;
  if (op->status == HDP_PENDING) {
    const bool counts = op->traced && timeout > milliseconds{0};
    if (counts) note_waiter(*op, true);
    const auto until = Clock::now() + timeout;
    wait_small(lock, *op, until);
    done_.wait_until(lock, until, [&] { return op->status != HDP_PENDING; });
    if (counts) note_waiter(*op, false);
  }
  return {op->status, op->text};
}

std::optional<uint64_t> Comm::next_done(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  done_.wait_for(lock, timeout, [&] { return interrupted_ || !notify_.empty(); });
  if (!notify_.empty()) {
    const uint64_t ticket = notify_.front();
    notify_.pop_front();
    return ticket;
  }
  if (interrupted_) throw Error(HDP_PEER_LOST, "the communicator is being closed");
  return std::nullopt;
}

void Comm::release(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  ops_.erase(ticket);  // the worker holds its own reference until completion
}

void Comm::log_to(hdp_log_function log) { log_ = log; }

void Comm::interrupt() {
  std::lock_guard lock(mutex_);
  interrupted_ = true;
  done_.notify_all();
}

// ---- the listener --------------------------------------------------------------------------------------------------

void Comm::listen() {
  try {
    for (;;) {
      // Not recv alone: it would be woken each time that the server takes what this rank sent.
      pollfd readable{socket_.get(), POLLIN, 0};
      poll(&readable, 1, -1);
      Header header;
      read_all(socket_.get(), &header, sizeof header);
      header.check();
      if (header.type != Type::kPoison || header.bytes > kMaxControlBytes) break;
      std::string body(header.bytes, '\0');
      read_all(socket_.get(), body.data(), body.size());
      header.check_body(body.data());
      Reader reader(body.data(), body.size());
      const uint64_t group = reader.u64();
      const bool all = reader.u32() != 0;
      const hdp_status status = reader.status();
      Failure failure{status, reader.reason()};
      std::lock_guard lock(mutex_);
      if (all)
        failed_ = failed_ ? failed_ : std::optional(std::move(failure));
      else
        failed_groups_.try_emplace(group, std::move(failure));
      failures_changed_ = true;
      ring_bell(bell());
    }
  } catch (const Error&) {
    // the socket's end; handled below
  }
  std::lock_guard lock(mutex_);
  if (!failed_ && !closing_)
    failed_ = Failure{HDP_PEER_LOST, "the server of host " + topology_.host_names[topology_.host] + " is gone"};
  failures_changed_ = true;
  ring_bell(bell());
}

}  // namespace hdp
