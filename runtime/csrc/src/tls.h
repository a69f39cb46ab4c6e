// TLS 1.3 over a connected socket, by an OpenSSL that is loaded at run time.
//
// There are no certificates: both ends have the same 32 bytes of key (an external PSK), which authenticates each to the
// other; a Diffie-Hellman exchange besides (psk_dhe_ke) keeps what was sent secret if the key leaks later. The cipher
// is AES-128-GCM with SHA-256, the one that OpenSSL pairs with keys of this kind.
//
// One key for a whole job would let an attacker reflect a host's own messages to it, as if from another host. Give
// every connection a key of its own: derived from the job's secret, fresh random numbers of both ends, and who they
// are.
//
// OpenSSL never touches the socket: it reads and writes through a Tls, which sends many records by one call, never
// raises SIGPIPE, and leaves nothing half-written inside OpenSSL. That removes the cases in which a read has to wait
// until the socket takes more and a write until it gives more.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "openssl.h"

namespace hdp {

// A process's OpenSSL.
class TlsLibrary {
 public:
  // Load it from `path`, as for dlopen; "": from one of the usual names. Further calls return the same library and
  // refuse another. Throws Error(HDP_INVALID): not there, or not OpenSSL 1.1.1b or newer with PSK.
  static const TlsLibrary& load(const std::string& path);

  const openssl::Functions& functions() const { return functions_; }
  const openssl::BioMethod* socket_method() const { return socket_method_; }
  std::string version() const { return functions_.OpenSSL_version(0); }

 private:
  TlsLibrary(void* handle, const std::string& path);
  void* handle_;
  openssl::Functions functions_;
  openssl::BioMethod* socket_method_ = nullptr;
};

// An encrypted connection. Used by one thread at a time; different objects by different threads.
class Tls {
 public:
  // AES-GCM allows 2^24.5 records a key (RFC 8446, 5.5); we take a new one after a sixth of that, 64 GiB of full
  // records. That is seconds apart at least, and costs microseconds.
  static constexpr uint64_t kRecordsPerKey = uint64_t{1} << 22;

  // Handshake on `fd`, which stays the caller's and must outlive this. `stop_fd` (-1: none): give up when it becomes
  // readable. Throws Error(HDP_PEER_LOST): the other end is gone, silent for `timeout`, doesn't speak TLS or has
  // another key, or it was stopped; Error(HDP_SYSTEM): something failed here.
  Tls(const TlsLibrary& library, int fd, bool server, const uint8_t key[32], std::chrono::milliseconds timeout,
      int stop_fd = -1, uint64_t records_per_key = kRecordsPerKey);
  // Tells the other end that this is the end, if the socket takes it.
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // Like recv and send on a non-blocking socket, whatever the mode of `fd`. Reading 0: the other end closed, with or
  // without saying so. -1: see errno; EAGAIN: wait until the socket is readable, or writable; EPROTO: what arrived
  // isn't what the other end sent, see error().
  ssize_t read(void* into, size_t n);
  // After EAGAIN, or fewer bytes taken than offered, the next call must begin with the bytes not taken: some are
  // already encrypted, and at most they wait here, not in the socket. Nothing that was taken waits here.
  ssize_t write(const void* from, size_t n);
  ssize_t writev(const iovec* parts, int count);
  // Something that was received waits inside: read without waiting for the socket, which may never become readable.
  bool pending() const;

  const std::string& error() const { return error_; }
  uint64_t key_updates() const { return key_updates_; }
  std::string description() const;  // "TLSv1.3, TLS_AES_128_GCM_SHA256"

 private:
  friend class TlsLibrary;
  class Parts;
  static int take(openssl::Bio* bio, char* into, int n) noexcept;
  static int put(openssl::Bio* bio, const char* from, int n) noexcept;
  static unsigned client_key(openssl::Ssl* ssl, const char*, char* identity, unsigned identity_bytes,
                             unsigned char* psk, unsigned psk_bytes) noexcept;
  static unsigned server_key(openssl::Ssl* ssl, const char* identity, unsigned char* psk, unsigned psk_bytes) noexcept;

  void configure(bool server);
  void handshake(std::chrono::milliseconds timeout, int stop_fd);
  bool handshake_step(short& wanted);
  bool flush();
  bool encrypt(Parts& parts);
  bool change_key();
  ssize_t broken();
  std::string reason() const;

  const openssl::Functions& f_;
  const TlsLibrary& library_;
  const int fd_;
  const uint8_t* key_;  // during the handshake
  std::unique_ptr<openssl::Context, void (*)(openssl::Context*)> context_;
  std::unique_ptr<openssl::Ssl, void (*)(openssl::Ssl*)> ssl_;
  bool established_ = false;  // and unbroken

  // Receiving: what the last recv said.
  bool blocked_ = false;
  bool ended_ = false;
  int receive_errno_ = 0;
  bool drained_ = true;  // the last read found nothing more

  // Sending: records that the socket has not taken yet, from `sent_` on, and the bytes they hold of the caller's.
  std::vector<uint8_t> out_;
  size_t sent_ = 0;
  size_t encrypted_ = 0;
  std::vector<uint8_t> gather_;
  const uint64_t records_per_key_;
  uint64_t records_ = 0;  // since the key changed
  uint64_t key_updates_ = 0;
  std::string error_;
};

}  // namespace hdp
