// The servers' part in small operations (eager.h): the exchange of the hosts' sums.
//
// One hop where little goes out: each host sends its sum to every other one, and each adds up all of them. Else two,
// as in large operations: host h adds up share h, and sends it to all. Sums go in host order, in both cases.
//
// A host may be ahead of this one; what it sends waits here. It may be of more operations than it has cells: cells are
// given back by grants, which may reach us later than the host. So only memory sets a limit.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "arena.h"
#include "connection.h"
#include "eager.h"
#include "topology.h"

namespace hdp {

// The last keys of some kind.
class RecentKeys {
 public:
  void add(const Key& key);
  bool contains(const Key& key) const { return known_.contains(key); }

 private:
  static constexpr size_t kKept = 1024;
  std::set<Key> known_;
  std::deque<Key> order_;
};

class EagerExchange {
 public:
  using Groups = std::map<uint64_t, std::shared_ptr<const Group>>;
  EagerExchange(const Topology& topology, Arena& arena, std::vector<Connection>& peers, const Groups& groups);

  // Take the host sums that the ranks have made since.
  void look();
  // A kEager message.
  void arrived(uint32_t host, Reader& body);
  // The operation was granted, since a rank has no cell: nothing will come of it here.
  void granted(const Key& key);
  void poisoned(uint64_t group);
  // Whether `rank` has called the operation, as far as can be seen here.
  bool called(const Key& key, uint32_t rank);
  bool busy() const { return !small_.empty(); }
  bool complete(const Key& key) const { return complete_.contains(key); }

 private:
  struct Part {
    Call call;
    std::string bytes;
  };
  struct Small {
    EagerCell* cell = nullptr;  // of the first local member; null: the host sum isn't there yet
    std::shared_ptr<const Group> group;
    std::map<uint32_t, Part> parts, shares;  // by host
    bool shared = false;                     // our own share is added up and sent
  };
  struct Region {
    uint64_t offset, bytes;
  };

  void take(uint32_t local, const Key& key, EagerCell& cell);
  size_t early(uint32_t host) const;
  void advance(const Key& key, Small& small);
  void combine(const Small& small, Region region);
  void send(const Key& key, const Small& small, uint32_t host, uint32_t hop, Region region);
  Region share(const Small& small, uint32_t place) const;
  bool two_hops(const Small& small) const;
  uint64_t bytes(const Small& small) const;

  const Topology& topology_;
  Arena& arena_;
  std::vector<Connection>& peers_;
  const Groups& groups_;
  std::map<Key, Small> small_;
  RecentKeys complete_, granted_;
  std::set<uint64_t> poisoned_;  // groups
  uint64_t seen_ = 0;            // host sums
};

}  // namespace hdp
