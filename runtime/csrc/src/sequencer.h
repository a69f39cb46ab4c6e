// The sequencer puts operations of all groups into one order. It runs in the server of hosts[0].
//
// A host reports an operation as ready once all its members have announced it. When every host of the group has, and
// they agree, the sequencer grants it. Grants and verdicts reach every host over one connection each, so all hosts see
// one order; transfers take arena slots in that order, and so can't wait for each other in a circle, whatever the
// order of submission and however groups overlap. A verdict poisons a group at one point of the order: what was
// granted before it completes everywhere, what was not fails everywhere.
#pragma once

#include <map>
#include <set>
#include <string>

#include "message.h"
#include "topology.h"

namespace hdp {

class Decisions {
 public:
  virtual ~Decisions() = default;
  virtual void grant(uint32_t host, const Key& key, uint64_t seq, uint64_t chunk_count) = 0;
  virtual void verdict(uint32_t host, uint64_t group, hdp_status status, const std::string& text) = 0;
};

class Sequencer {
 public:
  Sequencer(const Topology& topology, uint64_t slot_bytes, Decisions& out);

  void declare(const Group& group);
  void ready(uint32_t host, const Operation& operation);
  void complain(uint64_t group, hdp_status status, const std::string& text);
  void left(uint32_t rank);

 private:
  struct Entry {
    Operation first;  // as the first host reported it
    std::map<uint32_t, Operation> by_host;
  };
  bool check_left(const Key& key, const Entry& entry);
  std::string disagreement(const Group& group, const Entry& entry) const;

  const Topology& topology_;
  uint64_t slot_bytes_;
  Decisions& out_;
  std::map<uint64_t, Group> groups_;
  std::map<Key, Entry> waiting_;
  std::set<uint64_t> poisoned_;
  std::set<uint32_t> left_;
  uint64_t next_seq_ = 1;
};

// Elements of a chunk of `operation` (for allgather: of each rank's piece). The same for all hosts, since the
// sequencer sends it along.
uint64_t chunk_count(const Operation& operation, const Group& group, uint64_t slot_bytes);

std::string left_text(const Topology& topology, uint32_t rank, const Operation& operation);

}  // namespace hdp
