// The transfer of granted operations through this host's arena and between hosts, chunk by chunk.
//
// Chunks of all operations are numbered in the sequencer's order, and chunk q uses slot q % slots. What an operation
// does with its chunks is its Route; this engine opens slots, sends and receives, and lets the ranks copy out. A slot
// is free again when all local members have copied out and nothing in it waits to be sent.
//
// Flow control. A host may be ahead of another one: what it sends arrives before our slot is open, even before our
// grant, and waits in buffers (a kPart always does). A sender keeps what the receiver has not yet taken out of its
// buffers below a window; the receiver says how much it took (kCredit). The window can't block for ever: for one pair
// of hosts let q be the first chunk that isn't finished. Whatever the sender sent beyond q is of fewer than `slots`
// chunks, since its slot for q is not free, or it has nothing more to send for q; and the window has room for that many
// chunks and for q.
//
// Chunk state is kept by (grant, chunk), not by slot, since a peer's next chunk may arrive while we still hold the slot
// of an earlier one.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "arena.h"
#include "buffers.h"
#include "connection.h"
#include "route.h"
#include "timeline.h"
#include "topology.h"

namespace hdp {

class Transfer final : private Carrier {
 public:
  // `peers` by host; the place of this host is not open.
  Transfer(const Topology& topology, Arena& arena, std::vector<Connection>& peers);

  // In the sequencer's order. `group`: the participants; `local`: what those on this host called, in their order.
  void start(std::shared_ptr<const Group> group, uint64_t seq, Cut cut, std::vector<LocalCall> local);
  // Run `action` after all transfers started before have reached their ranks.
  void then(std::function<void()> action);
  // Take every step that is possible now.
  void advance();

  // A data message's body: where it goes, and that it is there.
  uint8_t* place(uint32_t source, const Header& header);
  void arrived(uint32_t source, const Header& header, uint8_t* body);
  // A peer took `bytes` of ours out of its buffers.
  void credited(uint32_t host, uint64_t bytes);

  // Tell `timeline` of each operation that ends; null: no more, and of those that haven't ended.
  void trace(Timeline* timeline);
  bool active(const Key& key) const;
  std::string name_of(const Key& key) const;  // of an active operation
  // Who keeps an active operation from completing, for a message.
  std::string stalled_on(const Key& key) const;

 private:
  using ChunkKey = std::pair<uint64_t, uint32_t>;  // seq, index
  struct Queued {                                  // to send when the window allows
    Header header;
    const uint8_t* data;
    uint32_t* pending;
  };

  // Carrier
  uint8_t* slot(const Chunk& chunk) override;
  void send(Chunk& chunk, uint32_t host, Type type, uint32_t share, Region region) override;
  void consumed(uint32_t source, Buffer buffer) override;

  void launch(std::shared_ptr<const Group> group, uint64_t seq, Cut cut, std::vector<LocalCall> local);
  void grant(const Active& op);
  void record(const Active& op, bool complete) const;
  bool step();
  bool run_queue();
  bool rings_have_room(const Group& group);
  bool open_slots();
  bool slot_free_for(uint64_t q) const;
  Active* active_at(uint64_t q) const;
  bool reap();
  void open(Active& op, uint64_t q);
  void adopt_early(Chunk& chunk);
  bool progress(Chunk& chunk);
  void publish(Chunk& chunk);
  Chunk& chunk_at(uint64_t seq, uint32_t index);
  uint32_t accept(const Chunk& chunk, uint32_t source, const Header& header) const;
  void pump(uint32_t host);
  void taken(uint32_t source, uint64_t bytes);
  std::string stalled_chunk(const Chunk& chunk) const;

  const Topology& topology_;
  Arena& arena_;
  std::vector<Connection>& peers_;
  BufferPool pool_;
  std::map<uint64_t, std::unique_ptr<Active>> active_;  // by base
  std::map<uint64_t, Active*> by_seq_;
  std::map<ChunkKey, Chunk> chunks_;
  std::vector<Chunk*> in_slot_;              // by slot; null: free, or driven by the ranks
  const uint64_t window_;                    // bytes
  std::vector<std::deque<Queued>> outbox_;   // by host, and so are those below
  std::vector<uint64_t> in_flight_;          // bytes sent and not credited
  std::vector<Buffer> receiving_;            // while a body arrives
  std::vector<uint64_t> held_, owed_;        // bytes in buffers; bytes to credit
  std::map<Key, Operation> queued_;          // granted, not launched
  std::deque<std::function<bool()>> queue_;  // starts and actions in order; false: try again later
  uint64_t next_q_ = 1;                      // to assign
  uint64_t next_open_ = 1;                   // to open
  uint64_t last_seq_ = 0;
  Timeline* timeline_ = nullptr;
};

}  // namespace hdp
