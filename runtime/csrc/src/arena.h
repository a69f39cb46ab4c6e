// The arena: one memfd a host, mapped by the server and by every rank of the host.
//
// It is a ring of `slots` chunk buffers. Chunks of all operations are numbered q = 1, 2, 3, ... in the order in which
// every host grants operations; chunk q lives in slot q % slots. A slot's control words say who may touch it:
//
//   open == q      the slot belongs to chunk q; contributors may add their data
//   turn           contributors that are done; those of a sum go in rank order (this fixes its bits)
//   result == q    the slot holds the final result; every local member may copy it out
//   done           members that have copied out, or have nothing to copy
//   released == q  all have; the server may give the slot to chunk q + slots
//
// The last contributor wakes the server, which exchanges with the other hosts. When all members are on this host the
// server isn't needed: the last contributor publishes the result, and the last copier opens the slot for the
// operation's chunk q + slots (`Grant::local_final`). In an exchange it is: it copies from rank to rank in the slot.
//
// Small operations have cells of their own, see eager.h.
//
// Nobody spins: each rank's worker sleeps on the rank's bell (a futex), its callers that wait for small operations on a
// second one, the server on an eventfd.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "eager.h"

namespace hdp {

inline constexpr uint64_t kArenaMagic = 0x6864705f61726532ULL;
inline constexpr uint32_t kGrantRing = 256;  // > kMaxActive: only grants without chunks can fill a ring
inline constexpr uint32_t kMaxActive = 128;  // operations in transfer at once

struct alignas(64) Bell {
  std::atomic<uint32_t> seq;
  std::atomic<uint32_t> waiting;
};

// What a rank says of itself.
struct alignas(64) RankState {
  std::atomic<uint32_t> wants_cell;  // an operation waits until a cell is free
  // How many operations of its groups it has called, for messages; of the first groups that it used.
  static constexpr uint32_t kGroups = 60;
  std::atomic<uint32_t> used;
  std::atomic<uint64_t> group[kGroups], calls[kGroups];
};

struct alignas(64) SlotControl {
  std::atomic<uint64_t> open;
  std::atomic<uint64_t> result;
  std::atomic<uint64_t> released;
  std::atomic<uint32_t> turn;
  std::atomic<uint32_t> done;
};

// What the server tells a rank when an operation may transfer.
struct Grant {
  uint64_t ticket;
  uint64_t base;    // q of its first chunk
  uint64_t chunks;  // Cut; 0: complete at once (barrier, no elements)
  uint64_t elements;
  uint64_t out_block;  // exchanges: where in a slot this rank's blocks begin, in elements
  uint64_t in_block;
  uint64_t local_final;
};

struct alignas(64) GrantRing {
  std::atomic<uint64_t> head;              // next to write; server
  alignas(64) std::atomic<uint64_t> tail;  // next to read; rank
  Grant items[kGrantRing];
};

struct ArenaHeader {
  uint64_t magic;
  uint32_t local_size;
  uint32_t slots;
  uint64_t slot_bytes;
  uint64_t bells;  // offsets from the header
  uint64_t controls;
  uint64_t rings;
  uint64_t waiters;
  uint64_t states;
  uint64_t signal;
  uint64_t cells;
  uint64_t cell_data;
  uint64_t data;
  uint64_t total;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// A mapping of the arena. Movable, not copyable; unmapped on destruction.
class Arena {
 public:
  static uint64_t bytes(uint32_t local_size, uint32_t slots, uint64_t slot_bytes);
  static void initialise(int fd, uint32_t local_size, uint32_t slots, uint64_t slot_bytes);  // throws SystemError

  explicit Arena(int fd);  // throws SystemError, or Error where the file isn't an arena
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* begin() { return header_; }
  uint64_t size() const { return header_->total; }
  uint32_t local_size() const { return header_->local_size; }
  uint32_t slots() const { return header_->slots; }
  uint64_t slot_bytes() const { return header_->slot_bytes; }
  SlotControl& control(uint64_t q) { return at<SlotControl>(header_->controls)[q % header_->slots]; }
  uint8_t* slot(uint64_t q) { return at<uint8_t>(header_->data) + (q % header_->slots) * header_->slot_bytes; }
  // Differs from an earlier value where a slot has changed hands since.
  uint64_t progress();
  GrantRing& ring(uint32_t local_rank) { return at<GrantRing>(header_->rings)[local_rank]; }
  Bell& bell(uint32_t local_rank) { return at<Bell>(header_->bells)[local_rank]; }
  // On which the rank's callers wait for small operations.
  Bell& waiters(uint32_t local_rank) { return at<Bell>(header_->waiters)[local_rank]; }
  RankState& state(uint32_t local_rank) { return at<RankState>(header_->states)[local_rank]; }
  EagerSignal& signal() { return *at<EagerSignal>(header_->signal); }
  EagerCell& cell(uint32_t local_rank, uint32_t i) { return cells()[local_rank * kEagerCells + i]; }
  uint8_t* data(const EagerCell& cell) { return at<uint8_t>(header_->cell_data) + (&cell - cells()) * kEagerBytes; }

 private:
  EagerCell* cells() { return at<EagerCell>(header_->cells); }
  template <class T>
  T* at(uint64_t offset) {
    return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(header_) + offset);
  }
  ArenaHeader* header_ = nullptr;
};

void ring_bell(Bell& bell);
// A small operation of that rank has moved on: wake who waits for it, or else the worker.
void ring_waiters(Arena& arena, uint32_t local_rank);
// Sleep until the bell's seq differs from `seen`, or until timeout_ns (< 0: for ever). May return early.
void wait_bell(Bell& bell, uint32_t seen, int64_t timeout_ns);

}  // namespace hdp
