// TLS between two ends in one process, and against peers that aren't ours.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <ctime>

#include "tls_ends.h"

namespace hdp::units {
namespace {

// Of all threads of the process.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void exchange_both_ways(const hdp::TlsLibrary& library, Sockets sockets, const char* name, uint64_t total) {
  Connected c = connected(library, std::move(sockets));
  CHECK(c.client().description() == "TLSv1.3, TLS_AES_128_GCM_SHA256", c.client().description());
  const auto start = Clock::now();
  exchange(c, total, 10);
  const double rate = static_cast<double>(total) / seconds_since(start) / 1e9;
  std::printf("tls %s: %.2f GB/s each way at once, random sizes, verified\n", name, rate);
}

// Without checks in the loops, 512 KiB a call, for the cost alone.
void one_way_speed(const hdp::TlsLibrary& library, uint64_t total) {
  Connected c = connected(library, tcp_pair());
  std::vector<uint8_t> from(512 << 10), into(512 << 10);
  const auto start = Clock::now();
  const double cpu = cpu_seconds();
  std::thread reader([&] {
    for (uint64_t got = 0; got < total;) {
      const ssize_t n = c.server().read(into.data(), into.size());
      if (n < 0 && errno == EAGAIN)
        wait_for(c.sockets.server.fd(), POLLIN);
      else
        CHECK(n > 0);
      got += static_cast<uint64_t>(std::max<ssize_t>(n, 0));
    }
  });
  for (uint64_t sent = 0; sent < total;) {
    const size_t at = sent % from.size();
    const ssize_t n = c.client().write(from.data() + at, std::min<uint64_t>(from.size() - at, total - sent));
    if (n < 0 && errno == EAGAIN)
      wait_for(c.sockets.client.fd(), POLLOUT);
    else
      CHECK(n > 0);
    sent += static_cast<uint64_t>(std::max<ssize_t>(n, 0));
  }
  reader.join();
  const double gigabytes = static_cast<double>(total) / 1e9;
  std::printf("tls tcp: %.2f GB/s one way, 512 KiB a call; %.2f CPU seconds a GB, both ends\n",
              gigabytes / seconds_since(start), (cpu_seconds() - cpu) / gigabytes);
}

void many_at_once(const hdp::TlsLibrary& library, uint64_t total) {
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      Connected c = connected(library, i % 2 ? tcp_pair() : unix_pair());
      exchange(c, total, 100 + 2 * i);
    });
  for (auto& thread : threads) thread.join();
}

// Both directions change their keys every 7 records, while both sockets are full.
void keys_change(const hdp::TlsLibrary& library, uint64_t total) {
  Connected c = connected(library, unix_pair(), 7);
  exchange(c, total, 20);
  for (hdp::Tls* tls : {&c.client(), &c.server()})
    CHECK(tls->key_updates() >= (total / 16384 - 7) / 7, std::to_string(tls->key_updates()));
}

void another_key(const hdp::TlsLibrary& library) {
  const Sockets s = tcp_pair();
  const Ends ends = handshakes(library, s.client.fd(), s.server.fd(), key_of(1), key_of(2));
  for (const End* end : {&ends.client, &ends.server}) {
    CHECK(!end->tls && end->status == HDP_PEER_LOST, end->error);
    CHECK(end->error.find("same secret") != std::string::npos, end->error);
    CHECK(end->seconds < 10);
    std::printf("another key: %s\n", end->error.c_str());
  }
}

// The peer sends `text` and is silent; both roles refuse it.
void stranger(const hdp::TlsLibrary& library, const std::string& text, const char* expected) {
  for (const bool server : {false, true}) {
    const Sockets s = tcp_pair();
    CHECK(send(s.client.fd(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    const End end = handshake(library, s.server.fd(), server, key_of(1), 300ms);
    CHECK(!end.tls && end.status == HDP_PEER_LOST, end.error);
    CHECK(end.error.find(expected) != std::string::npos, end.error);
    CHECK(end.seconds < 2, std::to_string(end.seconds));
    std::printf("stranger: %s\n", end.error.c_str());
  }
}

// A byte now and then doesn't extend the time.
void slow_stranger(const hdp::TlsLibrary& library) {
  const Sockets s = tcp_pair();
  std::atomic<bool> over = false;
  std::thread slow([&] {
    const uint8_t hello[64] = {22, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3};  // the beginning of one
    for (size_t i = 0; i < sizeof hello && !over; ++i) {
      CHECK(send(s.client.fd(), hello + i, 1, MSG_NOSIGNAL) == 1);
      std::this_thread::sleep_for(50ms);
    }
  });
  const End end = handshake(library, s.server.fd(), true, key_of(1), 300ms);
  over = true;
  slow.join();
  CHECK(!end.tls && end.status == HDP_PEER_LOST && end.seconds < 2, end.error);
}

void gone_before_handshake(const hdp::TlsLibrary& library) {
  Sockets s = tcp_pair();
  s.client = Socket();
  const End end = handshake(library, s.server.fd(), true, key_of(1));
  CHECK(!end.tls && end.status == HDP_PEER_LOST && end.seconds < 2, end.error);
  CHECK(end.error.find("closed") != std::string::npos, end.error);
}

ssize_t read_when_ready(hdp::Tls& tls, int fd, void* into, size_t n) {
  for (;;) {
    const ssize_t got = tls.read(into, n);
    if (got >= 0 || errno != EAGAIN) return got;
    wait_for(fd, POLLIN);
  }
}

void orderly_end(const hdp::TlsLibrary& library) {
  Connected c = connected(library, tcp_pair());
  CHECK(c.client().write("last words", 10) == 10);
  c.ends.client.tls.reset();
  char text[16];
  CHECK(read_when_ready(c.server(), c.sockets.server.fd(), text, sizeof text) == 10 && !std::memcmp(text, "last", 4));
  CHECK(read_when_ready(c.server(), c.sockets.server.fd(), text, sizeof text) == 0);
  CHECK(!c.server().pending());
}

// The connection ends without TLS saying so, between records or in one. Writing to it raises no SIGPIPE.
void abrupt_end(const hdp::TlsLibrary& library, bool in_record) {
  Connected c = connected(library, tcp_pair());
  CHECK(c.client().write("words", 5) == 5);
  if (in_record) CHECK(send(c.sockets.client.fd(), "\x17\x03\x03\x10", 4, 0) == 4);
  shutdown(c.sockets.client.fd(), SHUT_RDWR);
  char text[16];
  CHECK(read_when_ready(c.server(), c.sockets.server.fd(), text, sizeof text) == 5);
  for (int again = 0; again < 3; ++again)
    CHECK(read_when_ready(c.server(), c.sockets.server.fd(), text, sizeof text) == 0);
  CHECK(!c.server().pending());
  c.sockets.client = Socket();
  ssize_t n = 0;
  for (int i = 0; i < 100 && n >= 0; ++i) {
    n = c.server().write(text, sizeof text);
    std::this_thread::sleep_for(1ms);
  }
  CHECK(n < 0 && (errno == EPIPE || errno == ECONNRESET), std::strerror(errno));
}

void reset(const hdp::TlsLibrary& library) {
  Connected c = connected(library, tcp_pair());
  const linger at_once{1, 0};
  CHECK(setsockopt(c.sockets.client.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
  c.sockets.client = Socket();
  char text[16];
  CHECK(read_when_ready(c.server(), c.sockets.server.fd(), text, sizeof text) < 0 && errno == ECONNRESET);
}

// What the socket did not take must be offered again.
void bytes_offered_again(const hdp::TlsLibrary& library) {
  Connected c = connected(library, unix_pair());
  const std::vector<uint8_t> bytes(1 << 20);
  ssize_t n;
  while ((n = c.client().write(bytes.data(), bytes.size())) > 0) {
  }
  CHECK(n < 0 && errno == EAGAIN);
  CHECK(c.client().write(bytes.data(), 1) < 0 && errno == EINVAL);
  CHECK(c.client().write(bytes.data(), bytes.size()) < 0 && errno == EAGAIN);
}

// A byte is changed on the way: what came before it arrives, it does not, and both ends learn of it.
void corruption(const hdp::TlsLibrary& library) {
  Connected c = connected(library, unix_pair());
  Sockets tap = unix_pair();
  const int client_fd = c.sockets.client.fd();
  CHECK(c.client().write("good", 4) == 4);
  char text[16];
  CHECK(read_when_ready(c.server(), c.sockets.server.fd(), text, sizeof text) == 4);
  const Socket real(dup(client_fd));
  CHECK(dup2(tap.client.fd(), client_fd) == client_fd);  // the client now writes into the tap
  CHECK(c.client().write("evil", 4) == 4);
  uint8_t record[64];
  const ssize_t n = recv(tap.server.fd(), record, sizeof record, 0);
  CHECK(n == 5 + 4 + 1 + 16);
  record[6] ^= 1;
  CHECK(send(real.fd(), record, static_cast<size_t>(n), 0) == n);
  CHECK(read_when_ready(c.server(), c.sockets.server.fd(), text, sizeof text) < 0 && errno == EPROTO);
  CHECK(c.server().error().find("bad record mac") != std::string::npos, c.server().error());
  CHECK(c.server().write(text, 4) < 0 && errno == EPROTO);
  CHECK(dup2(real.fd(), client_fd) == client_fd);
  CHECK(read_when_ready(c.client(), client_fd, text, sizeof text) < 0 && errno == EPROTO);
  CHECK(c.client().error().find("alert") != std::string::npos, c.client().error());
}

// ---- a peer with a certificate in place of the key -----------------------------------------------------------------

// OpenSSL used directly, by the names that the core has no use for.
class Certificate {
 public:
  explicit Certificate(void* handle) : handle_(handle) {
    constexpr int kEd25519 = 1087;
    void* maker = call<void*>("EVP_PKEY_CTX_new_id", kEd25519, nullptr);
    CHECK(call<int>("EVP_PKEY_keygen_init", maker) == 1 && call<int>("EVP_PKEY_keygen", maker, &key_) == 1);
    call<void>("EVP_PKEY_CTX_free", maker);
    certificate_ = call<void*>("X509_new");
    call<void*>("X509_gmtime_adj", call<void*>("X509_getm_notBefore", certificate_), 0L);
    call<void*>("X509_gmtime_adj", call<void*>("X509_getm_notAfter", certificate_), 3600L);
    CHECK(call<int>("X509_set_pubkey", certificate_, key_) == 1);
    CHECK(call<int>("X509_sign", certificate_, key_, nullptr) > 0);
  }
  ~Certificate() {
    call<void>("X509_free", certificate_);
    call<void>("EVP_PKEY_free", key_);
  }
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;

  // The handshake of a peer that trusts everybody. 1: it succeeded.
  int handshake(int fd, bool server) {
    void* context = call<void*>("SSL_CTX_new", call<void*>("TLS_method"));
    CHECK(call<int>("SSL_CTX_use_certificate", context, certificate_) == 1);
    CHECK(call<int>("SSL_CTX_use_PrivateKey", context, key_) == 1);
    void* ssl = call<void*>("SSL_new", context);
    call<int>("SSL_set_fd", ssl, fd);
    const int result = call<int>(server ? "SSL_accept" : "SSL_connect", ssl);
    call<void>("SSL_free", ssl);
    call<void>("SSL_CTX_free", context);
    return result;
  }

 private:
  template <typename Result, typename... Arguments>
  Result call(const char* name, Arguments... arguments) {
    auto* function = reinterpret_cast<Result (*)(Arguments...)>(dlsym(handle_, name));
    CHECK(function, name);
    return function(arguments...);
  }
  void* handle_;
  void* key_ = nullptr;
  void* certificate_ = nullptr;
};

// In this thread: OpenSSL by itself writes to sockets that are closed.
void ignore_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
}

void peer_with_certificate(const hdp::TlsLibrary& library, const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  CHECK(handle, path);
  Certificate certificate(handle);
  for (const bool peer_is_server : {false, true}) {
    Sockets s = tcp_pair();
    int peer = 0;
    std::thread other([&] {
      ignore_sigpipe();
      peer = certificate.handshake(s.client.fd(), peer_is_server);
    });
    const End end = handshake(library, s.server.fd(), !peer_is_server, key_of(1), 5s);
    shutdown(s.server.fd(), SHUT_RDWR);
    other.join();
    CHECK(!end.tls && end.status == HDP_PEER_LOST, end.error);
    CHECK(peer != 1);
    std::printf("certificate: %s\n", end.error.c_str());
  }
}

// ---- the library ---------------------------------------------------------------------------------------------------

void refused_library(const std::string& path, const char* expected) {
  try {
    hdp::TlsLibrary::load(path);
  } catch (const hdp::Error& error) {
    CHECK(error.status() == HDP_INVALID);
    CHECK(std::string(error.what()).find(expected) != std::string::npos, error.what());
    return;
  }
  fail("no error for", path);
}

}  // namespace

void test_tls(const std::string& path, uint64_t total) {
  refused_library("/nowhere/libssl.so", "/nowhere/libssl.so");
  refused_library("libdl.so.2", "1.1.1b");
  const auto& library = hdp::TlsLibrary::load(path);
  CHECK(&hdp::TlsLibrary::load(path) == &library && &hdp::TlsLibrary::load("") == &library);
  refused_library("libdl.so.2", "already uses");
  std::printf("%s\n", library.version().c_str());
  exchange_both_ways(library, tcp_pair(), "tcp", total);
  exchange_both_ways(library, unix_pair(), "unix", total / 4);
  one_way_speed(library, total);
  many_at_once(library, total / 16);
  keys_change(library, total / 4);
  another_key(library);
  stranger(library, "", "within 300 ms");
  stranger(library, "GET / HTTP/1.0\r\n\r\n", "the TLS handshake failed: ");
  const auto noise = random_bytes(5000, 5);
  stranger(library, std::string(noise.begin(), noise.end()), "the TLS handshake failed: ");
  slow_stranger(library);
  gone_before_handshake(library);
  orderly_end(library);
  for (bool in_record : {false, true}) abrupt_end(library, in_record);
  reset(library);
  bytes_offered_again(library);
  corruption(library);
  peer_with_certificate(library, path);
}

}  // namespace hdp::units
