// The transfer of granted operations through this host's arena and between hosts, chunk by chunk.
//
// Of a chunk with N hosts in its group, host h *owns* share h (shares are equal, in multiples of 16 elements).
//   allreduce  each host sends its partial sum of share j to host j (kPart); the owner combines the parts in host
//              order and sends the final share to all (kShare).
//   broadcast  the root's host sends share j to host j, which relays it to the others (kShare twice); its own share
//              it sends to all. Each host acknowledges the chunk, so that the root is at most `slots` chunks ahead.
//   allgather  each host sends its members' pieces to all (kShare, by rank within the group).
// A slot is free again when all local members have copied out and nothing in it waits to be sent.
//
// How far may another host be ahead? It opens chunk c + slots of an operation only after it has all of chunk c, which
// includes what we contributed to c. So at most `slots` of its chunks are unknown to us: they arrive before our slot
// is open, even before our grant, and wait in buffers (kPart always does). Chunk state is kept by (grant, chunk), not
// by slot, since a peer's next chunk may arrive while we still hold the slot of an earlier one.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "arena.h"
#include "buffers.h"
#include "connection.h"
#include "topology.h"

namespace hdp {

class Transfer {
 public:
  // `peers` by host; the place of this host is not open.
  Transfer(const Topology& topology, Arena& arena, std::vector<Connection>& peers);

  // In the sequencer's order. `tickets` by local member.
  void start(const Operation& operation, const Group& group, uint64_t seq, uint64_t chunk_count,
             std::vector<uint64_t> tickets);
  // Run `action` after all transfers started before have reached their ranks.
  void then(std::function<void()> action);
  // Take every step that is possible now.
  void advance();

  // A data message's body: where it goes, and that it is there.
  uint8_t* place(uint32_t source, const Header& header);
  void arrived(uint32_t source, const Header& header, uint8_t* body);
  void acknowledged(const Header& header);

  bool active(const Key& key) const;
  // Who keeps an active operation from completing, for a message.
  std::string stalled_on(const Key& key) const;

 private:
  struct Active {
    Operation op;
    Group group;
    uint64_t seq = 0, base = 0, chunks = 0, chunk_count = 0;
    uint64_t finished = 0;      // chunks, where the server drives them
    bool local_final = false;   // the ranks drive the slots themselves
    uint32_t contributors = 0;  // local
    uint64_t end() const { return base + chunks; }
    uint64_t count_of(uint64_t chunk) const;
  };
  struct Staged {
    uint32_t source;
    uint32_t share;
    Buffer buffer;
  };
  struct Chunk {
    Active* op = nullptr;  // null until granted
    uint64_t q = 0;        // 0 until the slot is open
    uint32_t index = 0;
    std::map<uint32_t, Buffer> parts;  // by source host
    std::vector<Staged> early;         // shares that came before the slot was open
    std::vector<bool> present;         // shares in the slot
    uint32_t missing = 0;
    uint32_t sending = 0;  // messages that point into the slot
    uint32_t acks_missing = 0;
    bool contributed = false;  // the local members' part is complete
    bool reduced = false;
    bool published = false;
  };
  using ChunkKey = std::pair<uint64_t, uint32_t>;  // seq, index
  struct Region {
    uint64_t offset, bytes;
  };

  void launch(const Operation& operation, const Group& group, uint64_t seq, uint64_t chunk_count,
              const std::vector<uint64_t>& tickets);
  bool step();
  bool run_queue();
  bool rings_have_room(const Group& group);
  bool open_slots();
  bool slot_free_for(uint64_t q) const;
  Active* active_at(uint64_t q) const;
  bool reap();
  void open(Active& op, uint64_t q);
  void adopt_early(Chunk& chunk);
  void settle(Chunk& chunk, uint32_t share);
  void release(uint32_t source, Buffer buffer);
  std::string stalled_chunk(const Chunk& chunk) const;
  bool progress(Chunk& chunk);
  void contribute(Chunk& chunk);
  void reduce(Chunk& chunk);
  void publish(Chunk& chunk);
  void mark_present(Chunk& chunk, uint32_t share);
  void relay(Chunk& chunk, uint32_t share);
  void send_share(Chunk& chunk, uint32_t host, Type type, uint32_t share);
  Region region(const Active& op, uint64_t chunk, uint32_t share) const;
  Chunk& chunk_at(uint64_t seq, uint32_t index);
  void check_source(const Active& op, uint32_t source, const Header& header) const;

  const Topology& topology_;
  Arena& arena_;
  std::vector<Connection>& peers_;
  BufferPool pool_;
  std::map<uint64_t, std::unique_ptr<Active>> active_;  // by base
  std::map<uint64_t, Active*> by_seq_;
  std::map<ChunkKey, Chunk> chunks_;
  std::vector<Chunk*> in_slot_;              // by slot; null: free, or driven by the ranks
  std::vector<Buffer> receiving_;            // by source host, while a body arrives
  std::vector<uint64_t> early_bytes_;        // by source host, held in buffers
  std::set<Key> queued_;                     // granted, not launched
  std::deque<std::function<bool()>> queue_;  // starts and actions in order; false: try again later
  uint64_t next_q_ = 1;                      // to assign
  uint64_t next_open_ = 1;                   // to open
  uint64_t last_seq_ = 0;
};

}  // namespace hdp
