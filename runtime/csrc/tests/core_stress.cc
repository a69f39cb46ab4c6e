// Random collectives on emulated hosts in one process, verified element by element; for TSan and ASan+UBSan.
//
//   core_stress [--seeds N] [--first S] [--ops N] [--chaos] [--hosts 2,2] [--device]
//   core_stress --mistake data-race|heap-overflow|signed-overflow
//
// A thread is a server or a rank's caller; sockets are socketpairs or TCP loopback; one_mapping.cc says how the arena
// is mapped.
// --chaos: something goes wrong in each seed (a mismatch, a missing call, a rank that closes early, a stopped server);
// then every wait must still return, and what returns HDP_OK must be right.
// --device: half of all operations are on device memory, of the driver that $HDP_CUDA_DRIVER names (fake_cuda.h).
// --mistake: commits it and returns as if nothing were wrong; a sanitizer that is on does not let it.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "mistakes.h"
#include "plan.h"
#include "stress_device.h"

namespace {

using namespace hdp::plan;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::abort();
}

// ---- the job -------------------------------------------------------------------------------------------------------

enum class Chaos { kNone, kMismatch, kMissing, kEarlyClose, kStop };

struct Job {
  uint64_t seed = 0;
  std::vector<int32_t> sizes;
  uint32_t slots = 4;
  uint64_t slot_bytes = 65536;
  bool tcp = false;
  bool device = false;
  std::vector<std::vector<int32_t>> groups;  // [0]: all ranks
  std::vector<Plan> plans;
  size_t block = 1;  // operations that ranks submit in their own order
  Chaos chaos = Chaos::kNone;
  int culprit = -1;
  size_t culprit_op = 0;
  uint64_t timeout_ms = 60000;
  std::vector<std::string> names;
  std::vector<const char*> name_pointers;
  int world() const {
    int n = 0;
    for (int s : sizes) n += s;
    return n;
  }
  hdp_layout layout(int host) const {
    return {host, static_cast<int32_t>(sizes.size()), sizes.data(), name_pointers.data()};
  }
};

void pair_of(bool tcp, int fds[2]) {
  if (!tcp) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) fail("socketpair");
    return;
  }
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t n = sizeof a;
  if (bind(listener, reinterpret_cast<sockaddr*>(&a), n) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&a), &n) != 0)
    fail("listen");
  fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fds[0], reinterpret_cast<sockaddr*>(&a), n) != 0) fail("connect");
  fds[1] = accept(listener, nullptr, nullptr);
  close(listener);
  const int one = 1;
  for (int i : {0, 1}) setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

struct Flight {
  size_t op;
  uint64_t ticket;
  std::vector<uint8_t> in, out;
  bool in_place;
  std::unique_ptr<hdp::stress::Memory> device_in, device_out;  // in their place, where there are some
  const uint8_t* result() const {
    if (device_in) return in_place ? device_in->view() : device_out->view();
    return in_place ? in.data() : out.data();
  }
};

// Move a flight's buffers to the device; the input is written late.
void move_to_device(const hdp::stress::Device& device, Flight& f, hdp_request& r, Rng& rng) {
  f.device_in = std::make_unique<hdp::stress::Memory>(device, f.in.size());
  f.device_in->write(f.in.data(), f.in.size(), pick(rng, 400));
  if (!f.in_place) f.device_out = std::make_unique<hdp::stress::Memory>(device, f.out.size());
  r.in = f.device_in->address();
  r.out = f.in_place ? f.device_in->address() : f.device_out->address();
  r.device = 1;
  r.stream = device.stream();
}

void check(const Job& job, const Flight& f, int rank, uint64_t place) {
  const Plan& p = job.plans[f.op];
  const std::vector<uint8_t> bytes = expected(p, f.op, job.groups[p.group], place);
  const uint8_t* got = f.result();
  if (bytes.empty() || std::memcmp(got, bytes.data(), bytes.size()) == 0) return;
  size_t at = 0;
  while (got[at] == bytes[at]) ++at;
  fail("seed " + std::to_string(job.seed) + " rank " + std::to_string(rank) + " op " + std::to_string(f.op) + " kind " +
       std::to_string(p.kind) + " dtype " + std::to_string(p.dtype) + " count " + std::to_string(p.count) + ": byte " +
       std::to_string(at));
}

// It is whole: an array that ends.
void check_timeline(int fd) {
  const off_t size = lseek(fd, 0, SEEK_END);
  char end[3] = "";
  if (size < 4 || pread(fd, end, 2, size - 2) != 2 || std::string(end) != "]\n") fail("a timeline isn't whole");
}

void run_rank(const Job& job, int host, int rank, int socket_fd, int arena, int bell, std::atomic<int>* errors) {
  Rng rng(job.seed * 1000 + static_cast<uint64_t>(rank));
  char error[1024] = "";
  const hdp_layout layout = job.layout(host);
  std::optional<hdp::stress::Device> device;
  if (job.device) device.emplace();
  hdp_comm* comm = hdp_comm_open(&layout, rank, socket_fd, arena, bell, error, sizeof error);
  if (comm == nullptr) fail(std::string("open: ") + error);
  const int timeline = memfd_create("timeline", MFD_CLOEXEC);
  if (job.seed % 2 == 0 && hdp_comm_timeline(comm, timeline, nullptr, error, sizeof error) != HDP_OK)
    fail(std::string("timeline: ") + error);
  std::vector<uint64_t> ids(job.groups.size());
  std::vector<size_t> mine;
  for (size_t g = 1; g < job.groups.size(); ++g) {
    bool member = false;
    for (int32_t r : job.groups[g]) member |= r == rank;
    if (member && hdp_group_add(comm, job.groups[g].data(), static_cast<int32_t>(job.groups[g].size()),
                                ("g" + std::to_string(g)).c_str(), &ids[g], error, sizeof error) != HDP_OK)
      fail(std::string("group: ") + error);
    if (!member) ids[g] = UINT64_MAX;
  }
  const auto place_in = [&](const Plan& p) {
    const auto& members = job.groups[p.group];
    return static_cast<uint64_t>(std::find(members.begin(), members.end(), rank) - members.begin());
  };
  for (size_t i = 0; i < job.plans.size(); ++i)
    if (ids[job.plans[i].group] != UINT64_MAX && job.plans[i].calls(place_in(job.plans[i]))) mine.push_back(i);
  // Own order within a block, but the operations of one sequence keep theirs: swap neighbours of different sequences.
  for (size_t pass = 0; pass < 30 && mine.size() > 1; ++pass)
    for (size_t i = 0; i + 1 < mine.size(); ++i) {
      const Plan &a = job.plans[mine[i]], &b = job.plans[mine[i + 1]];
      const bool same_block = mine[i] / job.block == mine[i + 1] / job.block;
      if (same_block && (a.group != b.group || a.tag != b.tag) && pick(rng, 2) == 0) std::swap(mine[i], mine[i + 1]);
    }
  std::atomic<uint64_t> notified{0};
  std::thread completions([&] {
    uint64_t ticket;
    for (;;) {
      const int32_t s = hdp_next_done(comm, 50, &ticket);
      if (s == HDP_OK)
        ++notified;
      else if (s != HDP_PENDING)
        return;
    }
  });
  uint64_t asked = 0;
  std::vector<std::unique_ptr<Flight>> flights;
  bool failed = false;
  auto finish = [&](size_t at) {
    std::unique_ptr<Flight> f = std::move(flights[at]);
    flights.erase(flights.begin() + static_cast<long>(at));
    int32_t s = HDP_PENDING;
    // A stream that waits for the operation is past it soon after: a rank may wait for operations in any order.
    const bool held = f->device_in && pick(rng, 2) && flights.empty();
    if (held) hdp_stream_wait(comm, f->ticket, device->stream(), error, sizeof error);
    while (s == HDP_PENDING) s = hdp_wait(comm, f->ticket, 20, error, sizeof error);
    if (s == HDP_OK)
      check(job, *f, rank, place_in(job.plans[f->op]));
    else {
      failed = true;
      ++*errors;
      if (job.chaos == Chaos::kNone)
        fail("seed " + std::to_string(job.seed) + " rank " + std::to_string(rank) + " op " + std::to_string(f->op) +
             ": " + error);
    }
    hdp_release(comm, f->ticket);
    if (f->device_in) device->synchronize();
  };
  bool early = false;
  size_t block = 0;
  for (size_t i : mine) {
    // Only what every rank submits without waiting for later blocks may be waited for.
    if (i / job.block != block) {
      block = i / job.block;
      const size_t keep = pick(rng, 2) ? 0 : pick(rng, flights.size() + 1);
      while (flights.size() > keep) finish(pick(rng, flights.size()));
    }
    const Plan& p = job.plans[i];
    const bool culprit = job.culprit == rank && job.culprit_op == i;
    if (culprit && job.chaos == Chaos::kMissing) continue;
    if (culprit && job.chaos == Chaos::kEarlyClose) {
      early = true;
      break;
    }
    auto f = std::make_unique<Flight>();
    f->op = i;
    const size_t size = job.groups[p.group].size();
    const uint64_t place = place_in(p), element = kSizes[p.dtype];
    const uint64_t in_count = in_elements(p, size, place), out_count = out_elements(p, size, place);
    f->in.resize(std::max(in_count, p.kind == HDP_BROADCAST ? p.count : 0) * element + 64);
    fill(p, i, rank, in_count, f->in.data());
    const bool may = p.kind == HDP_ALLREDUCE || p.kind == HDP_REDUCE || (p.kind == HDP_ALLTOALL && !p.varied);
    f->in_place = p.kind == HDP_BROADCAST || (may && pick(rng, 2) == 0);
    if (!f->in_place) f->out.resize(out_count * element + 64);
    const std::vector<uint64_t> send_list = sends(p, size, place), recv_list = receives(p, size, place);
    const std::vector<uint64_t> piece_list = pieces(p, size);
    hdp_request r{};
    r.kind = p.kind == HDP_SEND && place == p.peer ? uint32_t{HDP_RECV} : p.kind;
    r.dtype = p.dtype;
    r.wire = p.wire;
    r.op = p.op;
    r.root = r.kind == HDP_SEND ? p.peer : p.root;
    r.count = p.varied && p.kind != HDP_ALLTOALL ? piece(p, place) : p.count;
    r.count += culprit && job.chaos == Chaos::kMismatch ? 1 : 0;
    if (p.varied) {
      const bool by_piece = p.kind == HDP_ALLGATHER || p.kind == HDP_REDUCE_SCATTER;
      r.send_counts = send_list.data();
      r.recv_counts = by_piece ? piece_list.data() : recv_list.data();
    }
    r.group = ids[p.group];
    r.in = f->in.data();
    r.out = f->in_place ? f->in.data() : f->out.data();
    r.tag = p.tag.empty() ? nullptr : p.tag.c_str();
    r.timeout_ms = job.timeout_ms;
    r.stall_ms = pick(rng, 4) ? 0 : 1 + pick(rng, 20);
    r.notify = pick(rng, 3) == 0;
    if (device && pick(rng, 2)) move_to_device(*device, *f, r, rng);
    if (hdp_submit(comm, &r, &f->ticket, error, sizeof error) != HDP_OK) fail(std::string("submit: ") + error);
    asked += r.notify;
    flights.push_back(std::move(f));
    if (pick(rng, 8) == 0) std::this_thread::sleep_for(std::chrono::microseconds(pick(rng, 300)));
  }
  if (!early) {
    while (!flights.empty()) finish(pick(rng, flights.size()));
    for (int i = 0; i < 200 && notified < asked; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (notified != asked) fail("notified " + std::to_string(notified) + " of " + std::to_string(asked));
  }
  if (pick(rng, 2)) hdp_comm_interrupt(comm);
  hdp_comm_close(comm);
  if (device) device->synchronize();
  flights.clear();
  if (job.seed % 2 == 0) check_timeline(timeline);
  close(timeline);
  completions.join();
}

void run_job(Job& job) {
  const size_t hosts = job.sizes.size();
  for (size_t h = 0; h < hosts; ++h) job.names.push_back("algo-" + std::to_string(h + 1));
  for (auto& n : job.names) job.name_pointers.push_back(n.c_str());
  std::vector<std::vector<int>> peers(hosts, std::vector<int>(hosts, -1));
  for (size_t a = 0; a < hosts; ++a)
    for (size_t b = a + 1; b < hosts; ++b) {
      int fds[2];
      pair_of(job.tcp, fds);
      peers[a][b] = fds[0];
      peers[b][a] = fds[1];
    }
  std::vector<std::thread> servers, ranks;
  std::vector<int> stops, to_close;
  std::atomic<int> errors{0};
  int rank = 0;
  for (size_t h = 0; h < hosts; ++h) {
    const auto local = static_cast<uint32_t>(job.sizes[h]);
    const int arena = memfd_create("arena", MFD_CLOEXEC), bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
              stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    char error[512] = "";
    if (ftruncate(arena, static_cast<off_t>(hdp_arena_bytes(local, job.slots, job.slot_bytes))) != 0 ||
        hdp_arena_init(arena, local, job.slots, job.slot_bytes, error, sizeof error) != HDP_OK)
      fail("arena");
    stops.push_back(stop);
    to_close.insert(to_close.end(), {arena, bell, stop});
    std::vector<int> server_ends, rank_ends;
    for (uint32_t i = 0; i < local; ++i) {
      int fds[2];
      pair_of(false, fds);
      server_ends.push_back(fds[0]);
      rank_ends.push_back(fds[1]);
    }
    servers.emplace_back([&job, h, arena, bell, stop, server_ends, peer_fds = peers[h]] {
      std::vector<int32_t> pids(server_ends.size(), getpid());
      hdp_server_config c{};
      c.layout = job.layout(static_cast<int>(h));
      c.arena_fd = arena;
      c.event_fd = bell;
      c.stop_fd = stop;
      c.rank_fds = server_ends.data();
      c.rank_pids = pids.data();
      c.peer_fds = peer_fds.data();
      c.timeline_fd = job.seed % 2 == 0 ? memfd_create("timeline", MFD_CLOEXEC) : 0;
      char text[1024] = "";
      const int32_t s = hdp_server_run(&c, text, sizeof text);
      if (s != HDP_OK && job.chaos == Chaos::kNone) fail("seed " + std::to_string(job.seed) + " server: " + text);
      if (getenv("STRESS_VERBOSE") && s != HDP_OK) std::fprintf(stderr, "  server %zu: %s\n", h, text);
      if (c.timeline_fd > 0) check_timeline(c.timeline_fd), close(c.timeline_fd);
      for (int fd : server_ends) close(fd);
      for (int fd : peer_fds)
        if (fd >= 0) close(fd);
    });
    for (uint32_t i = 0; i < local; ++i, ++rank)
      ranks.emplace_back(run_rank, std::cref(job), static_cast<int>(h), rank, rank_ends[i], arena, bell, &errors);
  }
  if (job.chaos == Chaos::kStop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(job.seed % 200));
    const uint64_t one = 1;
    if (write(stops[job.seed % hosts], &one, 8) != 8) fail("stop");
  }
  for (auto& t : ranks) t.join();
  for (auto& t : servers) t.join();
  for (int fd : to_close) close(fd);
}

Job make_job(uint64_t seed, size_t ops, bool chaos, const std::vector<int32_t>& fixed) {
  static const std::vector<std::vector<int32_t>> topologies = {
      {1}, {2}, {4}, {1, 1}, {1, 1, 1, 1}, {2, 2}, {3, 1}, {1, 3, 1}, {4, 4}, {2, 2, 2, 2}, {1, 4}, {2, 1, 3}};
  Rng rng(seed);
  Job job;
  job.seed = seed;
  job.sizes = fixed.empty() ? topologies[pick(rng, topologies.size())] : fixed;
  job.slots = static_cast<uint32_t>(1 + pick(rng, 5));
  const uint64_t slot_sizes[] = {4096, 16384, 65536, 512 << 10};
  job.slot_bytes = slot_sizes[pick(rng, 4)];
  job.tcp = pick(rng, 2);
  job.block = 1 + pick(rng, pick(rng, 3) == 0 ? ops : 12);
  const int world = job.world();
  std::vector<int32_t> all;
  for (int r = 0; r < world; ++r) all.push_back(r);
  job.groups.push_back(all);
  for (size_t g = pick(rng, 4); g > 0; --g) {
    auto members = all;
    std::shuffle(members.begin(), members.end(), rng);
    members.resize(1 + pick(rng, members.size()));
    job.groups.push_back(members);
  }
  for (size_t i = 0; i < ops; ++i) {
    job.plans.push_back(random_plan(rng, job.groups, job.slot_bytes <= 16384 ? 30000 : 150000));
  }
  if (chaos) {
    job.chaos = static_cast<Chaos>(1 + pick(rng, 4));
    job.timeout_ms = 300;
    if (job.chaos == Chaos::kMismatch || job.chaos == Chaos::kEarlyClose || job.chaos == Chaos::kStop)
      job.timeout_ms = 4000;
    job.culprit_op = pick(rng, ops);
    const auto& members = job.groups[job.plans[job.culprit_op].group];
    const Plan& p = job.plans[job.culprit_op];
    job.culprit = members[p.is_message() ? p.root : pick(rng, members.size())];
    // A count that is the rank's own affair is no mismatch.
    if (job.chaos == Chaos::kMismatch && (p.kind == HDP_BARRIER || p.varied)) job.chaos = Chaos::kMissing;
  }
  return job;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seeds = 20, first = 1;
  size_t ops = 150;
  bool chaos = false, device = false;
  std::vector<int32_t> fixed;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--seeds")
      seeds = std::stoull(argv[++i]);
    else if (a == "--first")
      first = std::stoull(argv[++i]);
    else if (a == "--ops")
      ops = std::stoul(argv[++i]);
    else if (a == "--mistake")
      return hdp::commit_mistake(argv[++i]);
    else if (a == "--chaos")
      chaos = true;
    else if (a == "--device")
      device = true;
    else if (a == "--hosts")
      for (char* s = strtok(argv[++i], ","); s; s = strtok(nullptr, ",")) fixed.push_back(atoi(s));
  }
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    Job job = make_job(seed, ops, chaos, fixed);
    job.device = device;
    alarm(90);  // a hang is a failure
    const auto start = std::chrono::steady_clock::now();
    std::string sizes;
    for (int s : job.sizes) sizes += std::to_string(s) + " ";
    std::printf("seed %llu hosts %s slots %u x %llu groups %zu chaos %d\n", static_cast<unsigned long long>(seed),
                sizes.c_str(), job.slots, static_cast<unsigned long long>(job.slot_bytes), job.groups.size(),
                static_cast<int>(job.chaos));
    std::fflush(stdout);
    run_job(job);
    std::printf("  %.2f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::puts("all fine");
}
