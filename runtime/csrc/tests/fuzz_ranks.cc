// Ranks that are ours with a real server, and a server that is ours with real ranks.
#include <sys/socket.h>

#include <chrono>

#include "arena.h"
#include "fuzz_scenarios.h"
#include "fuzz_world.h"

namespace hdp::fuzz {
namespace {

const std::vector<Type> kRankTypes = {Type::kAnnounce, Type::kAnnounce, Type::kAnnounce, Type::kDeclare, Type::kExpired,
                                      Type::kStalled,  Type::kLeave,    Type::kWithdraw, Type::kFailed};

void pause(Rng& rng, uint64_t most_us) {
  std::this_thread::sleep_for(std::chrono::microseconds(pick(rng, most_us + 1)));
}

}  // namespace

void strange_ranks(uint64_t seed) {
  Rng rng(seed);
  World world(rng, {3});
  const Program program = world.random_program(rng, 8);
  const bool one_real = one_in(rng, 2);
  for (uint32_t r = one_real ? 1 : 0; r < world.world(); ++r) {
    const int fd = world.server_side(r);
    world.play([=] { forget(fd); });
    world.play([=, own = Rng(rng())]() mutable {
      const uint64_t pace = pick(own, 1000);
      for (int i = 0; i < 300; ++i) {
        Message m = random_message(own, kRankTypes, 0, 3);
        if ((m.header.type == Type::kLeave || m.header.type == Type::kFailed) && !one_in(own, 30)) continue;
        if (one_in(own, 20)) mutate(own, m);
        if (!write_all(fd, m.sealed())) return;
        if (one_in(own, 4)) pause(own, pace);
      }
      if (one_in(own, 2)) shutdown(fd, SHUT_RDWR);
    });
  }
  world.serve(0);
  if (one_real) {
    const int a = world.rank_side(0), b = world.server_side(0);
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)})
      world.play([from, to] {
        while (auto m = read_message(from)) write_all(to, m->sealed());
        shutdown(to, SHUT_RDWR);
      });
    world.join(0, program);
  }
  world.wait_ranks();
  if (!one_real) pause(rng, 200000);
  world.cut();
  world.wait_servers();
  world.wait_players();
}

// Nothing is ever granted, so nothing may end well.
void strange_server(uint64_t seed) {
  Rng rng(seed);
  World world(rng, {2});  // rank 1 never comes, or small operations would end well without a server
  Program program = world.random_program(rng, 6);
  for (plan::Plan& p : program.plans) p.group = 0;
  const int fd = world.rank_side(0);
  world.play([=] { forget(fd); });
  world.join(0, program);
  pause(rng, 20000);
  for (int i = 0; i < 40; ++i) {
    const std::vector<Type> poison = {Type::kPoison};
    Message m = random_message(rng, poison, one_in(rng, 3) ? odd_number(rng) : 0, 2);
    if (one_in(rng, 3)) mutate(rng, m);
    std::string bytes = m.sealed();
    if (one_in(rng, 20)) bytes = random_bytes(rng, 1 + pick(rng, 200));
    if (!write_all(fd, bytes)) break;
    pause(rng, 3000);
  }
  if (one_in(rng, 2)) shutdown(fd, SHUT_RDWR);
  world.wait_ranks();
  if (world.outcomes()[0].ok > 0) fail("an operation that nobody granted ended well");
  world.cut();
  world.wait_players();
}

}  // namespace hdp::fuzz
