// Hosts of an emulated job whose links a fuzzer holds: what the library reads and writes goes through it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fuzz_wire.h"
#include "hdp.h"
#include "plan.h"

namespace hdp::fuzz {

// How many times slower than a plain build this one is allowed to be.
#if defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kSlowness = 3;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr uint64_t kSlowness = 2;
#else
inline constexpr uint64_t kSlowness = 1;
#endif

struct Program {                             // what all ranks call
  std::vector<std::vector<int32_t>> groups;  // [0]: all ranks
  std::vector<plan::Plan> plans;
  uint64_t timeout_ms = 400 * kSlowness;
  uint64_t lies = 0;  // seed of ranks that give wrong counts; 0: none do
};

struct Outcome {  // of a rank
  size_t ok = 0, failed = 0, wrong = 0;
  std::string text;  // of its first failure
};

struct Link {
  int inner = -1;  // the library's end
  int outer = -1;  // ours
};

class World {
 public:
  World(Rng& rng, std::vector<int32_t> sizes);
  ~World();

  Program random_program(Rng& rng, size_t operations) const;
  void serve(uint32_t host);
  void join(uint32_t rank, const Program& program);
  // A thread of the fuzzer; cut() must make it end.
  void play(std::function<void()> role) { players_.emplace_back(std::move(role)); }

  int peer(uint32_t host, uint32_t other) const { return peers_[host][other].outer; }  // the server of `host`
  int server_side(uint32_t rank) const { return served_[rank].outer; }
  int rank_side(uint32_t rank) const { return joined_[rank].outer; }
  int arena(uint32_t host) const { return arenas_[host]; }

  void wait_ranks();    // and leave the servers running
  void cut();           // all links that we hold
  void wait_servers();  // after this, server_text and server_status
  void wait_players();

  uint32_t world() const { return world_; }
  uint32_t hosts() const { return static_cast<uint32_t>(sizes_.size()); }
  uint32_t host_of(uint32_t rank) const;
  const std::vector<int32_t>& sizes() const { return sizes_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  uint32_t slots() const { return slots_; }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }
  size_t wrong() const;
  size_t failed() const;
  int32_t server_status(uint32_t host) const { return statuses_[host]; }

 private:
  hdp_layout layout(uint32_t host) const;
  void run_server(uint32_t host);
  void run_rank(uint32_t rank, const Program& program);

  std::vector<int32_t> sizes_;
  std::vector<std::string> names_;
  std::vector<const char*> name_pointers_;
  uint32_t world_ = 0, slots_;
  uint64_t slot_bytes_;
  std::vector<std::vector<Link>> peers_;
  std::vector<Link> served_, joined_;  // by rank: of its server, and of itself
  std::vector<int> arenas_, bells_, stops_;
  std::vector<Outcome> outcomes_;
  std::vector<int32_t> statuses_;
  std::vector<std::thread> servers_, ranks_, players_;
};

}  // namespace hdp::fuzz
