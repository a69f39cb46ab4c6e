// Who is where: hosts, ranks, groups. Values, computed once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hdp.h"

namespace hdp {

struct Topology {
  uint32_t host = 0;                  // this host
  std::vector<uint32_t> local_sizes;  // ranks of each host
  std::vector<uint32_t> first_rank;   // global rank of each host's first
  std::vector<std::string> host_names;
  uint32_t world_size = 0;

  static Topology from(const hdp_layout& layout);  // throws Error
  uint32_t num_hosts() const { return static_cast<uint32_t>(local_sizes.size()); }
  uint32_t local_size() const { return local_sizes[host]; }
  uint32_t host_of(uint32_t rank) const;
  std::string rank_name(uint32_t rank) const;                        // "rank 3 (algo-2)"
  std::string rank_names(const std::vector<uint32_t>& ranks) const;  // "rank 0 (algo-1), rank 3 (algo-2)"
};

// An ordered set of ranks, as one host sees it. Sums go over `hosts` in order, and within a host in rank order.
struct Group {
  uint64_t id = 0;
  std::vector<uint32_t> members;       // global ranks, by rank within the group
  std::vector<uint32_t> hosts;         // ascending; those with a member
  std::vector<uint32_t> local;         // this host's members as local ranks, ascending
  std::vector<uint32_t> local_places;  // their ranks within the group, in the same order

  static Group of(const Topology& topology, uint64_t id, std::vector<uint32_t> members);  // throws Error
  static uint64_t id_for(const std::vector<uint32_t>& members, const std::string& name);
  uint32_t size() const { return static_cast<uint32_t>(members.size()); }
  bool has(uint32_t rank) const;
  uint32_t place_of(uint32_t rank) const;  // `rank` must be a member
  bool on_host(uint32_t host) const;
  uint32_t host_index(uint32_t host) const;  // place of `host` in `hosts`; it must be there
};

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed);

}  // namespace hdp
