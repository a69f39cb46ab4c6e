#include "eager.h"

#include "arena.h"
#include "kernels.h"

namespace hdp {

bool is_small(const Operation& o) {
  if (o.kind == HDP_BARRIER) return true;
  return o.kind == HDP_ALLREDUCE && o.count > 0 && o.count <= kEagerBytes / element_bytes(o.dtype);
}

Call call_of(const Operation& o) {
  const uint64_t numbers[] = {o.kind, o.dtype, o.travel, o.op, o.root, o.count};
  Call call{hash_bytes(numbers, sizeof numbers, 4), 0};
  if (!o.shape.empty()) call.shape = hash_bytes(o.shape.data(), o.shape.size() * sizeof(uint64_t), 5) | 1;
  return call;
}

// Publishing is one half of a Dekker pair, looking at the others' cells the other half, both sequentially consistent:
// of two ranks that publish at once, one at least sees both cells.
void publish(EagerCell& cell, const Operation& o, uint32_t members) {
  const uint64_t words[] = {o.key.group, o.key.tag_hash, o.key.counter};
  for (int i = 0; i < 3; ++i) cell.key[i].store(words[i], std::memory_order_relaxed);
  const Call call = call_of(o);
  cell.call[0].store(call.fingerprint, std::memory_order_relaxed);
  cell.call[1].store(call.shape, std::memory_order_relaxed);
  cell.count = o.count;
  cell.dtype = o.dtype;
  cell.travel = o.travel;
  cell.op = o.op;
  cell.stage.store(Stage::kGathering, std::memory_order_relaxed);
  cell.copiers.store(members, std::memory_order_relaxed);
  cell.generation.fetch_add(1);
}

void withdraw(EagerCell& cell) { cell.generation.fetch_add(1); }

Key key_of(const EagerCell& cell) {
  return {cell.key[0].load(std::memory_order_relaxed), cell.key[1].load(std::memory_order_relaxed),
          cell.key[2].load(std::memory_order_relaxed)};
}

Call call_of(const EagerCell& cell) {
  return {cell.call[0].load(std::memory_order_relaxed), cell.call[1].load(std::memory_order_relaxed)};
}

// The owner may be about to use a cell again for another operation; then the generation has changed.
EagerCell* find_cell(Arena& arena, uint32_t local, const Key& key, uint64_t* generation) {
  for (uint32_t i = 0; i < kEagerCells; ++i) {
    EagerCell& cell = arena.cell(local, i);
    const uint64_t seen = cell.generation.load();
    if (seen % 2 == 0 || key_of(cell) != key) continue;
    std::atomic_thread_fence(std::memory_order_acquire);  // the key was read before the generation is read again
    if (cell.generation.load() != seen) continue;
    if (generation != nullptr) *generation = seen;
    return &cell;
  }
  return nullptr;
}

}  // namespace hdp
