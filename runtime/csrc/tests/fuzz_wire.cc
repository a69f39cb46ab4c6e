#include "fuzz_wire.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "eager.h"

namespace hdp::fuzz {
namespace {

constexpr Type kTypes[] = {Type::kAnnounce, Type::kDeclare,   Type::kExpired, Type::kLeave,  Type::kStalled,
                           Type::kPoison,   Type::kGroup,     Type::kReady,   Type::kGrant,  Type::kComplain,
                           Type::kVerdict,  Type::kLost,      Type::kQuery,   Type::kAnswer, Type::kLeft,
                           Type::kGoodbye,  Type::kCredit,    Type::kPart,    Type::kShare,  Type::kWithdraw,
                           Type::kEager,    Type::kWithdrawn, Type::kFailed};

bool is_data(Type type) { return type == Type::kPart || type == Type::kShare; }

bool read_all(int fd, char* at, size_t n) {
  while (n > 0) {
    const ssize_t got = recv(fd, at, n, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

void mutate_header(Rng& rng, Header& header) {
  switch (pick(rng, 4)) {
    case 0:
      header.type = one_in(rng, 4) ? static_cast<Type>(odd_number(rng)) : kTypes[pick(rng, std::size(kTypes))];
      return;
    case 1: header.seq = one_in(rng, 2) ? odd_number(rng) : header.seq + pick(rng, 5) - 2; return;
    case 2:
      header.chunk = static_cast<uint32_t>(one_in(rng, 2) ? odd_number(rng) : header.chunk + pick(rng, 3) - 1);
      return;
    default: header.share = static_cast<uint32_t>(one_in(rng, 2) ? odd_number(rng) : pick(rng, 9)); return;
  }
}

// All fields are numbers of 4 or 8 bytes at multiples of 4, up to the first text.
void mutate_number(Rng& rng, std::string& body) {
  if (body.size() < 4) return;
  const size_t at = pick(rng, body.size() / 4) * 4;
  uint64_t value = odd_number(rng);
  uint32_t old;
  std::memcpy(&old, body.data() + at, 4);
  if (one_in(rng, 3)) value = old + pick(rng, 5) - 2;
  if (one_in(rng, 4)) std::memcpy(&value, body.data() + pick(rng, body.size() / 4) * 4, 4);  // another field's
  std::memcpy(body.data() + at, &value, one_in(rng, 3) && at + 8 <= body.size() ? 8 : 4);
}

void mutate_length(Rng& rng, std::string& body) {
  if (one_in(rng, 3))
    body += random_bytes(rng, 1 + pick(rng, 64));
  else
    body.resize(pick(rng, body.size() + 1));
}

void mutate_operation(Rng& rng, Operation& o) {
  const auto list = [&](std::vector<uint64_t>& v) {
    if (v.empty() || one_in(rng, 4))
      v.resize(pick(rng, v.size() + 3), odd_number(rng));
    else
      v[pick(rng, v.size())] = one_in(rng, 2) ? odd_number(rng) : pick(rng, 3000);
  };
  switch (pick(rng, 12)) {
    case 0: o.kind = static_cast<hdp_kind>(pick(rng, HDP_RECV + 1)); return;
    case 1: o.dtype = static_cast<hdp_dtype>(pick(rng, HDP_BOOL + 1)); return;
    case 2: o.op = static_cast<hdp_op>(pick(rng, HDP_PRODUCT + 1)); return;
    case 3: o.root = static_cast<uint32_t>(odd_number(rng)); return;
    case 4: o.peer = static_cast<uint32_t>(odd_number(rng)); return;
    case 5: o.count = odd_number(rng); return;
    case 6: return list(o.counts);
    case 7: return list(o.sends);
    case 8: return list(o.receives);
    case 9: o.travel = static_cast<hdp_dtype>(pick(rng, HDP_BOOL + 1)); return;
    case 10: o.key.counter += pick(rng, 3) - 1; return;
    default: o.tag = random_bytes(rng, pick(rng, 80)); return;
  }
}

void mutate_announcement(Rng& rng, Message& m) {
  Reader r(m.body.data(), m.body.size());
  Operation o = r.operation();
  const uint64_t ticket = r.u64();
  uint32_t in_cell = r.u32();
  if (one_in(rng, 6))
    in_cell = !in_cell;
  else
    mutate_operation(rng, o);
  m.body = Writer().operation(o).u64(ticket).u32(in_cell).take();
}

void mutate_report(Rng& rng, Message& m) {
  Reader r(m.body.data(), m.body.size());
  uint32_t complete = r.u32(), in_cells = r.u32();
  std::vector<View> views(std::min<uint32_t>(r.u32(), 64));
  for (View& v : views) v = {r.operation(), r.list()};
  if (views.empty()) return;
  View& v = views[pick(rng, views.size())];
  switch (pick(rng, 7)) {
    case 0: complete = !complete; break;
    case 6: in_cells = !in_cells; break;
    case 1: views.push_back(v); break;
    case 2: views.pop_back(); break;
    case 3: v.ranks.resize(pick(rng, v.ranks.size() + 3), static_cast<uint32_t>(pick(rng, 6))); break;
    case 4: v.ranks = std::vector<uint32_t>(1 + pick(rng, 3), static_cast<uint32_t>(odd_number(rng))); break;
    default: mutate_operation(rng, v.operation);
  }
  Writer w;
  w.u32(complete).u32(in_cells).u32(static_cast<uint32_t>(views.size()));
  for (const View& view : views) w.operation(view.operation).list(view.ranks);
  m.body = w.take();
}

uint32_t some_rank(Rng& rng, uint32_t size) {
  return one_in(rng, 12) ? static_cast<uint32_t>(odd_number(rng)) : static_cast<uint32_t>(pick(rng, size));
}

std::vector<uint32_t> some_ranks(Rng& rng, uint32_t size) {
  std::vector<uint32_t> ranks;
  for (uint64_t n = pick(rng, size + 1); n > 0; --n) ranks.push_back(some_rank(rng, size));
  if (one_in(rng, 2)) ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Key some_key(Rng& rng, uint64_t group) { return {one_in(rng, 12) ? odd_number(rng) : group, 0, 1 + pick(rng, 12)}; }

std::string some_text(Rng& rng) { return one_in(rng, 20) ? random_bytes(rng, 100000) : "fuzzed"; }

uint32_t some_status(Rng& rng) { return static_cast<uint32_t>(one_in(rng, 4) ? odd_number(rng) : 2 + pick(rng, 5)); }

std::string report_body(Rng& rng, uint64_t group, uint32_t size) {
  Writer w;
  const uint64_t views = 1 + pick(rng, 2);
  w.u32(static_cast<uint32_t>(pick(rng, 4) != 0)).u32(one_in(rng, 2)).u32(static_cast<uint32_t>(views));
  const Operation first = random_operation(rng, group, size);
  for (uint64_t i = 0; i < views; ++i)
    w.operation(one_in(rng, 2) ? first : random_operation(rng, group, size)).list(some_ranks(rng, size));
  return w.take();
}

// Of a call that a real rank makes only by chance: then it is compared, and else it waits.
std::string eager_body(Rng& rng, uint64_t group, uint32_t size) {
  const Operation o = random_operation(rng, group, size);
  const Call call = call_of(o);
  const size_t bytes = one_in(rng, 20) ? odd_number(rng) % 200000 : std::min<uint64_t>(o.count, 4000) * 4;
  Writer w;
  w.key(some_key(rng, group)).u64(call.fingerprint).u64(one_in(rng, 2) ? 0 : call.shape);
  return w.u32(static_cast<uint32_t>(one_in(rng, 8) ? pick(rng, 4) : 1 + one_in(rng, 4)))
      .text(random_bytes(rng, bytes))
      .take();
}

std::string control_body(Rng& rng, Type type, uint64_t group, uint32_t size) {
  Writer w;
  switch (type) {
    case Type::kAnnounce: return w.operation(random_operation(rng, group, size)).u64(rng()).u32(one_in(rng, 2)).take();
    case Type::kWithdraw:  // and kPoison, which has the same number and goes the other way
      if (one_in(rng, 2)) return w.key(some_key(rng, group)).take();
      return w.u64(group).u32(one_in(rng, 2)).u32(some_status(rng)).text(some_text(rng)).take();
    case Type::kWithdrawn: return w.key(some_key(rng, group)).take();
    case Type::kEager: return eager_body(rng, group, size);
    case Type::kDeclare:
    case Type::kGroup: return w.u64(one_in(rng, 3) ? group : pick(rng, 40)).list(some_ranks(rng, size)).take();
    case Type::kExpired: return w.key(some_key(rng, group)).u64(odd_number(rng)).take();
    case Type::kFailed:
    case Type::kLeave: return w.text(one_in(rng, 2) ? "" : some_text(rng)).take();
    case Type::kReady: return report_body(rng, group, size);
    case Type::kGrant: return w.key(some_key(rng, group)).u64(odd_number(rng)).u64(odd_number(rng)).take();
    case Type::kComplain:
      return w.u64(group).u32(some_status(rng)).text(some_text(rng)).key(some_key(rng, group)).take();
    case Type::kVerdict: return w.u64(group).u32(some_status(rng)).text(some_text(rng)).take();
    case Type::kLost: return w.u32(some_status(rng)).text(some_text(rng)).take();
    case Type::kQuery: return w.key(some_key(rng, group)).list(some_ranks(rng, size)).take();
    case Type::kAnswer:
      return w.key(some_key(rng, group))
          .list(some_ranks(rng, size))
          .list(std::vector<uint64_t>(pick(rng, 4), 7))
          .take();
    case Type::kLeft: return w.list(some_ranks(rng, size)).take();
    case Type::kCredit: return w.u64(odd_number(rng)).take();
    default: return {};
  }
}

}  // namespace

void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::abort();
}

Message::Message(Type type, std::string control, uint64_t seq) : body(std::move(control)) {
  header.type = type;
  header.seq = seq;
}

std::string Message::sealed() {
  header.bytes = body.size();
  header.seal(body.data());
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + body;
}

bool write_all(int fd, const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += static_cast<size_t>(n);
  }
  return true;
}

std::optional<Message> read_message(int fd) {
  Message m;
  if (!read_all(fd, reinterpret_cast<char*>(&m.header), sizeof m.header)) return {};
  m.header.check();  // the library sends nothing else
  m.body.resize(m.header.bytes);
  if (!read_all(fd, m.body.data(), m.body.size())) return {};
  return m;
}

void forget(int fd) {
  while (read_message(fd)) {
  }
}

std::string random_bytes(Rng& rng, size_t n) {
  std::string bytes(n, '\0');
  for (char& b : bytes) b = static_cast<char>(rng());
  return bytes;
}

uint64_t odd_number(Rng& rng) {
  static constexpr uint64_t kNumbers[] = {0,
                                          1,
                                          2,
                                          3,
                                          4,
                                          7,
                                          8,
                                          63,
                                          64,
                                          65,
                                          255,
                                          256,
                                          4096,
                                          65535,
                                          65536,
                                          1 << 20,
                                          4 << 20,
                                          INT32_MAX,
                                          UINT32_MAX,
                                          1ull << 32,
                                          1ull << 48,
                                          (1ull << 48) + 1,
                                          INT64_MAX,
                                          1ull << 63,
                                          UINT64_MAX - 1,
                                          UINT64_MAX};
  return one_in(rng, 8) ? rng() : kNumbers[pick(rng, std::size(kNumbers))];
}

void mutate(Rng& rng, Message& m) {
  try {
    if (one_in(rng, 2) && m.header.type == Type::kAnnounce) return mutate_announcement(rng, m);
    if (one_in(rng, 2) && m.header.type == Type::kReady) return mutate_report(rng, m);
  } catch (const Error&) {  // it has been mutated before
  }
  const uint64_t what = pick(rng, 8);
  if (is_data(m.header.type) ? what < 6 : what < 2) return mutate_header(rng, m.header);
  if (what >= 6) return mutate_length(rng, m.body);
  mutate_number(rng, m.body);
}

Operation random_operation(Rng& rng, uint64_t group, uint32_t size) {
  Operation o;
  o.key = {group, 0, 1 + pick(rng, 12)};
  o.kind = static_cast<hdp_kind>(pick(rng, HDP_RECV + 1));
  o.dtype = o.travel = static_cast<hdp_dtype>(pick(rng, HDP_BOOL + 1));
  o.op = o.reduces() ? static_cast<hdp_op>(pick(rng, HDP_PRODUCT + 1)) : HDP_SUM;
  o.root = static_cast<uint32_t>(pick(rng, size));
  o.count = pick(rng, 5000);
  if (o.is_message()) o.peer = (o.root + 1) % size;
  if (o.exchanges()) {
    const size_t ends = o.is_message() ? 2 : size;
    for (size_t i = 0; i < ends; ++i) {
      o.sends.push_back(pick(rng, 100));
      o.receives.push_back(pick(rng, 100));
    }
  } else if (one_in(rng, 4)) {
    o.counts.assign(size, o.count);
  }
  if (one_in(rng, 8)) mutate_operation(rng, o);
  return o;
}

Message random_message(Rng& rng, const std::vector<Type>& types, uint64_t group, uint32_t size) {
  const Type type = types[pick(rng, types.size())];
  if (!is_data(type)) return Message(type, control_body(rng, type, group, size), pick(rng, 4));
  static constexpr uint64_t kLengths[] = {1, 2, 4, 8, 64, 512, 1024, 2048, 4096};
  Message m(type, random_bytes(rng, kLengths[pick(rng, std::size(kLengths))]), 1 + pick(rng, 6));
  m.header.chunk = static_cast<uint32_t>(pick(rng, 3));
  m.header.share = static_cast<uint32_t>(pick(rng, size * size));
  return m;
}

}  // namespace hdp::fuzz
