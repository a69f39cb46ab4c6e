// How an operation is cut into chunks, and where the elements of a chunk are: the same on servers and ranks.
//
// allreduce, reduce, broadcast: a chunk is a run of `Cut::elements` elements of the vector.
// all others: an array is made of pieces, one for each rank; chunk c is the c-th of `chunks` equal parts of every
// piece, so that all ranks and links are busy in every chunk, however unequal the pieces are.
//   allgather, reduce_scatter  a slot holds the pieces' parts one after the other, by rank.
//   exchanges                  a slot holds two blocks for each local rank, what it sends and what it receives; in a
//                              block the pieces' parts lie one after the other, by the other rank.
#pragma once

#include <cstdint>
#include <vector>

#include "operation.h"
#include "topology.h"

namespace hdp {

struct Cut {
  uint64_t chunks = 0;    // 0: there is nothing to transfer
  uint64_t elements = 0;  // of a chunk, where it is a run of the vector; the last one may have fewer
};

// A run of elements: where it is in the chunk's slot, and in the array that it belongs to. In elements.
struct Run {
  uint64_t slot = 0, array = 0, count = 0;
};

bool cut_by_piece(const Operation& operation);

// Where the part of a piece of `n` elements that is in `chunk` begins; it ends where that of the next chunk begins.
uint64_t part_begin(uint64_t n, uint64_t chunk, const Cut& cut);

// Of `n` elements, the share of the host at `place`: equal ones, in multiples of 16 elements, so that shares begin on
// vector boundaries. `slot` and `array` alike.
Run host_share(uint64_t n, uint64_t hosts, uint64_t place);
// The one run of a chunk that isn't cut by piece.
Run whole_run(const Operation& operation, const Cut& cut, uint64_t chunk);
// allgather, reduce_scatter: a run for each rank.
void piece_runs(const Operation& operation, uint32_t size, const Cut& cut, uint64_t chunk, std::vector<Run>& runs);
// exchanges: a run for each of `counts`, in a block that begins at `block`.
void block_runs(const std::vector<uint64_t>& counts, uint64_t block, const Cut& cut, uint64_t chunk,
                std::vector<Run>& runs);
// Elements of a block, large enough for every chunk.
uint64_t block_elements(const std::vector<uint64_t>& counts, const Cut& cut, uint64_t element_bytes);

// The sequencer's choice. `by_host`: for exchanges, what the ranks of each host called. Throws Error where an arena
// with slots of `slot_bytes` is too small for so many ranks.
Cut choose_cut(const Operation& operation, const Group& group, const std::vector<std::vector<View>>& by_host,
               uint64_t slot_bytes);
// Whether this host's part of a chunk fits a slot, and the numbers are what a sequencer of ours chooses.
bool fits(const Operation& operation, const Group& group, const std::vector<Operation>& local, const Cut& cut,
          uint64_t slot_bytes);

}  // namespace hdp
