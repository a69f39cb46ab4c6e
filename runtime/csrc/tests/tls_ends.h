// Two ends of a TLS connection in one process: sockets, keys, handshakes, and a verified exchange both ways at once.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "error.h"
#include "tls.h"
#include "units.h"

namespace hdp::units {

using namespace std::chrono_literals;

// ---- sockets -------------------------------------------------------------------------------------------------------

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct Sockets {
  Socket client, server;
};

inline Sockets unix_pair() {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  return {Socket(fds[0]), Socket(fds[1])};
}

inline Sockets tcp_pair() {
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t n = sizeof at;
  auto* generic = reinterpret_cast<sockaddr*>(&at);
  CHECK(bind(listener.fd(), generic, n) == 0 && listen(listener.fd(), 1) == 0);
  CHECK(getsockname(listener.fd(), generic, &n) == 0 && connect(client.fd(), generic, n) == 0);
  Socket server(accept(listener.fd(), nullptr, nullptr));
  CHECK(server.fd() >= 0);
  return {std::move(client), std::move(server)};
}

inline void wait_for(int fd, short events) {
  pollfd waiting{fd, events, 0};
  CHECK(poll(&waiting, 1, 20000) == 1, "nothing happened on a socket for 20 s");
}

// ---- TLS -----------------------------------------------------------------------------------------------------------

using Key = std::array<uint8_t, 32>;
inline Key key_of(uint8_t first) {
  Key key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(first + 3 * i);
  return key;
}

// One end of a connection, or why there is none.
struct End {
  std::unique_ptr<hdp::Tls> tls;
  std::string error;
  hdp_status status = HDP_OK;
  double seconds = 0;
};

inline End handshake(const hdp::TlsLibrary& library, int fd, bool server, const Key& key,
                     std::chrono::milliseconds timeout = 20s, uint64_t records = hdp::Tls::kRecordsPerKey) {
  End end;
  const auto start = Clock::now();
  try {
    end.tls = std::make_unique<hdp::Tls>(library, fd, server, key.data(), timeout, -1, records);
  } catch (const hdp::Error& error) {
    end.error = error.what();
    end.status = error.status();
  }
  end.seconds = seconds_since(start);
  return end;
}

struct Ends {
  End client, server;
};

inline Ends handshakes(const hdp::TlsLibrary& library, int client_fd, int server_fd, const Key& client_key,
                       const Key& server_key, uint64_t records = hdp::Tls::kRecordsPerKey) {
  Ends ends;
  std::thread other([&] { ends.server = handshake(library, server_fd, true, server_key, 20s, records); });
  ends.client = handshake(library, client_fd, false, client_key, 20s, records);
  other.join();
  return ends;
}

// A connection of which both ends are up.
struct Connected {
  Sockets sockets;
  Ends ends;
  hdp::Tls& client() { return *ends.client.tls; }
  hdp::Tls& server() { return *ends.server.tls; }
};

inline Connected connected(const hdp::TlsLibrary& library, Sockets sockets,
                           uint64_t records = hdp::Tls::kRecordsPerKey) {
  const Key key = key_of(7);
  Ends ends = handshakes(library, sockets.client.fd(), sockets.server.fd(), key, key, records);
  CHECK(ends.client.tls && ends.server.tls, ends.client.error + " " + ends.server.error);
  return {std::move(sockets), std::move(ends)};
}

// Endless bytes that differ by place; the prime period keeps swapped records from looking right.
class Stream {
 public:
  explicit Stream(uint64_t seed) : bytes_(random_bytes(kPeriod, seed)) {}
  void copy(uint64_t at, uint8_t* to, size_t n) const {
    for (size_t done = 0; done < n;) {
      const size_t from = (at + done) % kPeriod, piece = std::min(n - done, kPeriod - from);
      std::memcpy(to + done, bytes_.data() + from, piece);
      done += piece;
    }
  }
  bool equals(uint64_t at, const uint8_t* p, size_t n) const {
    for (size_t done = 0; done < n;) {
      const size_t from = (at + done) % kPeriod, piece = std::min(n - done, kPeriod - from);
      if (std::memcmp(p + done, bytes_.data() + from, piece) != 0) return false;
      done += piece;
    }
    return true;
  }

 private:
  static constexpr size_t kPeriod = 1048573;
  std::vector<uint8_t> bytes_;
};

// Sends and receives `total` bytes at once, in pieces of random sizes, by one thread and poll.
class Exchange {
 public:
  Exchange(hdp::Tls& tls, int fd, uint64_t total, uint64_t seed, uint64_t peer_seed)
      : tls_(tls), fd_(fd), total_(total), rng_(seed), mine_(seed), theirs_(peer_seed) {}

  void run() {
    while (sent_ < total_ || received_ < total_) {
      const bool more = tls_.pending() && received_ < total_;
      pollfd waiting{fd_, static_cast<short>((sent_ < total_ ? POLLOUT : 0) | (received_ < total_ ? POLLIN : 0)), 0};
      const int ready = poll(&waiting, 1, more ? 0 : 20000);
      CHECK(ready > 0 || more, "an exchange stands still");
      if (waiting.revents & POLLOUT) send_some();
      if (more || waiting.revents & (POLLIN | POLLHUP)) receive_some();
    }
  }

 private:
  static constexpr size_t kPiece = 400000;
  void send_some() {
    if (offered_ == 0) offered_ = rng_() % 3 ? 1 + rng_() % kPiece : 1 + rng_() % 100;
    offered_ = static_cast<size_t>(std::min<uint64_t>(offered_, total_ - sent_));
    std::vector<uint8_t> elsewhere(offered_);  // another address at every try
    mine_.copy(sent_, elsewhere.data(), offered_);
    const size_t a = rng_() % (offered_ + 1), b = a + rng_() % (offered_ - a + 1);
    const iovec parts[] = {{elsewhere.data(), a}, {elsewhere.data() + a, b - a}, {elsewhere.data() + b, offered_ - b}};
    const ssize_t n = tls_.writev(parts, 3);
    if (n < 0 && errno == EAGAIN) return;
    CHECK(n > 0 && static_cast<size_t>(n) <= offered_, std::strerror(errno) + tls_.error());
    sent_ += static_cast<uint64_t>(n);
    offered_ -= static_cast<size_t>(n);
  }
  void receive_some() {
    for (int i = 0; i < 8 && received_ < total_; ++i) {
      const ssize_t n = tls_.read(buffer_.data(), 1 + rng_() % buffer_.size());
      if (n < 0 && errno == EAGAIN) {
        CHECK(!tls_.pending(), "it would never wait");
        return;
      }
      CHECK(n > 0, std::strerror(errno) + tls_.error());
      CHECK(theirs_.equals(received_, buffer_.data(), static_cast<size_t>(n)));
      received_ += static_cast<uint64_t>(n);
    }
  }

  hdp::Tls& tls_;
  int fd_;
  uint64_t total_, sent_ = 0, received_ = 0;
  size_t offered_ = 0;
  Rng rng_;
  Stream mine_, theirs_;
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(60000);
};

inline void exchange(Connected& c, uint64_t total, uint64_t seed) {
  Exchange server(c.server(), c.sockets.server.fd(), total, seed, seed + 1);
  Exchange client(c.client(), c.sockets.client.fd(), total, seed + 1, seed);
  std::thread other([&] { server.run(); });
  client.run();
  other.join();
}

}  // namespace hdp::units
