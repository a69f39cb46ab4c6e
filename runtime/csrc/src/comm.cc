#include "comm.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "kernels.h"

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
  groups_.emplace(0, Group::of(topology_, 0, everybody));
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
  }
  ring_bell(bell());
  worker_.join();
  send(Type::kLeave, Writer().text(abandoned_).take());
  shutdown(socket_.get(), SHUT_RDWR);  // ends the listener's recv; what was sent still arrives
  if (listener_.joinable()) listener_.join();
}

void Comm::send(Type type, const std::string& body) {
  Header header;
  header.type = type;
  header.bytes = body.size();
  std::string message(reinterpret_cast<const char*>(&header), sizeof header);
  message += body;
  std::lock_guard lock(send_mutex_);
  for (size_t at = 0; at < message.size();) {
    const ssize_t n = ::send(socket_.get(), message.data() + at, message.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // the listener finds out why
    at += static_cast<size_t>(n);
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
  Group group = Group::of(topology_, id, members);
  if (!group.has(rank_))
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

void Comm::check_request(const hdp_request& r, const Group& group) const {
  if (r.kind > HDP_BARRIER) throw Error(HDP_INVALID, "there is no operation of kind " + std::to_string(r.kind));
  if (r.dtype > HDP_BOOL) throw Error(HDP_INVALID, "there is no dtype " + std::to_string(r.dtype));
  if (r.op > HDP_PRODUCT) throw Error(HDP_INVALID, "there is no reduction " + std::to_string(r.op));
  if (r.kind == HDP_ALLREDUCE && r.op == HDP_AVG && r.dtype > HDP_FLOAT64)
    throw Error(HDP_INVALID, "avg is for floating-point types; sum integers and divide them yourself");
  if (r.kind == HDP_BROADCAST && r.root >= group.size())
    throw Error(HDP_INVALID, "root " + std::to_string(r.root) + " in a group of " + std::to_string(group.size()));
  if (r.tag != nullptr && std::strlen(r.tag) > kMaxTag)
    throw Error(HDP_INVALID, "a tag is longer than " + std::to_string(kMaxTag) + " bytes");
  const bool reads = r.kind != HDP_BROADCAST || group.members[r.root] == rank_;
  if (r.kind != HDP_BARRIER && r.count > 0 && ((reads && r.in == nullptr) || r.out == nullptr))
    throw Error(HDP_INVALID, "a buffer is NULL");
  if (r.kind == HDP_ALLGATHER && group.size() * element_bytes(static_cast<hdp_dtype>(r.dtype)) > arena_.slot_bytes())
    throw Error(HDP_INVALID, "an allgather over " + std::to_string(group.size()) + " ranks needs a larger arena");
}

uint64_t Comm::submit(const hdp_request& r) {
  auto op = std::make_shared<Op>();
  {
    std::lock_guard lock(mutex_);
    if (closing_) throw Error(HDP_INVALID, "the communicator is closed");
    auto found = groups_.find(r.group);
    if (found == groups_.end()) throw Error(HDP_INVALID, "there is no group " + std::to_string(r.group));
    check_request(r, found->second);
    op->group = &found->second;
    op->operation.tag = r.tag ? r.tag : "";
    const uint64_t tag_hash = r.tag ? hash_bytes(r.tag, op->operation.tag.size(), 2) : 0;
    op->operation.key = {r.group, tag_hash, r.once ? 1 : ++counters_[{r.group, tag_hash}]};
    op->operation.kind = static_cast<hdp_kind>(r.kind);
    op->operation.dtype = static_cast<hdp_dtype>(r.dtype);
    op->operation.op = static_cast<hdp_op>(r.op);
    op->operation.root = r.root;
    op->operation.count = r.kind == HDP_BARRIER ? 0 : r.count;
    op->in = static_cast<const uint8_t*>(r.in);
    op->out = static_cast<uint8_t*>(r.out);
    op->notify = r.notify != 0;
    op->started = Clock::now();
    op->deadline = op->started + milliseconds(std::min<uint64_t>(r.timeout_ms, uint64_t{1} << 40));
    op->ticket = next_ticket_++;
    ops_[op->ticket] = op;
    waiting_[op->ticket] = op;
    if (failed_ || failed_groups_.contains(r.group)) failures_changed_ = true;  // the worker fails it
  }
  send(Type::kAnnounce, Writer().operation(op->operation).u64(op->ticket).take());
  ring_bell(bell());  // a new deadline
  return op->ticket;
}

std::pair<hdp_status, std::string> Comm::wait(uint64_t ticket, milliseconds timeout) {
  std::unique_lock lock(mutex_);
  auto found = ops_.find(ticket);
  if (found == ops_.end()) throw Error(HDP_INVALID, "there is no operation with ticket " + std::to_string(ticket));
  const std::shared_ptr<Op> op = found->second;
  done_.wait_for(lock, timeout, [&] { return op->status != HDP_PENDING; });
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

void Comm::interrupt() {
  std::lock_guard lock(mutex_);
  interrupted_ = true;
  done_.notify_all();
}

// ---- the listener --------------------------------------------------------------------------------------------------

void Comm::listen() {
  try {
    for (;;) {
      Header header;
      read_all(socket_.get(), &header, sizeof header);
      if (header.magic != kMessageMagic || header.type != Type::kPoison || header.bytes > kMaxControlBytes) break;
      std::string body(header.bytes, '\0');
      read_all(socket_.get(), body.data(), body.size());
      Reader reader(body.data(), body.size());
      const uint64_t group = reader.u64();
      const bool all = reader.u32() != 0;
      const auto status = static_cast<hdp_status>(reader.u32());
      Failure failure{status, reader.text()};
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
