// What travels over sockets: between a rank and its server, and between servers.
//
// Every message is a Header and `bytes` of body. Control bodies are written and read by Writer and Reader, which
// checks every bound; data bodies are elements and go to where they are needed without a copy.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "error.h"
#include "hdp.h"

namespace hdp {

inline constexpr uint32_t kMessageMagic = 0x31504448;  // "HDP1"
inline constexpr uint64_t kMaxControlBytes = 1 << 20;
inline constexpr size_t kMaxTag = 63;

enum class Type : uint32_t {
  // rank -> server
  kAnnounce = 1,  // Operation, ticket
  kDeclare = 2,   // group id, members
  kExpired = 3,   // key: an operation's time is up
  kLeave = 4,
  // server -> rank
  kPoison = 5,  // group (or all), status, text
  // server -> server; `kReady` and `kGroup` to hosts[0], whose sequencer answers with `kGrant` and `kVerdict`
  kGroup = 10,     // group id, members
  kReady = 11,     // Operation of this host's members
  kGrant = 12,     // key, chunk_count; Header::seq numbers grants
  kComplain = 13,  // group, status, text: please poison the group
  kVerdict = 14,   // group, status, text: the group is poisoned, in the order of grants
  kLost = 15,      // status, text: all groups are poisoned, now
  kQuery = 16,     // key: which of your ranks have not called it?
  kAnswer = 17,    // key, ranks
  kLeft = 18,      // ranks that left
  kGoodbye = 19,   // this host's ranks have all left
  // data, server -> server
  kPart = 30,   // a host's partial sum of one share of a chunk
  kShare = 31,  // a final share of a chunk
  kAck = 32,    // broadcast: this host has all of a chunk
};

struct Header {
  uint32_t magic = kMessageMagic;
  Type type{};
  uint64_t seq = 0;  // grant number
  uint32_t chunk = 0;
  uint32_t share = 0;
  uint64_t bytes = 0;  // of the body
};
static_assert(sizeof(Header) == 32);

// Names an operation the same way on every rank.
struct Key {
  uint64_t group = 0;
  uint64_t tag_hash = 0;
  uint64_t counter = 0;
  auto operator<=>(const Key&) const = default;
};

// An operation as it is announced.
struct Operation {
  Key key;
  hdp_kind kind{};
  hdp_dtype dtype{};
  hdp_op op{};
  uint32_t root = 0;
  uint64_t count = 0;
  std::string tag;

  bool same_call(const Operation& o) const {
    return kind == o.kind && dtype == o.dtype && op == o.op && root == o.root && count == o.count;
  }
  std::string name() const;  // "allreduce #17" or "allreduce 'loss' #2"
  std::string call() const;  // "allreduce(float32[1000], sum)"
};

class Writer {
 public:
  Writer& u32(uint32_t v) { return raw(&v, sizeof v); }
  Writer& u64(uint64_t v) { return raw(&v, sizeof v); }
  Writer& text(const std::string& s) {
    u32(static_cast<uint32_t>(s.size()));
    return raw(s.data(), s.size());
  }
  Writer& list(const std::vector<uint32_t>& v) {
    u32(static_cast<uint32_t>(v.size()));
    return raw(v.data(), v.size() * sizeof(uint32_t));
  }
  Writer& key(const Key& k) { return u64(k.group).u64(k.tag_hash).u64(k.counter); }
  Writer& operation(const Operation& o) {
    return key(o.key).u32(o.kind).u32(o.dtype).u32(o.op).u32(o.root).u64(o.count).text(o.tag);
  }
  std::string take() { return std::move(out_); }

 private:
  Writer& raw(const void* p, size_t n) {
    out_.append(static_cast<const char*>(p), n);
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
  std::vector<uint32_t> list();
  Key key();
  Operation operation();

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
