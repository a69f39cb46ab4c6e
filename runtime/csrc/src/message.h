// What travels over sockets: between a rank and its server, and between servers.
//
// Every message is a Header and `bytes` of body, each with its checksum. Control bodies are written and read by Writer
// and Reader, which checks every bound; data bodies are elements and go to where they are needed without a copy.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "error.h"
#include "operation.h"

namespace hdp {

inline constexpr uint32_t kMessageMagic = 0x32504448;  // "HDP2"
inline constexpr uint64_t kMaxControlBytes = 4 << 20;
inline constexpr uint64_t kMaxReasonBytes = 1 << 20;

enum class Type : uint32_t {
  // rank -> server
  kAnnounce = 1,  // Operation, ticket, whether it has a cell
  kDeclare = 2,   // group id, members
  kExpired = 3,   // key, time waited: an operation's time is up
  kLeave = 4,     // what was not complete
  kWithdraw = 6,  // key: an announced operation is complete, by cells
  kFailed = 7,    // text: this rank's driver failed, and it can't end what it was granted
  kStalled = 5,   // key, time waited, time left; to hosts[0]: time waited, time left, operation
  // server -> rank
  kPoison = 6,  // group (or all), status, text
  // server -> server; `kReady` and `kGroup` to hosts[0], whose sequencer answers with `kGrant` and `kVerdict`
  kGroup = 10,      // group id, members
  kReady = 11,      // whether all of this host's participants are there, whether all have cells; their views
  kGrant = 12,      // key, Cut; Header::seq numbers grants
  kComplain = 13,   // group, status, text, key (0: no operation): please poison the group
  kVerdict = 14,    // group, status, text: the group is poisoned, in the order of grants
  kLost = 15,       // status, text: all groups are poisoned, now
  kQuery = 16,      // key, members: which of your ranks have not called it?
  kAnswer = 17,     // key, ranks, how many operations of the group each has called
  kLeft = 18,       // ranks that left
  kGoodbye = 19,    // this host's ranks have all left
  kEager = 21,      // a host's sum of a small operation, see EagerExchange
  kWithdrawn = 22,  // key: of an operation that was reported as ready; it is complete, by cells
  kCredit = 20,     // bytes of data that were taken out of the receiver's buffers
  // data, server -> server
  kPart = 30,   // a host's partial sum of one share of a chunk
  kShare = 31,  // a final share of a chunk
};

struct Header {
  uint32_t magic = kMessageMagic;
  Type type{};
  uint64_t seq = 0;  // grant number
  uint32_t chunk = 0;
  uint32_t share = 0;
  uint64_t bytes = 0;  // of the body
  uint32_t body_sum = 0;
  uint32_t sum = 0;  // of the fields above

  void seal(const void* body);  // computes both sums
  void check() const;           // throws Error unless it is a header of ours, and whole
  void check_body(const void* body) const;
};
static_assert(sizeof(Header) == 40);

class Writer {
 public:
  Writer& u32(uint32_t v) { return raw(&v, sizeof v); }
  Writer& u64(uint64_t v) { return raw(&v, sizeof v); }
  Writer& text(const std::string& s) {
    u32(static_cast<uint32_t>(s.size()));
    return raw(s.data(), s.size());
  }
  template <class T>
  Writer& list(const std::vector<T>& v) {
    u32(static_cast<uint32_t>(v.size()));
    return raw(v.data(), v.size() * sizeof(T));
  }
  Writer& key(const Key& k) { return u64(k.group).u64(k.tag_hash).u64(k.counter); }
  Writer& operation(const Operation& o);
  std::string take() { return std::move(out_); }

 private:
  Writer& raw(const void* p, size_t n) {
    if (n != 0) out_.append(static_cast<const char*>(p), n);
    return *this;
  }
  std::string out_;
};

// Throws Error on a body that is too short or holds what no sender of ours writes.
class Reader {
 public:
  Reader(const void* data, size_t size) : at_(static_cast<const char*>(data)), end_(at_ + size) {}
  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  std::string text();
  template <class T = uint32_t>
  std::vector<T> list() {
    const uint32_t n = u32();
    const char* p = need(size_t{n} * sizeof(T));
    std::vector<T> v(n);
    if (n != 0) std::memcpy(v.data(), p, size_t{n} * sizeof(T));
    return v;
  }
  Key key();
  Operation operation();
  hdp_status status();   // of a failure
  std::string reason();  // of a failure: neither empty nor so long that it could not be passed on

 private:
  template <class T>
  T number() {
    T v;
    std::memcpy(&v, need(sizeof v), sizeof v);
    return v;
  }
  const char* need(size_t n);
  const char* at_;
  const char* end_;
};

}  // namespace hdp
