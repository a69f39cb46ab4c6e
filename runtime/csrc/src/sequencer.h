// The sequencer puts operations of all groups into one order. It runs in the server of hosts[0].
//
// A host reports an operation as ready once all its participants have announced it. When every host has, and they
// agree, the sequencer grants it. Grants and verdicts reach every host over one connection each, so all hosts see one
// order; transfers take arena slots in that order, and so can't wait for each other in a circle, whatever the order of
// submission and however groups overlap. A verdict poisons a group at one point of the order: what was granted before
// it completes everywhere, what was not fails everywhere.
//
// A host whose participants disagree reports what each called, at once. The verdict waits a moment for the others, so
// that it can name what every rank called.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cut.h"
#include "operation.h"
#include "topology.h"

namespace hdp {

class Decisions {
 public:
  virtual ~Decisions() = default;
  virtual void grant(uint32_t host, const Key& key, uint64_t seq, Cut cut) = 0;
  virtual void verdict(uint32_t host, uint64_t group, hdp_status status, const std::string& text) = 0;
};

class Sequencer {
 public:
  using Clock = std::chrono::steady_clock;

  Sequencer(const Topology& topology, uint64_t slot_bytes, Decisions& out);

  void declare(std::shared_ptr<const Group> group);
  // `complete`: all participants of `host` are in `views`. `in_cells`: all these have cells (eager.h); an operation of
  // which all ranks have is never granted.
  void ready(uint32_t host, bool complete, bool in_cells, std::vector<View> views);
  // The operation is complete, by cells.
  void withdrawn(uint32_t host, const Key& key);
  void complain(uint64_t group, hdp_status status, const std::string& text);
  // Who complains about an operation that nobody it can reach is missing from does not know which host is cut off.
  std::string unheard(const Key& key) const;
  void left(uint32_t rank);
  // Verdicts whose moment is over. True: some still wait.
  bool tick(Clock::time_point now);

 private:
  struct Report {
    bool complete = false, in_cells = false;
    std::vector<View> views;
  };
  struct Entry {
    Operation first;  // as the first host reported it
    std::shared_ptr<const Group> participants;
    std::map<uint32_t, Report> by_host;
    std::optional<Clock::time_point> deadline;  // the ranks disagree; the verdict falls then
    bool complete() const;
    bool in_cells() const;
    std::vector<View> views() const;
  };
  void check_report(const Entry& entry, uint32_t host, bool complete, const std::vector<View>& views) const;
  void grant(const Entry& entry);
  bool check_left(const Entry& entry);
  void disagree(const Entry& entry);
  std::string unequal_ends(const Entry& entry) const;

  const Topology& topology_;
  uint64_t slot_bytes_;
  Decisions& out_;
  std::map<uint64_t, std::shared_ptr<const Group>> groups_;
  std::map<Key, Entry> waiting_;
  std::set<uint64_t> poisoned_;
  std::set<uint32_t> left_;
  std::set<Key> disagreements_;
  uint64_t next_seq_ = 1;
};

}  // namespace hdp
