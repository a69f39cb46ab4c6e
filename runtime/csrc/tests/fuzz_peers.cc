// A real server with real ranks among hosts that are ours.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>

#include "cut.h"
#include "fuzz_scenarios.h"
#include "fuzz_world.h"
#include "kernels.h"

namespace hdp::fuzz {
namespace {

using std::chrono::milliseconds;

const std::vector<Type> kPeerTypes = {Type::kGroup,   Type::kReady,    Type::kGrant,  Type::kComplain, Type::kStalled,
                                      Type::kLost,    Type::kQuery,    Type::kAnswer, Type::kLeft,     Type::kVerdict,
                                      Type::kGoodbye, Type::kCredit,   Type::kPart,   Type::kShare,    Type::kEager,
                                      Type::kEager,   Type::kWithdrawn};

// Ranks of real hosts meet their servers untouched.
void pass_on(World& world, uint32_t rank) {
  const auto copy = [](int from, int to) {
    while (auto message = read_message(from)) write_all(to, message->sealed());
    shutdown(to, SHUT_RDWR);
  };
  const int a = world.rank_side(rank), b = world.server_side(rank);
  world.play([=] { copy(a, b); });
  world.play([=] { copy(b, a); });
}

void host_with_ranks(World& world, uint32_t host, const Program& program) {
  world.serve(host);
  for (uint32_t r = 0; r < world.world(); ++r)
    if (world.host_of(r) == host) {
      pass_on(world, r);
      world.join(r, program);
    }
}

void end(World& world) {
  world.wait_ranks();
  world.cut();
  world.wait_servers();
  world.wait_players();
}

// ---- a sequencer that is not ours ----------------------------------------------------------------------------------

constexpr uint64_t kMaxSlot = 1 << 20;

// What host `from` would send to host `to` of one chunk.
std::vector<Message> data_of(const Operation& o, const Group& group, const std::vector<View>& views, const Cut& cut,
                             uint64_t seq, uint32_t chunk, uint32_t from, uint32_t to, const Topology& topology) {
  std::vector<Message> messages;
  const uint64_t element = element_bytes(o.dtype);
  const auto add = [&](Type type, uint32_t share, uint64_t count) {
    if (count == 0 || count > kMaxSlot) return;
    Message m(type, std::string(count * element, '\1'), seq);
    m.header.chunk = chunk;
    m.header.share = share;
    messages.push_back(std::move(m));
  };
  const auto host_of = [&](uint32_t place) { return topology.host_of(group.members[place]); };
  std::vector<Run> runs;
  if (o.exchanges()) {
    for (const View& view : views)
      for (uint32_t rank : view.ranks) {
        if (!group.has(rank)) continue;
        block_runs(view.operation.receives, 0, cut, chunk, runs);
        for (uint32_t p = 0; p < std::min<size_t>(group.size(), runs.size()); ++p)
          if (host_of(p) == from) add(Type::kShare, p * group.size() + group.place_of(rank), runs[p].count);
      }
    return messages;
  }
  if (cut_by_piece(o)) {
    piece_runs(o, group.size(), cut, chunk, runs);
    for (uint32_t p = 0; p < group.size(); ++p)
      if (o.kind == HDP_ALLGATHER ? host_of(p) == from : host_of(p) == to)
        add(o.kind == HDP_ALLGATHER ? Type::kShare : Type::kPart, p, runs[p].count);
    return messages;
  }
  const uint64_t n = whole_run(o, cut, chunk).count, hosts = group.hosts.size();
  const uint64_t width = ((n + hosts - 1) / hosts + 15) / 16 * 16;
  const auto share_size = [&](uint64_t share) { return std::min(n, (share + 1) * width) - std::min(n, share * width); };
  const uint32_t mine = group.host_index(from), theirs = group.host_index(to);
  if (o.reduces()) add(Type::kPart, theirs, share_size(theirs));
  add(Type::kShare, mine, share_size(mine));
  if (o.kind == HDP_BROADCAST) add(Type::kShare, theirs, share_size(theirs));
  return messages;
}

// Hosts 0 and 2 of a job; host 1 is real. They agree to everything.
class Others {
 public:
  Others(World& world, Rng& rng) : world_(world), rng_(rng()), pace_(pick(rng_, 3)), errors_(3 + pick(rng_, 30)) {
    for (int32_t size : world.sizes()) {
      topology_.first_rank.push_back(topology_.world_size);
      topology_.local_sizes.push_back(static_cast<uint32_t>(size));
      topology_.host_names.push_back("host");
      topology_.world_size += static_cast<uint32_t>(size);
    }
    std::vector<uint32_t> all(topology_.world_size);
    for (uint32_t r = 0; r < topology_.world_size; ++r) all[r] = r;
    groups_.emplace(0, Group::of(topology_, 0, all));
  }

  void run() {
    while (auto message = read_message(world_.peer(1, 0))) {
      Reader body(message->body.data(), message->body.size());
      if (message->header.type == Type::kGroup) {
        const uint64_t id = body.u64();
        groups_.emplace(id, Group::of(topology_, id, body.list()));
      }
      if (message->header.type == Type::kReady) {
        const bool complete = body.u32() != 0;
        body.u32();  // whether it may go by cells: never here, since the other hosts send none
        std::vector<View> views(body.u32());
        for (View& view : views) view = {body.operation(), body.list()};
        if (complete || one_in(rng_, 3)) grant(std::move(views));
      }
    }
  }

 private:
  bool err() { return one_in(rng_, errors_); }

  void grant(std::vector<View> views) {
    const Operation o = views.at(0).operation;
    const Group& all = groups_.at(o.key.group);
    const Group group = o.is_message() ? Group::of(topology_, all.id, {all.members[o.root], all.members[o.peer]}) : all;
    Cut cut;
    try {
      cut = choose_cut(o, group, {views}, world_.slot_bytes());
    } catch (const Error&) {
    }
    uint64_t seq = err() ? pick(rng_, seq_ + 2) : ++seq_;
    if (err()) cut.chunks = one_in(rng_, 2) ? odd_number(rng_) : cut.chunks + pick(rng_, 3) - 1;
    if (err()) cut.elements = odd_number(rng_);
    Message m(Type::kGrant, Writer().key(o.key).u64(cut.chunks).u64(cut.elements).take(), seq);
    if (err()) mutate(rng_, m);
    std::vector<std::pair<int, std::string>> data;
    for (uint32_t from : {0u, 2u})
      if (group.on_host(from) && cut.chunks > 0)
        for (uint32_t c = 0; c < std::min<uint64_t>(cut.chunks, 24); ++c)
          for (Message& d : data_of(o, group, views, cut, seq, c, from, 1, topology_)) {
            if (err()) mutate(rng_, d);
            data.emplace_back(world_.peer(1, from), d.sealed());
            if (err()) data.push_back(data.back());
          }
    if (pace_ == 0) std::shuffle(data.begin(), data.end(), rng_);
    const size_t before = one_in(rng_, 2) ? 0 : pick(rng_, data.size() + 1);
    // Of each link, a message may be on its way while the grant comes.
    std::string rest;
    for (size_t i = 0; i < before; ++i) {
      std::string bytes = data[i].second;
      if (i + 1 == before && data[i].first == world_.peer(1, 2)) {
        rest = bytes.substr(std::min<size_t>(bytes.size(), 40 + pick(rng_, 8)));
        bytes.resize(bytes.size() - rest.size());
      }
      write_all(data[i].first, bytes);
    }
    if (before > 0) pause();
    write_all(world_.peer(1, 0), m.sealed());
    if (!rest.empty()) {
      pause();
      write_all(world_.peer(1, 2), rest);
    }
    for (size_t i = before; i < data.size(); ++i) {
      write_all(data[i].first, data[i].second);
      if (pace_ == 1 && one_in(rng_, 4)) pause();
    }
  }

  void pause() { std::this_thread::sleep_for(std::chrono::microseconds(pick(rng_, 4000))); }

  World& world_;
  Rng rng_;
  uint64_t pace_, errors_;
  Topology topology_;
  std::map<uint64_t, Group> groups_;
  uint64_t seq_ = 0;
};

// ---- floods --------------------------------------------------------------------------------------------------------

uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// A valid message of `type`; all of them differ.
Message nth(Type type, uint64_t n, uint32_t rank) {
  Operation o;
  o.key = {0, 0, n + 1};
  o.kind = HDP_ALLREDUCE;
  o.count = 100;
  const std::string text(1000, 'x');
  switch (type) {
    case Type::kGroup:
    case Type::kDeclare: return Message(type, Writer().u64(n + 1).list(std::vector<uint32_t>{rank}).take());
    case Type::kAnnounce: return Message(type, Writer().operation(o).u64(n).u32(n % 2).take());
    case Type::kEager:
      return Message(type, Writer().key(o.key).u64(n).u64(0).u32(1).text(std::string(4096, 'x')).take());
    case Type::kExpired: return Message(type, Writer().key(o.key).u64(1000).take());
    case Type::kReady:
      return Message(type, Writer().u32(1).u32(0).u32(1).operation(o).list(std::vector<uint32_t>{rank}).take());
    case Type::kComplain: return Message(type, Writer().u64(n + 1).u32(HDP_TIMEOUT).text(text).key(o.key).take());
    case Type::kStalled: return Message(type, Writer().u64(1000).u64(1000).operation(o).take());
    case Type::kQuery: return Message(type, Writer().key(o.key).list(std::vector<uint32_t>{0, 1, 2}).take());
    case Type::kAnswer:
      return Message(type, Writer().key(o.key).list(std::vector<uint32_t>{rank}).list(std::vector<uint64_t>{n}).take());
    case Type::kLeft: {
      std::vector<uint32_t> ranks(1000);
      for (uint32_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<uint32_t>(n) * 1000 + i;
      return Message(type, Writer().list(ranks).take());
    }
    case Type::kPart:
    case Type::kShare: {
      Message m(type, std::string(1 + n % 4096, 'x'), 1000 + n);
      return m;
    }
    default: return Message(type, {});
  }
}

}  // namespace

void strange_peer(uint64_t seed) {
  Rng rng(seed);
  const uint32_t host = one_in(rng, 3) ? 1 : 0;  // the real one
  World world(rng, {2, 2});
  const Program program = world.random_program(rng, 12);
  const int fd = world.peer(host, 1 - host);
  world.play([=] { forget(fd); });
  const uint64_t pace = pick(rng, 2000);
  world.play([=, r = rng]() mutable {
    for (int i = 0; i < 400; ++i) {
      Message m = random_message(r, kPeerTypes, 0, 4);
      if (one_in(r, 10)) mutate(r, m);
      if (m.header.type == Type::kLost && !one_in(r, 30)) continue;
      if (!write_all(fd, m.sealed())) return;
      if (one_in(r, 4)) std::this_thread::sleep_for(std::chrono::microseconds(pick(r, pace + 1)));
    }
    if (one_in(r, 2)) shutdown(fd, SHUT_RDWR);
  });
  host_with_ranks(world, host, program);
  end(world);
}

void strange_sequencer(uint64_t seed) {
  Rng rng(seed);
  World world(rng, {1, 2, 1});
  Program program = world.random_program(rng, 16);
  if (one_in(rng, 2)) program.lies = rng() | 1;
  const int other = world.peer(1, 2);
  world.play([=] { forget(other); });
  world.play([&world, others = std::make_shared<Others>(world, rng)] { others->run(); });
  host_with_ranks(world, 1, program);
  end(world);
}

// A single message that nobody may send.
void garbage(uint64_t seed) {
  Rng rng(seed);
  World world(rng, {2, 1});
  Program program;
  program.groups = {{0, 1, 2}};
  plan::Plan p{};
  p.kind = HDP_ALLREDUCE;
  p.dtype = HDP_FLOAT32;
  p.count = 1000;
  program.plans = {p};
  program.timeout_ms = 30000;  // longer than a test waits: the error must come from the message
  const bool from_rank = one_in(rng, 3);
  const int fd = from_rank ? world.server_side(1) : world.peer(0, 1);
  std::string bytes;
  switch (pick(rng, 5)) {
    case 0: bytes = random_bytes(rng, 40 + pick(rng, 5000)); break;
    case 1: {
      Message m = random_message(rng, kPeerTypes, 0, 3);
      bytes = m.sealed();
      bytes[pick(rng, 40)] ^= static_cast<char>(1 + pick(rng, 255));
      break;
    }
    case 2: {  // a body that is too short
      Message m(from_rank ? Type::kAnnounce : Type::kReady, random_bytes(rng, pick(rng, 20)));
      bytes = m.sealed();
      break;
    }
    case 3: {
      Message m(static_cast<Type>(from_rank ? 7 + pick(rng, 3) : 40 + pick(rng, 1000)), {});
      bytes = m.sealed();
      break;
    }
    default: {  // over the limit; the body never comes
      Header header;
      header.type = from_rank ? Type::kLeave : Type::kLost;
      header.bytes = kMaxControlBytes + 1 + pick(rng, 1ull << 60);
      header.sum = 0;
      Header sealed = header;
      sealed.bytes = 0;
      sealed.seal(nullptr);
      bytes = std::string(reinterpret_cast<const char*>(&header), sizeof header);
    }
  }
  // Only rank 0 (and 1, where the host is the culprit) is real.
  world.serve(0);
  for (uint32_t r = 0; r < (from_rank ? 1u : 2u); ++r) {
    pass_on(world, r);
    world.join(r, program);
  }
  world.play([fd = world.peer(0, 1)] { forget(fd); });
  if (from_rank) world.play([fd] { forget(fd); });
  std::this_thread::sleep_for(std::chrono::milliseconds(pick(rng, 20)));
  const auto start = std::chrono::steady_clock::now();
  write_all(fd, bytes);
  world.wait_ranks();
  const auto took = std::chrono::steady_clock::now() - start;
  if (took > milliseconds(5000 * kSlowness)) fail("the ranks heard of a wrong message late");
  for (uint32_t r = 0; r < (from_rank ? 1u : 2u); ++r)
    if (world.outcomes()[r].failed != 1) fail("a wrong message went unnoticed");
  world.cut();
  world.wait_servers();
  if (world.server_status(0) == HDP_OK) fail("a server that got a wrong message says that all is well");
  world.wait_players();
}

void flood(uint64_t seed) {
  Rng rng(seed);
  static const std::vector<Type> kFromPeer = {Type::kGroup, Type::kReady,  Type::kComplain, Type::kStalled,
                                              Type::kQuery, Type::kAnswer, Type::kLeft,     Type::kPart,
                                              Type::kShare, Type::kEager};
  static const std::vector<Type> kFromRank = {Type::kAnnounce, Type::kDeclare, Type::kExpired};
  const bool from_rank = one_in(rng, 4);
  const auto& types = from_rank ? kFromRank : kFromPeer;
  const Type type = types[pick(rng, types.size())];
  World world(rng, {2, 1});
  world.serve(0);
  const int fd = from_rank ? world.server_side(0) : world.peer(0, 1);
  const bool reads = one_in(rng, 2);
  if (reads) world.play([fd] { forget(fd); });
  const uint64_t before = resident_bytes();
  uint64_t sent = 0;
  const auto until = std::chrono::steady_clock::now() + milliseconds(5000);
  for (uint64_t n = 0; std::chrono::steady_clock::now() < until; ++n) {
    std::string bytes;
    for (int i = 0; i < 50; ++i) bytes += nth(type, n * 50 + static_cast<uint64_t>(i), from_rank ? 0 : 2).sealed();
    sent += bytes.size();
    pollfd writable{fd, POLLOUT, 0};
    if (poll(&writable, 1, 500) != 1 || (writable.revents & (POLLHUP | POLLERR)) || !write_all(fd, bytes)) break;
  }
  const uint64_t after = resident_bytes();
  std::fprintf(stderr, "flood type %u reads %d sent %llu MiB, memory +%llu MiB\n", static_cast<unsigned>(type), reads,
               static_cast<unsigned long long>(sent >> 20),
               static_cast<unsigned long long>((std::max(after, before) - before) >> 20));
  if (after > before + (uint64_t{128} << 20) * kSlowness) fail("a flood of messages takes memory");
  world.cut();
  world.wait_servers();
  world.wait_players();
}

}  // namespace hdp::fuzz
