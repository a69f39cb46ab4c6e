#include "connection.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

namespace hdp {
namespace {

constexpr int kMaxParts = 32;               // iovecs of one write
constexpr uint64_t kMaxQueued = 256 << 20;  // bytes of control messages that the other end has not taken
constexpr size_t kReceiveQuota = 1 << 20;   // bytes of one connection before others get their turn

bool is_data(Type t) { return t == Type::kPart || t == Type::kShare; }

}  // namespace

Connection::Connection(int fd, uint32_t source) : fd_(fd), source_(source) {
  if (fd_ < 0) {
    open_ = false;
    return;
  }
  const int flags = fcntl(fd_, F_GETFL);
  if (flags < 0 || fcntl(fd_, F_SETFL, flags | O_NONBLOCK) != 0) throw SystemError("making a socket non-blocking");
}

// ---- writing -------------------------------------------------------------------------------------------------------

void Connection::send(Type type, std::string body, uint64_t seq) {
  if (!open_) return;
  Out out;
  out.header.type = type;
  out.header.seq = seq;
  out.header.bytes = body.size();
  queued_ += out.header.bytes + sizeof(Header);
  out.body = std::move(body);
  queue_.push_back(std::move(out));
}

void Connection::send_data(const Header& header, const void* data, uint32_t* pending) {
  if (!open_) return;
  Out out;
  out.header = header;
  out.data = static_cast<const uint8_t*>(data);
  out.pending = pending;
  queue_.push_back(std::move(out));
}

bool Connection::flush() {
  while (open_ && !queue_.empty()) {
    iovec parts[kMaxParts];
    const int n = gather(parts);
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(n);
    const ssize_t wrote = tls_ ? tls_->writev(parts, n) : sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (wrote < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
    written(static_cast<size_t>(wrote));
  }
  return open_;
}

int Connection::gather(iovec* parts) {
  int n = 0;
  for (auto out = queue_.begin(); out != queue_.end() && n + 2 <= kMaxParts; ++out) {
    out->seal();
    size_t skip = out->sent;
    if (skip < sizeof(Header)) {
      parts[n++] = {reinterpret_cast<uint8_t*>(&out->header) + skip, sizeof(Header) - skip};
      skip = 0;
    } else {
      skip -= sizeof(Header);
    }
    if (out->header.bytes > skip) parts[n++] = {const_cast<uint8_t*>(out->payload()) + skip, out->header.bytes - skip};
  }
  return n;
}

void Connection::written(size_t left) {
  sent_ += left;
  while (!queue_.empty()) {
    Out& out = queue_.front();
    const size_t take = std::min(left, out.total() - out.sent);
    out.sent += take;
    left -= take;
    if (out.sent < out.total()) return;
    if (!out.data) queued_ -= out.total();
    if (out.pending) {
      --*out.pending;
      freed_ = true;
    }
    queue_.pop_front();
  }
}

// ---- reading -------------------------------------------------------------------------------------------------------

ssize_t Connection::read_some(void* into, size_t n) { return tls_ ? tls_->read(into, n) : recv(fd_, into, n, 0); }

bool Connection::receive(Sink& sink) {
  size_t quota = kReceiveQuota;
  while (open_ && (quota > 0 || (tls_ && tls_->pending()))) {  // what TLS holds, epoll doesn't tell
    const size_t want = (in_body_ ? header_.bytes : sizeof(Header)) - got_;
    const ssize_t n = read_message(want);
    if (n == 0) return false;
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EPROTO && tls_) throw Error(HDP_SYSTEM, "the connection corrupts data: " + tls_->error());
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
    const auto got = static_cast<size_t>(n);
    quota -= std::min(quota, got);
    if (got < want) {
      got_ += got;
      if (tls_) continue;
      return open_;  // the socket has no more
    }
    const bool beyond = got > want || in_body_;  // the next header was asked for too
    if (in_body_ || begin_body(sink)) end_body(sink);
    if (!beyond) continue;
    header_ = next_;
    got_ = got - want;
    if (got_ == sizeof(Header)) {
      if (begin_body(sink)) end_body(sink);
    } else if (!tls_) {
      return open_;
    }
  }
  return open_;
}

// Up to `want` bytes of the header or the body; behind a body, of the next header too, which saves a call a message.
ssize_t Connection::read_message(size_t want) {
  uint8_t* into = in_body_ ? body_ + got_ : reinterpret_cast<uint8_t*>(&header_) + got_;
  if (!in_body_ || tls_) return read_some(into, want);
  iovec parts[] = {{into, want}, {&next_, sizeof next_}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  return recvmsg(fd_, &message, 0);
}

bool Connection::discard() {
  uint8_t scratch[65536];
  ssize_t n;
  while ((n = read_some(scratch, sizeof scratch)) > 0 || (n < 0 && errno == EINTR)) {
  }
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

// The header is complete. True: there is no body to wait for.
bool Connection::begin_body(Sink& sink) {
  got_ = 0;
  header_.check();
  if (is_data(header_.type)) {
    body_ = sink.place(source_, header_);
  } else {
    if (header_.bytes > kMaxControlBytes) throw Error(HDP_SYSTEM, "a control message over its limit arrived");
    control_.resize(header_.bytes);
    body_ = control_.data();
  }
  in_body_ = header_.bytes > 0;
  return !in_body_;
}

void Connection::end_body(Sink& sink) {
  got_ = 0;
  in_body_ = false;
  header_.check_body(body_);
  if (queued_ > kMaxQueued) throw Error(HDP_SYSTEM, "the other end of a connection sends, and does not read");
  if (is_data(header_.type))
    sink.data(source_, header_, body_);
  else
    sink.control(source_, header_, Reader(body_, header_.bytes));
}

}  // namespace hdp
