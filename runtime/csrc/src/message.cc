#include "message.h"

#include <cstddef>

#include "checksum.h"

namespace hdp {
namespace {

[[noreturn]] void malformed() { throw Error(HDP_SYSTEM, "a malformed message arrived"); }

}  // namespace

void Header::seal(const void* body) {
  body_sum = crc32c(0, body, bytes);
  sum = crc32c(0, this, offsetof(Header, sum));
}

void Header::check() const {
  if (sum != crc32c(0, this, offsetof(Header, sum)))
    throw Error(HDP_SYSTEM, "a message with a wrong checksum arrived: the connection corrupts data");
  if (magic != kMessageMagic) throw Error(HDP_SYSTEM, "a message of another version arrived");
}

void Header::check_body(const void* body) const {
  if (body_sum != crc32c(0, body, bytes))
    throw Error(HDP_SYSTEM, "data with a wrong checksum arrived: the connection corrupts data");
}

Writer& Writer::operation(const Operation& o) {
  return key(o.key)
      .u32(o.kind)
      .u32(o.dtype)
      .u32(o.travel)
      .u32(o.op)
      .u32(o.root)
      .u32(o.peer)
      .u64(o.count)
      .list(o.shape)
      .list(o.counts)
      .list(o.sends)
      .list(o.receives)
      .text(o.tag)
      .u32(o.device);
}

const char* Reader::need(size_t n) {
  if (static_cast<size_t>(end_ - at_) < n) malformed();
  const char* p = at_;
  at_ += n;
  return p;
}

std::string Reader::text() {
  const uint32_t n = u32();
  return std::string(need(n), n);
}

Key Reader::key() {
  Key k;
  k.group = u64();
  k.tag_hash = u64();
  k.counter = u64();
  return k;
}

Operation Reader::operation() {
  Operation o;
  o.key = key();
  const uint32_t kind = u32(), dtype = u32(), travel = u32(), op = u32();
  if (kind > HDP_RECV || dtype > HDP_BOOL || travel > HDP_BOOL || op > HDP_PRODUCT) malformed();
  o.kind = static_cast<hdp_kind>(kind);
  o.dtype = static_cast<hdp_dtype>(dtype);
  o.travel = static_cast<hdp_dtype>(travel);
  o.op = static_cast<hdp_op>(op);
  o.root = u32();
  o.peer = u32();
  o.count = u64();
  o.shape = list<uint64_t>();
  o.counts = list<uint64_t>();
  o.sends = list<uint64_t>();
  o.receives = list<uint64_t>();
  o.tag = text();
  o.device = u32() != 0;
  if (o.tag.size() > kMaxTag || o.tag.find('\0') != o.tag.npos || o.shape.size() > kMaxDims) malformed();
  return o;
}

hdp_status Reader::status() {
  const uint32_t status = u32();
  if (status < HDP_MISMATCH || status > HDP_SYSTEM) malformed();
  return static_cast<hdp_status>(status);
}

std::string Reader::reason() {
  std::string why = text();
  if (why.empty() || why.size() > kMaxReasonBytes || why.find('\0') != why.npos) malformed();
  return why;
}

}  // namespace hdp
