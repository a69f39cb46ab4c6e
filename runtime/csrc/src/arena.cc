#include "arena.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "error.h"

namespace hdp {
namespace {

constexpr uint64_t kPage = 4096;

uint64_t align(uint64_t offset, uint64_t to) { return (offset + to - 1) / to * to; }

ArenaHeader lay_out(uint32_t local_size, uint32_t slots, uint64_t slot_bytes) {
  ArenaHeader h{};
  h.magic = kArenaMagic;
  h.local_size = local_size;
  h.slots = slots;
  h.slot_bytes = slot_bytes;
  h.bells = align(sizeof(ArenaHeader), 64);
  h.controls = h.bells + sizeof(Bell) * local_size;
  h.rings = h.controls + sizeof(SlotControl) * slots;
  h.waiters = h.rings + sizeof(GrantRing) * local_size;
  h.states = h.waiters + sizeof(Bell) * local_size;
  h.signal = h.states + sizeof(RankState) * local_size;
  h.cells = h.signal + sizeof(EagerSignal);
  h.cell_data = align(h.cells + sizeof(EagerCell) * kEagerCells * local_size, kPage);
  h.data = h.cell_data + kEagerBytes * kEagerCells * local_size;
  h.total = align(h.data + slot_bytes * slots, kPage);
  return h;
}

}  // namespace

uint64_t Arena::bytes(uint32_t local_size, uint32_t slots, uint64_t slot_bytes) {
  return lay_out(local_size, slots, slot_bytes).total;
}

void Arena::initialise(int fd, uint32_t local_size, uint32_t slots, uint64_t slot_bytes) {
  constexpr uint64_t kLeast = 4096;
  if (slots == 0 || slot_bytes < kLeast || slot_bytes % 64 != 0)
    throw Error(HDP_INVALID, "an arena of " + std::to_string(slots) + " slots of " + std::to_string(slot_bytes) +
                                 " bytes; expected one at least, of a multiple of 64 bytes, at least 4096");
  ArenaHeader h = lay_out(local_size, slots, slot_bytes);
  if (pwrite(fd, &h, sizeof h, 0) != static_cast<ssize_t>(sizeof h)) throw SystemError("writing the arena's header");
}

Arena::Arena(int fd) {
  struct stat st{};
  if (fstat(fd, &st) != 0) throw SystemError("fstat of the arena");
  ArenaHeader h{};
  if (pread(fd, &h, sizeof h, 0) != static_cast<ssize_t>(sizeof h) || h.magic != kArenaMagic ||
      h.total != lay_out(h.local_size, h.slots, h.slot_bytes).total || static_cast<uint64_t>(st.st_size) < h.total)
    throw Error(HDP_INVALID, "the shared file isn't an arena of this version");
  void* p = mmap(nullptr, h.total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) throw SystemError("mapping the arena (" + std::to_string(h.total) + " bytes)");
  // A forked data-loader worker must not hold the arena, nor copy its page tables.
  madvise(p, h.total, MADV_DONTFORK);
  header_ = static_cast<ArenaHeader*>(p);
}

uint64_t Arena::progress() {
  uint64_t sum = 0;
  for (uint64_t slot = 0; slot < slots(); ++slot) {
    const SlotControl& c = control(slot);
    sum = sum * 31 + c.open + c.result + c.released + c.turn + c.done;
  }
  return sum;
}

Arena::~Arena() { munmap(header_, header_->total); }

// The bell's seq and waiting flag are a Dekker pair: the ringer writes seq then reads waiting, the sleeper writes
// waiting then reads seq (inside the futex call), both sequentially consistent, so one of them sees the other.
namespace {

bool ring(Bell& bell) {
  bell.seq.fetch_add(1);
  if (bell.waiting.load() == 0) return false;
  syscall(SYS_futex, &bell.seq, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  return true;
}

}  // namespace

void ring_bell(Bell& bell) { ring(bell); }

void ring_waiters(Arena& arena, uint32_t local_rank) {
  if (!ring(arena.waiters(local_rank))) ring_bell(arena.bell(local_rank));
}

void wait_bell(Bell& bell, uint32_t seen, int64_t timeout_ns) {
  timespec ts{timeout_ns / 1000000000, timeout_ns % 1000000000};
  bell.waiting.fetch_add(1);
  if (bell.seq.load() == seen)
    syscall(SYS_futex, &bell.seq, FUTEX_WAIT, seen, timeout_ns < 0 ? nullptr : &ts, nullptr, 0);
  bell.waiting.fetch_sub(1);
}

}  // namespace hdp
