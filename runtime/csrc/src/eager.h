// Small operations, without asking anybody first.
//
// Each rank has a few *cells* in the arena, with room for 64 KiB each. A rank that calls a small allreduce or a barrier
// puts what it called and its data into a cell. Who finds that all local members have done so combines their data, in
// rank order, in the cell of the first one. If all members are on this host, that is the result; else the servers
// exchange the hosts' sums (EagerExchange), and the result comes to the same place. Then every member copies it out.
// So an operation costs one wake-up of each rank that is early, and between hosts one or two messages.
//
// Whether an operation may go this way follows from the call alone, so all ranks agree. One that doesn't complete soon
// is announced to the server like any other, only that the sequencer does not grant what has all its cells: the
// announcement is for those who look for missing ranks and different calls. A rank that gets no cell in time, since
// others wait in them, announces the operation as one without; then the sequencer grants it as soon as all have
// announced it, the cells are given back, and it goes through the slots. So operations in any order finish.
//
// A cell belongs to its rank; the first member's is its again once all have copied out. After an error the cells of
// the group's operations stay as they are for good, since a slower rank may still read them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "operation.h"

namespace hdp {

class Arena;

inline constexpr uint32_t kEagerCells = 16;        // of each rank
inline constexpr uint64_t kEagerBytes = 64 << 10;  // of elements in a cell
// Who waits for a small operation looks again for so long, giving way to whoever can run, before it sleeps.
inline constexpr std::chrono::microseconds kGlance{20};

enum class Stage : uint32_t {
  kGathering,   // members may be missing
  kClaimed,     // one of them combines
  kHostSum,     // for the server to take
  kExchanging,  // the server has taken it
  kResult,
};

// What tells calls apart. Two of one operation agree unless a number differs; a shape of 0 agrees with any.
struct Call {
  uint64_t fingerprint = 0, shape = 0;
  bool agrees(const Call& o) const {
    return fingerprint == o.fingerprint && (shape == 0 || o.shape == 0 || shape == o.shape);
  }
};

struct alignas(64) EagerCell {
  std::atomic<uint64_t> generation;  // odd: published
  std::atomic<uint64_t> key[3], call[2];
  // Of the first member's cell.
  std::atomic<Stage> stage;
  std::atomic<uint32_t> copiers;  // members that have not copied out
  uint64_t count;
  hdp_dtype dtype, travel;
  hdp_op op;
};

struct alignas(64) EagerSignal {
  std::atomic<uint64_t> host_sums;  // ever made, for the server to see that there are new ones
};

// Whether `o` goes this way: the same on every rank.
bool is_small(const Operation& o);
Call call_of(const Operation& o);

// For the owner, whose cell is not published.
void publish(EagerCell& cell, const Operation& o, uint32_t members);
void withdraw(EagerCell& cell);  // it is free
// The cell in which `local` has published `key`; null: none. It stays so unless the operation is granted or complete:
// who looks at it later sees by `generation` whether it still is.
EagerCell* find_cell(Arena& arena, uint32_t local, const Key& key, uint64_t* generation = nullptr);
Key key_of(const EagerCell& cell);
Call call_of(const EagerCell& cell);

}  // namespace hdp
