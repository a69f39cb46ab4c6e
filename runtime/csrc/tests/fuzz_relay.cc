// A job of real servers and ranks whose links go through relays that tamper with what they carry.
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <utility>

#include "fuzz_scenarios.h"
#include "fuzz_world.h"

namespace hdp::fuzz {
namespace {

enum class Mode { kPass, kSlow, kCorrupt, kShuffle, kMutate };

struct Piece {
  std::string bytes;
  uint64_t pause_us = 0;  // before it
};

// One direction of a link.
class Tamperer {
 public:
  Tamperer(uint64_t seed, Mode mode) : rng_(seed), mode_(mode), next_(1 + pick(rng_, one_in(rng_, 2) ? 8 : 60)) {}

  // None: the link ends here.
  std::vector<Piece> pass(Message message) {
    const bool now = mode_ > Mode::kSlow && --next_ == 0;
    std::vector<Piece> out;
    if (!held_.empty()) {
      out.push_back({message.sealed()});
      out.push_back({std::exchange(held_, {})});
      return out;
    }
    if (now) {
      next_ = 1 + pick(rng_, 40);
      if (mode_ == Mode::kCorrupt) return {{corrupted(message.sealed())}};
      if (mode_ == Mode::kShuffle || one_in(rng_, 4)) return shuffled(std::move(message));
      for (uint64_t n = 1 + pick(rng_, 2); n > 0; --n) mutate(rng_, message);
    }
    const std::string bytes = message.sealed();
    if (mode_ != Mode::kPass) past_.push_back(bytes);
    if (past_.size() > 20) past_.erase(past_.begin());
    if (mode_ == Mode::kPass || !one_in(rng_, 4)) return {{bytes}};
    const size_t at = pick(rng_, bytes.size() + 1);
    return {{bytes.substr(0, at), pick(rng_, 3000)}, {bytes.substr(at), pick(rng_, 3000)}};
  }

 private:
  std::string corrupted(std::string bytes) {
    const size_t at = pick(rng_, bytes.size());
    switch (pick(rng_, 4)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << pick(rng_, 8))); return bytes;
      case 1: return bytes.substr(0, at) + random_bytes(rng_, 1 + pick(rng_, 100)) + bytes.substr(at);
      case 2: return bytes.erase(at, 1 + pick(rng_, 100));
      default: return random_bytes(rng_, 40 + pick(rng_, 1000));
    }
  }
  std::vector<Piece> shuffled(Message message) {
    const std::string bytes = message.sealed();
    switch (pick(rng_, 4)) {
      case 0: return {{""}};
      case 1: return {{bytes}, {bytes}};
      case 2: held_ = bytes; return {{""}};
      default: return {{bytes}, {past_.empty() ? bytes : past_[pick(rng_, past_.size())]}};
    }
  }

  Rng rng_;
  Mode mode_;
  uint64_t next_;  // messages until one is tampered with
  std::string held_;
  std::vector<std::string> past_;
};

void carry(int from, int to, Tamperer tamperer) {
  while (auto message = read_message(from))
    for (const Piece& piece : tamperer.pass(std::move(*message))) {
      if (piece.pause_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(piece.pause_us));
      if (!write_all(to, piece.bytes)) break;  // and go on reading, as a network would
    }
  shutdown(to, SHUT_WR);
}

struct Tampering {
  Mode peers, ranks;
};

void run(uint64_t seed, Tampering tampering) {
  static const std::vector<std::vector<int32_t>> kSizes = {{2}, {1, 1}, {2, 1}, {2, 2}, {1, 1, 1}, {1, 2, 1}};
  Rng rng(seed);
  World world(rng, kSizes[pick(rng, kSizes.size())]);
  const bool honest = tampering.peers <= Mode::kSlow && tampering.ranks <= Mode::kSlow;
  Program program = world.random_program(rng, 16);
  if (honest) program.timeout_ms = 60000;
  const auto link = [&](int a, int b, Mode mode) {
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)})
      world.play([from, to, tamperer = Tamperer(rng(), mode)] { carry(from, to, tamperer); });
  };
  for (uint32_t a = 0; a < world.hosts(); ++a)
    for (uint32_t b = a + 1; b < world.hosts(); ++b) link(world.peer(a, b), world.peer(b, a), tampering.peers);
  for (uint32_t r = 0; r < world.world(); ++r) link(world.rank_side(r), world.server_side(r), tampering.ranks);
  for (uint32_t h = 0; h < world.hosts(); ++h) world.serve(h);
  for (uint32_t r = 0; r < world.world(); ++r) world.join(r, program);
  world.wait_ranks();
  if (honest) world.wait_servers();
  world.cut();
  world.wait_servers();
  world.wait_players();
  if (tampering.peers != Mode::kMutate && tampering.ranks != Mode::kMutate && world.wrong() > 0) fail("a wrong result");
  if (!honest) return;
  for (uint32_t h = 0; h < world.hosts(); ++h)
    if (world.server_status(h) != HDP_OK) fail("a server failed, and nothing was wrong");
  if (world.failed() > 0) fail("operations failed, and nothing was wrong: " + world.outcomes()[0].text);
}

}  // namespace

void slow_links(uint64_t seed) { run(seed, {Mode::kSlow, Mode::kSlow}); }
void corrupt_links(uint64_t seed) {
  const bool ranks = seed % 3 == 0;
  run(seed, {ranks ? Mode::kSlow : Mode::kCorrupt, ranks ? Mode::kCorrupt : Mode::kSlow});
}
void shuffled_links(uint64_t seed) {
  const bool ranks = seed % 3 == 0;
  run(seed, {ranks ? Mode::kSlow : Mode::kShuffle, ranks ? Mode::kShuffle : Mode::kSlow});
}
void mutated_peers(uint64_t seed) { run(seed, {Mode::kMutate, Mode::kPass}); }
void mutated_ranks(uint64_t seed) { run(seed, {Mode::kPass, Mode::kMutate}); }
void mutated_links(uint64_t seed) { run(seed, {Mode::kMutate, Mode::kMutate}); }

}  // namespace hdp::fuzz
