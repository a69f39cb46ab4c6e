#include "server.h"

#include <linux/sockios.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace hdp {
namespace {

// What an epoll event is about: a class in the high half, an index in the low half.
enum Tag : uint64_t { kRankSocket = 1, kRankProcess = 2, kPeer = 3, kBell = 4, kStop = 5 };
constexpr uint64_t tag_of(Tag tag, uint64_t index = 0) { return (static_cast<uint64_t>(tag) << 32) | index; }

// For each handshake.
constexpr auto kTlsTime = std::chrono::seconds(10);
// How long a server whose ranks are gone tries to tell the others why.
constexpr auto kTellTime = std::chrono::seconds(5);

uint32_t as_source(uint32_t local) { return local | 0x80000000u; }  // ranks, beside peers, as a Sink's source

}  // namespace

Server::Server(const hdp_server_config& config)
    : topology_(Topology::from(config.layout)),
      arena_(config.arena_fd),
      transfer_(topology_, arena_, peers_),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      event_fd_(config.event_fd),
      stop_fd_(config.stop_fd),
      tls_library_(config.tls_library),
      tls_keys_(config.tls_keys),
      log_(config.log),
      eager_(topology_, arena_, peers_, groups_),
      peer_done_(topology_.num_hosts(), false),
      rank_armed_(topology_.local_size(), false),
      peer_armed_(topology_.num_hosts(), false) {
  if (!epoll_) throw SystemError("epoll_create");
  if (arena_.local_size() != topology_.local_size())
    throw Error(HDP_INVALID, "the arena is for " + std::to_string(arena_.local_size()) + " ranks");
  if (topology_.host == 0) sequencer_.emplace(topology_, arena_.slot_bytes(), static_cast<Decisions&>(*this));
  watch(event_fd_, tag_of(kBell), EPOLLIN | EPOLLET);  // each ring is an event; nobody reads the counter
  watch(stop_fd_, tag_of(kStop), EPOLLIN);
  peers_.reserve(topology_.num_hosts());
  for (uint32_t host = 0; host < topology_.num_hosts(); ++host) {
    peers_.emplace_back(host == topology_.host ? -1 : config.peer_fds[host], host);
    peer_done_[host] = host == topology_.host;
    if (host != topology_.host) watch(peers_[host].fd(), tag_of(kPeer, host), EPOLLIN);
  }
  for (uint32_t local = 0; local < topology_.local_size(); ++local) {
    Rank rank;
    rank.connection = std::make_unique<Connection>(config.rank_fds[local], as_source(local));
    rank.pid = config.rank_pids[local];
    rank.pidfd = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, rank.pid, 0)));
    watch(rank.connection->fd(), tag_of(kRankSocket, local), EPOLLIN);
    if (rank.pidfd) watch(rank.pidfd.get(), tag_of(kRankProcess, local), EPOLLIN);
    ranks_.push_back(std::move(rank));
  }
  std::vector<uint32_t> everybody(topology_.world_size);
  for (uint32_t r = 0; r < topology_.world_size; ++r) everybody[r] = r;
  groups_.emplace(0, std::make_shared<const Group>(Group::of(topology_, 0, everybody)));
  if (sequencer_) sequencer_->declare(groups_.at(0));
  begin_timeline(config);
}

Server::~Server() { end_timeline(); }

// All servers go through the others in the same order, so no two wait for each other in a circle.
void Server::encrypt() {
  for (uint32_t host = 0; host < peers_.size(); ++host) {
    if (host == topology_.host) continue;
    try {
      peers_[host].secure(std::make_unique<Tls>(TlsLibrary::load(tls_library_), peers_[host].fd(),
                                                topology_.host < host, tls_keys_ + size_t{32} * host, kTlsTime,
                                                stop_fd_));
    } catch (const Error& e) {
      for (uint32_t left = host; left < peers_.size(); ++left) peers_[left].shut();  // nothing goes there in plain text
      throw Error(e.status(), "TLS with host " + topology_.host_names[host] + ": " + e.what());
    }
  }
}

void Server::log(const std::string& line) const {
  if (log_ != nullptr) log_(line.c_str());
}

// ---- the loop ------------------------------------------------------------------------------------------------------

void Server::run() {
  if (tls_library_ != nullptr) guarded([&] { encrypt(); });
  // A TLS handshake may have taken more from a socket than its own; epoll knows nothing of that.
  for (uint32_t host = 0; host < peers_.size(); ++host) guarded([&] { receive_peer(host); });
  step();
  epoll_event events[64];
  while (!stopped_ && !finished()) {
    const int n = await(events, 64);
    if (n < 0 && errno != EINTR) throw SystemError("epoll_wait");
    for (int i = 0; i < n; ++i) guarded([&] { dispatch(events[i].data.u64, events[i].events); });
    step();
  }
  if (lost_) throw Error(lost_->first, lost_->second);
}

// Whatever goes wrong in the server is told to its ranks and to the other servers.
template <class F>
void Server::guarded(F step) {
  try {
    step();
  } catch (const Error& e) {
    lose(e.status() == HDP_SYSTEM ? HDP_PEER_LOST : e.status(), host_name() + ": " + e.what());
  } catch (const std::exception& e) {
    lose(HDP_PEER_LOST, host_name() + ": " + e.what());
  }
}

// Whatever a tick leaves in a queue, a failure in the midst of it too, makes epoll return as soon as it can be written.
void Server::step() {
  guarded([&] { tick(); });
  arm();
}

void Server::tick() {
  std::vector<Key> due;
  for (const auto& [key, query] : queries_)
    if (Clock::now() >= query.deadline) due.push_back(key);
  for (const Key& key : due) finish_query(key);
  check_complaints();
  disagreements_ = !lost_ && sequencer_ && sequencer_->tick(Clock::now());
  say_goodbye();
  if (!lost_) eager_.look();
  do {
    if (!lost_) transfer_.advance();
  } while (flush_all() && !lost_);  // what was written frees slots
  if (timeline_) count_sent(Clock::now());
}

// While a small operation is under way its next message is near: look again for a moment, giving way to whoever can
// run, since waking a sleeping processor takes longer than the message.
int Server::await(epoll_event* events, int most) {
  const auto moment = Clock::now() + kGlance;
  while (eager_.busy()) {
    if (const int n = epoll_wait(epoll_.get(), events, most, 0); n != 0) return n;
    if (Clock::now() >= moment) break;
    sched_yield();
  }
  return epoll_wait(epoll_.get(), events, most, timeout_ms());
}

int Server::timeout_ms() const {
  const bool all_done = std::all_of(peer_done_.begin(), peer_done_.end(), [](bool done) { return done; });
  if (said_goodbye_ && (lost_ || all_done)) return 20;  // nothing says when the last bytes are out
  return queries_.empty() && complaints_.empty() && !disagreements_ ? -1 : 100;
}

bool Server::finished() const {
  const bool ranks_gone = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.gone; });
  if (!ranks_gone) return false;
  // Closing with bytes unread makes the kernel drop what is still to be sent, the first cause among it.
  if (lost_ && Clock::now() > lost_at_ + kTellTime) return true;
  for (const Connection& peer : peers_)
    if (!told(peer)) return false;
  return lost_ || std::all_of(peer_done_.begin(), peer_done_.end(), [](bool done) { return done; });
}

bool Server::told(const Connection& peer) const {
  int unsent = 0;
  return !peer.open() || (!peer.wants_write() && (ioctl(peer.fd(), SIOCOUTQ, &unsent) != 0 || unsent == 0));
}

void Server::watch(int fd, uint64_t tag, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw SystemError("epoll_ctl");
}

void Server::dispatch(uint64_t tag, uint32_t events) {
  const auto index = static_cast<uint32_t>(tag & 0xffffffffu);
  switch (static_cast<Tag>(tag >> 32)) {
    case kRankSocket:
      if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive_rank(index);
      return;
    case kRankProcess:
      receive_rank(index);  // it may have said that it leaves
      if (!ranks_[index].gone) rank_ended(index);
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, ranks_[index].pidfd.get(), nullptr);
      return;
    case kPeer:
      if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive_peer(index);
      return;
    case kBell: return;
    case kStop: stopped_ = true; return;
  }
}

void Server::receive_rank(uint32_t local) {
  Connection& connection = *ranks_[local].connection;
  if (!connection.open() || connection.receive(*this)) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd(), nullptr);
  connection.shut();
  if (!ranks_[local].gone) rank_ended(local);
}

void Server::receive_peer(uint32_t host) {
  Connection& connection = peers_[host];
  if (!connection.open() || (lost_ ? connection.discard() : connection.receive(*this))) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd(), nullptr);
  connection.shut();
  peer_ended(host);
}

// Ask epoll for what can't be written yet.
void Server::arm() {
  const auto want = [&](const Connection& connection, uint64_t tag, std::vector<bool>::reference armed) {
    if (!connection.open() || connection.wants_write() == armed) return;
    armed = connection.wants_write();
    epoll_event event{};
    event.events = armed ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.u64 = tag;
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.fd(), &event);
  };
  for (uint32_t host = 0; host < peers_.size(); ++host) want(peers_[host], tag_of(kPeer, host), peer_armed_[host]);
  for (uint32_t local = 0; local < ranks_.size(); ++local)
    want(*ranks_[local].connection, tag_of(kRankSocket, local), rank_armed_[local]);
}

// A write error says no more than that the other end is gone; reading finds that out too, after what it still said.
// True: data was written.
bool Server::flush_all() {
  bool freed = false;
  for (uint32_t step = 1; step < peers_.size(); ++step) {
    const auto host = static_cast<uint32_t>((topology_.host + step) % peers_.size());
    if (!peers_[host].wants_write()) continue;
    if (!peers_[host].flush()) receive_peer(host);
    freed |= peers_[host].freed();
  }
  for (uint32_t local = 0; local < ranks_.size(); ++local) {
    Connection& connection = *ranks_[local].connection;
    if (connection.wants_write() && !connection.flush()) receive_rank(local);
  }
  return freed;
}

}  // namespace hdp
