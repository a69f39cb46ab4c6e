// What the core uses of OpenSSL, declared here by its documented names: no header of it is needed to build the core,
// and no library of it to link or load it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hdp::openssl {

// Opaque, as in OpenSSL: SSL, SSL_CTX, SSL_METHOD, SSL_CIPHER, BIO, BIO_METHOD.
struct Ssl;
struct Context;
struct Method;
struct Cipher;
struct Bio;
struct BioMethod;

using VerifyCallback = int (*)(int, void*);
using ClientPsk = unsigned (*)(Ssl*, const char* hint, char* identity, unsigned identity_bytes, unsigned char* psk,
                               unsigned psk_bytes);
using ServerPsk = unsigned (*)(Ssl*, const char* identity, unsigned char* psk, unsigned psk_bytes);

constexpr unsigned long kOldest = 0x1010102f;  // 1.1.1b: older ones refuse a connection's 33rd key update
constexpr int kCtrlMode = 33, kCtrlMinVersion = 123,
              kCtrlMaxVersion = 124;  // SSL_CTRL_MODE, _SET_MIN_PROTO_VERSION, ..
constexpr long kTls13 = 0x0304;
constexpr long kAutoRetry = 4;                         // SSL_MODE_AUTO_RETRY
constexpr uint64_t kAllowNoDhe = 0x400, kKtls = 0x08;  // SSL_OP_ALLOW_NO_DHE_KEX, SSL_OP_ENABLE_KTLS
constexpr int kVerifyPeer = 1;                         // SSL_VERIFY_PEER
constexpr int kKeyUpdateNotRequested = 0;
constexpr int kErrorWantRead = 2, kErrorZeroReturn = 6;  // SSL_ERROR_*
constexpr int kBioSourceSink = 0x400;
constexpr int kBioCtrlFlush = 11;
constexpr int kBioShouldRead = 0x01 | 0x08;  // BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY
constexpr int kBioRetryFlags = 0x0F;         // BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY

// F(result, name, arguments)
#define HDP_OPENSSL_FUNCTIONS(F)                                            \
  F(unsigned long, OpenSSL_version_num, ())                                 \
  F(const char*, OpenSSL_version, (int))                                    \
  F(void, OPENSSL_cleanse, (void*, size_t))                                 \
  F(unsigned long, ERR_get_error, ())                                       \
  F(void, ERR_clear_error, ())                                              \
  F(const char*, ERR_reason_error_string, (unsigned long))                  \
  F(const Method*, TLS_method, ())                                          \
  F(Context*, SSL_CTX_new, (const Method*))                                 \
  F(void, SSL_CTX_free, (Context*))                                         \
  F(long, SSL_CTX_ctrl, (Context*, int, long, void*))                       \
  F(uint64_t, SSL_CTX_clear_options, (Context*, uint64_t))                  \
  F(int, SSL_CTX_set_ciphersuites, (Context*, const char*))                 \
  F(int, SSL_CTX_set_num_tickets, (Context*, size_t))                       \
  F(void, SSL_CTX_set_verify, (Context*, int, VerifyCallback))              \
  F(void, SSL_CTX_set_psk_client_callback, (Context*, ClientPsk))           \
  F(void, SSL_CTX_set_psk_server_callback, (Context*, ServerPsk))           \
  F(void, SSL_CTX_set_default_read_buffer_len, (Context*, size_t))          \
  F(Ssl*, SSL_new, (Context*))                                              \
  F(void, SSL_free, (Ssl*))                                                 \
  F(int, SSL_set_ex_data, (Ssl*, int, void*))                               \
  F(void*, SSL_get_ex_data, (const Ssl*, int))                              \
  F(void, SSL_set_bio, (Ssl*, Bio*, Bio*))                                  \
  F(void, SSL_set_accept_state, (Ssl*))                                     \
  F(void, SSL_set_connect_state, (Ssl*))                                    \
  F(void, SSL_set_read_ahead, (Ssl*, int))                                  \
  F(int, SSL_do_handshake, (Ssl*))                                          \
  F(int, SSL_session_reused, (const Ssl*))                                  \
  F(int, SSL_get_error, (const Ssl*, int))                                  \
  F(int, SSL_read, (Ssl*, void*, int))                                      \
  F(int, SSL_write, (Ssl*, const void*, int))                               \
  F(int, SSL_has_pending, (const Ssl*))                                     \
  F(int, SSL_key_update, (Ssl*, int))                                       \
  F(int, SSL_shutdown, (Ssl*))                                              \
  F(const char*, SSL_get_version, (const Ssl*))                             \
  F(const Cipher*, SSL_get_current_cipher, (const Ssl*))                    \
  F(const char*, SSL_CIPHER_get_name, (const Cipher*))                      \
  F(int, BIO_get_new_index, ())                                             \
  F(BioMethod*, BIO_meth_new, (int, const char*))                           \
  F(void, BIO_meth_free, (BioMethod*))                                      \
  F(int, BIO_meth_set_read, (BioMethod*, int (*)(Bio*, char*, int)))        \
  F(int, BIO_meth_set_write, (BioMethod*, int (*)(Bio*, const char*, int))) \
  F(int, BIO_meth_set_ctrl, (BioMethod*, long (*)(Bio*, int, long, void*))) \
  F(Bio*, BIO_new, (const BioMethod*))                                      \
  F(void, BIO_set_data, (Bio*, void*))                                      \
  F(void*, BIO_get_data, (Bio*))                                            \
  F(void, BIO_set_init, (Bio*, int))                                        \
  F(void, BIO_set_flags, (Bio*, int))                                       \
  F(void, BIO_clear_flags, (Bio*, int))

struct Functions {
#define HDP_OPENSSL_MEMBER(result, name, arguments) result(*name) arguments = nullptr;
  HDP_OPENSSL_FUNCTIONS(HDP_OPENSSL_MEMBER)
#undef HDP_OPENSSL_MEMBER
};

}  // namespace hdp::openssl
