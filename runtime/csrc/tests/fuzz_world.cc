#include "fuzz_world.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace hdp::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

Link make_link() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) fail("socketpair");
  return {fds[0], fds[1]};
}

void close_both(const Link& link) {
  if (link.inner >= 0) close(link.inner);
  if (link.outer >= 0) close(link.outer);
}

struct Flight {
  size_t op = 0;
  uint64_t ticket = 0;
  std::vector<uint8_t> in, out;
  std::vector<uint64_t> sends, receives;
};

uint64_t sum(const std::vector<uint64_t>& v) { return std::accumulate(v.begin(), v.end(), uint64_t{0}); }

// Submits operation f.op of the program. False: it was refused.
bool submit(hdp_comm* comm, const Program& program, uint64_t group, uint32_t rank, Rng& lies, Flight& f) {
  const plan::Plan& p = program.plans[f.op];
  const auto& members = program.groups[p.group];
  const size_t size = members.size(), element = plan::kSizes[p.dtype];
  const auto place = static_cast<uint64_t>(std::find(members.begin(), members.end(), rank) - members.begin());
  const bool by_piece = p.kind == HDP_ALLGATHER || p.kind == HDP_REDUCE_SCATTER;
  f.sends = plan::sends(p, size, place);
  f.receives = by_piece ? plan::pieces(p, size) : plan::receives(p, size, place);
  if (program.lies != 0 && p.varied && !by_piece)
    for (auto* list : {&f.sends, &f.receives})
      if (!list->empty() && one_in(lies, 2)) (*list)[pick(lies, size)] = pick(lies, 3000);
  const uint64_t in = plan::in_elements(p, size, place), out = plan::out_elements(p, size, place);
  f.in.resize(std::max({in, p.count, sum(f.sends)}) * element + 64);
  f.out.resize(std::max({out, p.count, sum(f.receives)}) * element + 64);
  plan::fill(p, f.op, static_cast<int>(rank), in, f.in.data());
  hdp_request r{};
  r.kind = p.kind == HDP_SEND && place == p.peer ? uint32_t{HDP_RECV} : p.kind;
  r.dtype = p.dtype;
  r.wire = p.wire;
  r.op = p.op;
  r.root = r.kind == HDP_SEND ? p.peer : p.root;
  r.count = p.varied && p.kind != HDP_ALLTOALL ? plan::piece(p, place) : p.count;
  if (p.varied) {
    r.send_counts = f.sends.data();
    r.recv_counts = f.receives.data();
  }
  r.group = group;
  r.in = f.in.data();
  r.out = f.out.data();
  r.tag = p.tag.empty() ? nullptr : p.tag.c_str();
  r.timeout_ms = program.timeout_ms;
  r.stall_ms = f.op % 3 == 0 ? 20 : 0;
  char error[256] = "";
  return hdp_submit(comm, &r, &f.ticket, error, sizeof error) == HDP_OK;
}

// Until it is complete; a bound on how long that takes is a property of the core.
void finish(hdp_comm* comm, const Program& program, uint32_t rank, const Flight& f, Outcome& outcome) {
  char error[4096] = "";
  const auto limit = Clock::now() + std::chrono::milliseconds(program.timeout_ms + 20000 * kSlowness);
  int32_t status = HDP_PENDING;
  while (status == HDP_PENDING && Clock::now() < limit) status = hdp_wait(comm, f.ticket, 50, error, sizeof error);
  if (status == HDP_PENDING) fail("rank " + std::to_string(rank) + " hangs in operation " + std::to_string(f.op));
  hdp_release(comm, f.ticket);
  const plan::Plan& p = program.plans[f.op];
  const auto& members = program.groups[p.group];
  const auto place = static_cast<uint64_t>(std::find(members.begin(), members.end(), rank) - members.begin());
  if (status != HDP_OK) {
    if (status < HDP_MISMATCH || status > HDP_SYSTEM) fail("an operation ended with status " + std::to_string(status));
    if (error[0] == '\0') fail("an error without a text");
    if (outcome.failed++ == 0) outcome.text = error;
    return;
  }
  ++outcome.ok;
  const std::vector<uint8_t> right = plan::expected(p, f.op, members, place);
  if (program.lies == 0 && !right.empty() && std::memcmp(right.data(), f.out.data(), right.size()) != 0)
    ++outcome.wrong;
}

}  // namespace

World::World(Rng& rng, std::vector<int32_t> sizes) : sizes_(std::move(sizes)) {
  static constexpr uint64_t kSlotBytes[] = {4096, 4096, 16384, 65536};
  slots_ = static_cast<uint32_t>(1 + pick(rng, 4));
  slot_bytes_ = kSlotBytes[pick(rng, 4)];
  for (size_t h = 0; h < sizes_.size(); ++h) names_.push_back("algo-" + std::to_string(h + 1));
  for (const std::string& name : names_) name_pointers_.push_back(name.c_str());
  peers_.assign(hosts(), std::vector<Link>(hosts()));
  statuses_.assign(hosts(), HDP_PENDING);
  for (uint32_t h = 0; h < hosts(); ++h) {
    const auto local = static_cast<uint32_t>(sizes_[h]);
    for (uint32_t other = 0; other < hosts(); ++other)
      if (other != h) peers_[h][other] = make_link();
    for (uint32_t i = 0; i < local; ++i, ++world_) {
      served_.push_back(make_link());
      joined_.push_back(make_link());
    }
    const int arena = memfd_create("arena", MFD_CLOEXEC);
    char error[256] = "";
    if (ftruncate(arena, static_cast<off_t>(hdp_arena_bytes(local, slots_, slot_bytes_))) != 0 ||
        hdp_arena_init(arena, local, slots_, slot_bytes_, error, sizeof error) != HDP_OK)
      fail("arena");
    arenas_.push_back(arena);
    bells_.push_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    stops_.push_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  outcomes_.resize(world_);
}

World::~World() {
  for (const auto& row : peers_)
    for (const Link& link : row) close_both(link);
  for (const auto* links : {&served_, &joined_})
    for (const Link& link : *links) close_both(link);
  for (const auto* fds : {&arenas_, &bells_, &stops_})
    for (int fd : *fds) close(fd);
}

Program World::random_program(Rng& rng, size_t operations) const {
  Program program;
  std::vector<int32_t> all(world_);
  std::iota(all.begin(), all.end(), 0);
  program.groups.push_back(all);
  for (uint64_t g = pick(rng, 3); g > 0; --g) {
    std::shuffle(all.begin(), all.end(), rng);
    program.groups.emplace_back(all.begin(), all.begin() + static_cast<long>(1 + pick(rng, all.size())));
  }
  for (size_t i = 0; i < operations; ++i) program.plans.push_back(plan::random_plan(rng, program.groups, 20000));
  return program;
}

uint32_t World::host_of(uint32_t rank) const {
  uint32_t host = 0;
  for (; rank >= static_cast<uint32_t>(sizes_[host]); ++host) rank -= static_cast<uint32_t>(sizes_[host]);
  return host;
}

hdp_layout World::layout(uint32_t host) const {
  return {static_cast<int32_t>(host), static_cast<int32_t>(hosts()), sizes_.data(), name_pointers_.data()};
}

void World::serve(uint32_t host) {
  servers_.emplace_back([this, host] { run_server(host); });
}

void World::run_server(uint32_t host) {
  std::vector<int32_t> rank_fds, peer_fds;
  for (uint32_t r = 0; r < world_; ++r)
    if (host_of(r) == host) rank_fds.push_back(served_[r].inner);
  for (const Link& link : peers_[host]) peer_fds.push_back(link.inner);
  const std::vector<int32_t> pids(rank_fds.size(), getpid());
  hdp_server_config config{};
  config.layout = layout(host);
  config.arena_fd = arenas_[host];
  config.event_fd = bells_[host];
  config.stop_fd = stops_[host];
  config.rank_fds = rank_fds.data();
  config.rank_pids = pids.data();
  config.peer_fds = peer_fds.data();
  config.log = [](const char* line) {
    if (line[0] == '\0') fail("an empty line for the log");
  };
  char error[4096] = "";
  statuses_[host] = hdp_server_run(&config, error, sizeof error);
  if (statuses_[host] != HDP_OK && error[0] == '\0') fail("a server failed without a text");
  if (getenv("FUZZ_VERBOSE")) std::fprintf(stderr, "server %u: %d %s\n", host, statuses_[host], error);
  for (int fd : rank_fds) shutdown(fd, SHUT_RDWR);
  for (int fd : peer_fds)
    if (fd >= 0) shutdown(fd, SHUT_RDWR);
}

void World::join(uint32_t rank, const Program& program) {
  ranks_.emplace_back([this, rank, program] { run_rank(rank, program); });
}

void World::run_rank(uint32_t rank, const Program& program) {
  const uint32_t host = host_of(rank);
  const hdp_layout where = layout(host);
  char error[4096] = "";
  hdp_comm* comm = hdp_comm_open(&where, static_cast<int32_t>(rank), std::exchange(joined_[rank].inner, -1),
                                 arenas_[host], bells_[host], error, sizeof error);
  if (comm == nullptr) fail(std::string("open: ") + error);
  std::vector<uint64_t> ids(program.groups.size(), 0);
  const auto in_group = [&](size_t g) {
    return std::find(program.groups[g].begin(), program.groups[g].end(), rank) != program.groups[g].end();
  };
  for (size_t g = 1; g < ids.size(); ++g)
    if (in_group(g) && hdp_group_add(comm, program.groups[g].data(), static_cast<int32_t>(program.groups[g].size()),
                                     ("g" + std::to_string(g)).c_str(), &ids[g], error, sizeof error) != HDP_OK)
      fail(std::string("group: ") + error);
  Rng lies(program.lies + rank);
  Outcome& outcome = outcomes_[rank];
  constexpr size_t kAtOnce = 8;
  for (size_t i = 0; i < program.plans.size() && outcome.failed == 0;) {
    std::vector<std::unique_ptr<Flight>> flights;
    for (; i < program.plans.size() && flights.size() < kAtOnce; ++i) {
      const plan::Plan& p = program.plans[i];
      const auto& members = program.groups[p.group];
      const auto place = std::find(members.begin(), members.end(), rank) - members.begin();
      if (!in_group(p.group) || !p.calls(static_cast<size_t>(place))) continue;
      auto f = std::make_unique<Flight>();
      f->op = i;
      if (submit(comm, program, ids[p.group], rank, lies, *f)) flights.push_back(std::move(f));
    }
    for (const auto& f : flights) finish(comm, program, rank, *f, outcome);
  }
  if (getenv("FUZZ_VERBOSE"))
    std::fprintf(stderr, "rank %u: ok %zu failed %zu wrong %zu %s\n", rank, outcome.ok, outcome.failed, outcome.wrong,
                 outcome.text.c_str());
  hdp_comm_close(comm);
}

void World::wait_ranks() {
  for (std::thread& t : ranks_) t.join();
  ranks_.clear();
}

void World::cut() {
  for (const auto& row : peers_)
    for (const Link& link : row)
      if (link.outer >= 0) shutdown(link.outer, SHUT_RDWR);
  for (const auto* links : {&served_, &joined_})
    for (const Link& link : *links) shutdown(link.outer, SHUT_RDWR);
}

void World::wait_servers() {
  for (std::thread& t : servers_) t.join();
  servers_.clear();
}

void World::wait_players() {
  for (std::thread& t : players_) t.join();
  players_.clear();
}

size_t World::wrong() const {
  return std::accumulate(outcomes_.begin(), outcomes_.end(), size_t{0},
                         [](size_t n, const Outcome& o) { return n + o.wrong; });
}

size_t World::failed() const {
  return std::accumulate(outcomes_.begin(), outcomes_.end(), size_t{0},
                         [](size_t n, const Outcome& o) { return n + o.failed; });
}

}  // namespace hdp::fuzz
