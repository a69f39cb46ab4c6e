#include "tls.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "error.h"

namespace hdp {

using namespace openssl;

namespace {

constexpr char kIdentity[] = "hdp";  // travels in the clear
constexpr unsigned kKeyBytes = 32;
constexpr size_t kRecordBytes = 16384;              // of plain text, the most that TLS allows
constexpr size_t kBatchBytes = 4 * kRecordBytes;    // sent by one call: less costs calls, more leaves the cache
constexpr size_t kReceiveBytes = 4 * kRecordBytes;  // received by one call
constexpr size_t kRecordOverhead = 64;

long control(Bio*, int command, long, void*) noexcept { return command == kBioCtrlFlush; }

// The process's library: found by the callbacks, which OpenSSL calls with objects that only its functions can read.
struct Loaded {
  std::mutex mutex;
  const TlsLibrary* library = nullptr;  // set once, never freed: threads may use it while the process ends
};
Loaded& loaded() {
  static auto* it = new Loaded;
  return *it;
}
// No lock: who has a Tls got its library from load().
const Functions& functions() { return loaded().library->functions(); }

struct CloseLibrary {
  void operator()(void* handle) const { dlclose(handle); }
};
using Handle = std::unique_ptr<void, CloseLibrary>;

Handle open_library(const std::string& path) {
  const std::vector<std::string> usual{"libssl.so.3", "libssl.so.1.1"};
  std::string why;
  for (const auto& name : path.empty() ? usual : std::vector{path}) {
    if (Handle handle{dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)}) return handle;
    why += (why.empty() ? "" : "; ") + std::string(dlerror());
  }
  throw Error(HDP_INVALID, "encryption needs OpenSSL 1.1.1b or newer, and its libssl can't be loaded: " + why);
}

}  // namespace

// ---- the library ---------------------------------------------------------------------------------------------------

const TlsLibrary& TlsLibrary::load(const std::string& path) {
  std::lock_guard lock(loaded().mutex);
  const TlsLibrary*& library = loaded().library;
  if (library && path.empty()) return *library;
  Handle handle = open_library(path);
  if (library && library->handle_ != handle.get())
    throw Error(HDP_INVALID, path + " can't be used: this process already uses " + library->version());
  if (!library) {
    library = new TlsLibrary(handle.get(), path);
    handle.release();
  }
  return *library;
}

TlsLibrary::TlsLibrary(void* handle, const std::string& path) : handle_(handle) {
  std::string missing;
#define HDP_OPENSSL_FIND(result, name, arguments)                                      \
  functions_.name = reinterpret_cast<decltype(functions_.name)>(dlsym(handle, #name)); \
  if (!functions_.name) missing += " " #name;
  HDP_OPENSSL_FUNCTIONS(HDP_OPENSSL_FIND)
#undef HDP_OPENSSL_FIND
  const char* needs = " can't be used: encryption needs OpenSSL 1.1.1b or newer, built with TLS 1.3 and PSK; ";
  const std::string name = path.empty() ? "libssl" : path;
  if (!missing.empty()) throw Error(HDP_INVALID, name + needs + "it has no" + missing);
  if (functions_.OpenSSL_version_num() < kOldest) throw Error(HDP_INVALID, name + needs + "this is " + version());
  socket_method_ = functions_.BIO_meth_new(functions_.BIO_get_new_index() | kBioSourceSink, "hdp");
  if (!socket_method_ || !functions_.BIO_meth_set_read(socket_method_, Tls::take) ||
      !functions_.BIO_meth_set_write(socket_method_, Tls::put) ||
      !functions_.BIO_meth_set_ctrl(socket_method_, control))
    throw Error(HDP_SYSTEM, "OpenSSL refused a BIO method");
}

// ---- called by OpenSSL ---------------------------------------------------------------------------------------------

int Tls::take(Bio* bio, char* into, int n) noexcept {
  auto& tls = *static_cast<Tls*>(functions().BIO_get_data(bio));
  functions().BIO_clear_flags(bio, kBioRetryFlags);
  ssize_t got;
  do got = recv(tls.fd_, into, static_cast<size_t>(n), MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  tls.blocked_ = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  if (tls.blocked_)
    functions().BIO_set_flags(bio, kBioShouldRead);
  else if (got < 0)
    tls.receive_errno_ = errno;
  tls.ended_ = got == 0;
  return static_cast<int>(got);
}

// Takes everything, so that OpenSSL never waits for the socket. Bounded: writev stops at a batch.
int Tls::put(Bio* bio, const char* from, int n) noexcept try {
  auto& tls = *static_cast<Tls*>(functions().BIO_get_data(bio));
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  tls.out_.insert(tls.out_.end(), bytes, bytes + n);
  return n;
} catch (const std::bad_alloc&) {
  return -1;
}

unsigned Tls::client_key(Ssl* ssl, const char*, char* identity, unsigned identity_bytes, unsigned char* psk,
                         unsigned psk_bytes) noexcept {
  if (identity_bytes < sizeof kIdentity) return 0;
  std::memcpy(identity, kIdentity, sizeof kIdentity);
  return server_key(ssl, identity, psk, psk_bytes);
}

unsigned Tls::server_key(Ssl* ssl, const char* identity, unsigned char* psk, unsigned psk_bytes) noexcept {
  const auto& tls = *static_cast<const Tls*>(functions().SSL_get_ex_data(ssl, 0));
  if (!tls.key_ || psk_bytes < kKeyBytes || std::strcmp(identity, kIdentity) != 0) return 0;
  std::memcpy(psk, tls.key_, kKeyBytes);
  return kKeyBytes;
}

// ---- handshake -----------------------------------------------------------------------------------------------------

Tls::Tls(const TlsLibrary& library, int fd, bool server, const uint8_t key[32], std::chrono::milliseconds timeout,
         int stop_fd, uint64_t records_per_key)
    : f_(library.functions()),
      library_(library),
      fd_(fd),
      key_(key),
      context_(f_.SSL_CTX_new(f_.TLS_method()), f_.SSL_CTX_free),
      ssl_(nullptr, f_.SSL_free),
      records_per_key_(records_per_key) {
  out_.reserve(kBatchBytes + kBatchBytes / kRecordBytes * kRecordOverhead + kRecordBytes + kRecordOverhead);
  gather_.resize(kRecordBytes);
  configure(server);
  handshake(timeout, stop_fd);
  key_ = nullptr;
  established_ = true;
}

Tls::~Tls() {
  if (!established_) return;
  f_.ERR_clear_error();
  f_.SSL_shutdown(ssl_.get());
  flush();
  f_.ERR_clear_error();
}

// Everything that matters is set here, since a system's openssl.cnf may change the defaults.
void Tls::configure(bool server) {
  f_.ERR_clear_error();
  Context* c = context_.get();
  if (!c || f_.SSL_CTX_ctrl(c, kCtrlMinVersion, kTls13, nullptr) != 1 ||
      f_.SSL_CTX_ctrl(c, kCtrlMaxVersion, kTls13, nullptr) != 1 ||
      f_.SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") != 1 || f_.SSL_CTX_set_num_tickets(c, 0) != 1)
    throw Error(HDP_SYSTEM, "OpenSSL can't be set up for TLS 1.3 with AES-128-GCM: " + reason());
  f_.SSL_CTX_clear_options(c, kAllowNoDhe | kKtls);
  f_.SSL_CTX_ctrl(c, kCtrlMode, kAutoRetry, nullptr);
  if (!server) f_.SSL_CTX_set_verify(c, kVerifyPeer, nullptr);  // and trust no certificate; a server has none
  f_.SSL_CTX_set_psk_client_callback(c, client_key);
  f_.SSL_CTX_set_psk_server_callback(c, server_key);
  f_.SSL_CTX_set_default_read_buffer_len(c, kReceiveBytes);
  ssl_.reset(f_.SSL_new(c));
  Bio* bio = ssl_ ? f_.BIO_new(library_.socket_method()) : nullptr;
  if (!bio) throw Error(HDP_SYSTEM, "OpenSSL can't make a connection: " + reason());
  f_.BIO_set_data(bio, this);
  f_.BIO_set_init(bio, 1);
  f_.SSL_set_bio(ssl_.get(), bio, bio);  // owns it from here on
  f_.SSL_set_ex_data(ssl_.get(), 0, this);
  f_.SSL_set_read_ahead(ssl_.get(), 1);
  server ? f_.SSL_set_accept_state(ssl_.get()) : f_.SSL_set_connect_state(ssl_.get());
}

void Tls::handshake(std::chrono::milliseconds timeout, int stop_fd) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout;
  for (short wanted = 0; !handshake_step(wanted);) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting[] = {{fd_, wanted, 0}, {stop_fd, POLLIN, 0}};
    const int ready = left > 0 ? poll(waiting, 2, static_cast<int>(std::min<int64_t>(left, INT_MAX))) : 0;
    if (ready == 0)
      throw Error(HDP_PEER_LOST, "the other end did not finish the TLS handshake within " +
                                     std::to_string(timeout.count()) + " ms; is encryption on there too?");
    if (ready < 0 && errno != EINTR) throw SystemError("waiting for the TLS handshake");
    if (ready > 0 && waiting[1].revents != 0) throw Error(HDP_PEER_LOST, "stopped during the TLS handshake");
  }
  // Only the key: a certificate that some configuration trusts doesn't count.
  if (!f_.SSL_session_reused(ssl_.get())) throw Error(HDP_PEER_LOST, "the other end did not prove that it has the key");
}

// True: done. Else `wanted` says what to wait for.
bool Tls::handshake_step(short& wanted) {
  f_.ERR_clear_error();
  const int result = f_.SSL_do_handshake(ssl_.get());
  const int why = result == 1 ? 0 : f_.SSL_get_error(ssl_.get(), result);
  const std::string text = why == 0 || why == kErrorWantRead ? "" : reason();
  const bool flushed = flush();  // an alert too
  const int flush_errno = flushed ? 0 : errno;
  const std::string failed = "the TLS handshake failed: ";
  if (!text.empty()) throw Error(HDP_PEER_LOST, failed + text + "; do both ends use encryption, with the same secret?");
  if (ended_) throw Error(HDP_PEER_LOST, failed + "the other end closed the connection");
  const int number = receive_errno_ ? receive_errno_ : flush_errno;
  if (number && number != EAGAIN) throw Error(HDP_PEER_LOST, failed + std::strerror(number));
  wanted = static_cast<short>((why ? POLLIN : 0) | (flushed ? 0 : POLLOUT));
  return wanted == 0;
}

// ---- established ---------------------------------------------------------------------------------------------------

ssize_t Tls::read(void* into, size_t n) {
  if (n == 0) return 0;
  for (;;) {
    f_.ERR_clear_error();
    blocked_ = false;
    const int got = f_.SSL_read(ssl_.get(), into, static_cast<int>(std::min<size_t>(n, INT_MAX)));
    drained_ = got <= 0;
    if (got > 0) return got;
    const int why = f_.SSL_get_error(ssl_.get(), got);
    if (why == kErrorWantRead && !blocked_) continue;  // a new key was read, say: go on, or nobody would
    if (why == kErrorZeroReturn || ended_) return 0;
    if (why != kErrorWantRead && !receive_errno_) return broken();
    errno = blocked_ ? EAGAIN : receive_errno_;
    return -1;
  }
}

ssize_t Tls::write(const void* from, size_t n) {
  const iovec part{const_cast<void*>(from), n};
  return writev(&part, 1);
}

// The caller's bytes, in pieces of one record.
class Tls::Parts {
 public:
  Parts(const iovec* parts, int count) : parts_(parts, static_cast<size_t>(count)) { skip_empty(); }
  bool empty() const { return parts_.empty(); }

  // A record's worth: in its place where it lies in one part, copied into `room` otherwise.
  std::span<const uint8_t> next(std::span<uint8_t> room) {
    const size_t here = parts_.front().iov_len - at_;
    if (here >= room.size() || parts_.size() == 1) return {advance(std::min(here, room.size()))};
    size_t n = 0;
    while (n < room.size() && !empty()) {
      const auto piece = advance(std::min(parts_.front().iov_len - at_, room.size() - n));
      std::memcpy(room.data() + n, piece.data(), piece.size());
      n += piece.size();
    }
    return room.first(n);
  }
  // False: there aren't so many.
  bool skip(size_t n) {
    while (n > 0 && !empty()) n -= advance(std::min(parts_.front().iov_len - at_, n)).size();
    return n == 0;
  }

 private:
  std::span<const uint8_t> advance(size_t n) {
    const std::span<const uint8_t> piece(static_cast<const uint8_t*>(parts_.front().iov_base) + at_, n);
    at_ += n;
    skip_empty();
    return piece;
  }
  void skip_empty() {
    while (!parts_.empty() && at_ == parts_.front().iov_len) {
      parts_ = parts_.subspan(1);
      at_ = 0;
    }
  }
  std::span<const iovec> parts_;
  size_t at_ = 0;  // in the first of them
};

ssize_t Tls::writev(const iovec* list, int count) {
  Parts parts(list, count);
  if (!parts.skip(encrypted_)) {
    errno = EINVAL;  // these aren't the bytes that were offered before
    return -1;
  }
  for (ssize_t taken = 0;;) {
    while (!parts.empty() && out_.size() < kBatchBytes)
      if (!encrypt(parts)) return taken ? taken : broken();
    if (!flush()) return taken ? taken : -1;
    taken += static_cast<ssize_t>(std::exchange(encrypted_, 0));
    if (parts.empty()) return taken;
  }
}

bool Tls::pending() const { return !drained_ && f_.SSL_has_pending(ssl_.get()) == 1; }

std::string Tls::description() const {
  return std::string(f_.SSL_get_version(ssl_.get())) + ", " +
         f_.SSL_CIPHER_get_name(f_.SSL_get_current_cipher(ssl_.get()));
}

// One record more into `out_`.
bool Tls::encrypt(Parts& parts) {
  if (records_ >= records_per_key_ && !change_key()) return false;
  const auto piece = parts.next(gather_);
  f_.ERR_clear_error();
  if (f_.SSL_write(ssl_.get(), piece.data(), static_cast<int>(piece.size())) != static_cast<int>(piece.size()))
    return false;
  encrypted_ += piece.size();
  ++records_;
  return true;
}

// Of this direction; the other end changes its own. The message goes before the next record.
bool Tls::change_key() {
  f_.ERR_clear_error();
  if (f_.SSL_key_update(ssl_.get(), kKeyUpdateNotRequested) != 1 || f_.SSL_do_handshake(ssl_.get()) != 1) return false;
  records_ = 0;
  ++key_updates_;
  return true;
}

// Send what the socket takes. False: something is left, see errno.
bool Tls::flush() {
  while (sent_ < out_.size()) {
    const ssize_t n = send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    sent_ += static_cast<size_t>(n);
  }
  out_.clear();
  sent_ = 0;
  return true;
}

// OpenSSL gave up. Tell the other end, which an alert in `out_` does.
ssize_t Tls::broken() {
  if (error_.empty()) error_ = reason();
  established_ = false;
  flush();
  errno = EPROTO;
  return -1;
}

// What OpenSSL says; empties this thread's queue of errors, which others use too.
std::string Tls::reason() const {
  const unsigned long code = f_.ERR_get_error();
  const char* text = code ? f_.ERR_reason_error_string(code) : nullptr;
  f_.ERR_clear_error();
  return text ? text : "";
}

}  // namespace hdp
