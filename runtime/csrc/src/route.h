// What an operation does with each of its chunks on this host: which shares go to which host, and what must come.
//
// Of a chunk with N hosts in its group, shares are
//   allreduce       N equal ones, in multiples of 16 elements; host h owns share h. Each host sends its partial sum of
//                   share j to host j (kPart); the owner combines the parts in host order and sends the sum to all
//                   (kShare).
//   reduce          the same, but the sums go to the root's host alone.
//   reduce_scatter  one for each rank; each host sends its partial sum of it to the rank's host (kPart).
//   broadcast       N equal ones; the root's host sends share j to host j, which relays it to the others (kShare
//                   both times); its own share it sends to all.
//   allgather       one for each rank; the rank's host sends it to all.
//   exchanges       one for each pair of ranks; the sender's host sends it to the receiver's. Both blocks of a rank are
//                   in the slot of its host; what stays on the host is copied from one to the other.
// Each host sends to the next one first, so that not all send to the same one at once.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "buffers.h"
#include "cut.h"
#include "message.h"
#include "topology.h"

namespace hdp {

struct Region {  // of a slot, in bytes
  uint64_t offset = 0, bytes = 0;
};

// What a participant on this host called, and where its blocks are (exchanges).
struct LocalCall {
  Operation operation;
  uint64_t ticket = 0;
  uint64_t out_block = 0, in_block = 0;  // elements
};

struct Active;

struct Chunk {
  Active* op = nullptr;  // null until granted
  uint64_t q = 0;        // 0 until the slot is open
  uint32_t index = 0;
  std::map<std::pair<uint32_t, uint32_t>, Buffer> parts;  // by share and source host
  size_t parts_awaited = 0;
  struct Early {
    uint32_t source;
    Header header;
    Buffer buffer;
  };
  std::vector<Early> early;     // shares that came before the slot was open
  std::vector<Region> regions;  // of shares in this host's slot
  std::vector<bool> present;    // shares that are there, or aren't needed here
  uint32_t missing = 0;
  uint32_t sending = 0;      // messages that point into the slot
  bool contributed = false;  // the local members' part is complete
  bool reduced = false;
  bool published = false;

  void await(uint32_t share, bool needed);
  void mark_present(uint32_t share);
};

class Carrier {  // what a route needs of the engine
 public:
  virtual ~Carrier() = default;
  virtual uint8_t* slot(const Chunk& chunk) = 0;
  virtual void send(Chunk& chunk, uint32_t host, Type type, uint32_t share, Region region) = 0;
  virtual void consumed(uint32_t source, Buffer buffer) = 0;
};

[[noreturn]] void unexpected(const std::string& what);  // throws Error

class Route {
 public:
  static std::unique_ptr<Route> of(const Topology& topology, Carrier& carrier, const Active& op);
  Route(const Topology& topology, Carrier& carrier, const Active& op);
  virtual ~Route() = default;

  // The slot is open: lay it out, and say what must come.
  virtual void open(Chunk& chunk) = 0;
  // The local members' part is in the slot.
  virtual void contributed(Chunk& chunk) = 0;
  // ... and all parts from other hosts are there.
  virtual void reduce(Chunk&) {}
  // Index of a message's share in `regions`. Throws Error where `source` has no business to send it.
  virtual uint32_t accept(uint32_t source, const Header& header) const = 0;
  // A share from another host is in the slot.
  virtual void settled(Chunk& chunk, uint32_t share) { chunk.mark_present(share); }

 protected:
  uint32_t num_hosts() const;
  uint32_t host_of(uint32_t place) const;  // of a participant
  bool here(uint32_t place) const { return host_of(place) == topology_.host; }
  void combine(Chunk& chunk, uint32_t share);  // parts and our own, into the slot

  const Topology& topology_;
  Carrier& carrier_;
  const Active& op_;
  const Group& group_;
  const uint32_t me_;  // place of this host in the group
  const uint64_t element_;
};

struct Active {  // an operation in transfer
  Operation op;
  std::shared_ptr<const Group> group;  // the participants
  std::vector<LocalCall> local;        // in the order of group->local
  uint64_t seq = 0, base = 0;
  Cut cut;
  uint64_t finished = 0;      // chunks, where the server drives them
  bool local_final = false;   // the ranks drive the slots themselves
  uint32_t contributors = 0;  // local
  std::unique_ptr<Route> route;
  // for the timeline; the epoch: it never was
  std::chrono::steady_clock::time_point granted, first_sent, last_published;
  uint64_t end() const { return base + cut.chunks; }
};

}  // namespace hdp
