#include "topology.h"

#include <algorithm>

#include "error.h"

namespace hdp {

Topology Topology::from(const hdp_layout& layout) {
  if (layout.num_hosts < 1 || layout.host < 0 || layout.host >= layout.num_hosts)
    throw Error(HDP_INVALID, "host " + std::to_string(layout.host) + " of " + std::to_string(layout.num_hosts));
  Topology t;
  t.host = static_cast<uint32_t>(layout.host);
  for (int32_t i = 0; i < layout.num_hosts; ++i) {
    if (layout.local_sizes[i] < 0) throw Error(HDP_INVALID, "a host with a negative number of ranks");
    t.first_rank.push_back(t.world_size);
    t.local_sizes.push_back(static_cast<uint32_t>(layout.local_sizes[i]));
    t.host_names.emplace_back(layout.host_names[i]);
    t.world_size += t.local_sizes.back();
  }
  return t;
}

uint32_t Topology::host_of(uint32_t rank) const {
  auto after = std::upper_bound(first_rank.begin(), first_rank.end(), rank);
  // Hosts without ranks share their first_rank with the next one; the last of equals has the rank.
  return static_cast<uint32_t>(after - first_rank.begin()) - 1;
}

std::string Topology::rank_name(uint32_t rank) const {
  return "rank " + std::to_string(rank) + " (" + host_names[host_of(rank)] + ")";
}

std::string Topology::rank_names(const std::vector<uint32_t>& ranks) const {
  constexpr size_t kNamed = 16;
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < kNamed; ++i) text += (i ? ", " : "") + rank_name(ranks[i]);
  if (ranks.size() > kNamed) text += " and " + std::to_string(ranks.size() - kNamed) + " more";
  return text;
}

Group Group::of(const Topology& topology, uint64_t id, std::vector<uint32_t> members) {
  Group g;
  g.id = id;
  std::vector<std::pair<uint32_t, uint32_t>> by_rank;
  for (uint32_t place = 0; place < members.size(); ++place) by_rank.emplace_back(members[place], place);
  std::sort(by_rank.begin(), by_rank.end());
  for (size_t i = 0; i < by_rank.size(); ++i) {
    const auto [rank, place] = by_rank[i];
    if (rank >= topology.world_size)
      throw Error(HDP_INVALID, "a group has rank " + std::to_string(rank) + ", but there are only " +
                                   std::to_string(topology.world_size) + " ranks");
    if (i > 0 && by_rank[i - 1].first == rank)
      throw Error(HDP_INVALID, "a group has rank " + std::to_string(rank) + " twice");
    const uint32_t host = topology.host_of(rank);
    if (g.hosts.empty() || g.hosts.back() != host) g.hosts.push_back(host);
    if (host == topology.host) {
      g.local.push_back(rank - topology.first_rank[host]);
      g.local_places.push_back(place);
    }
  }
  g.members = std::move(members);
  return g;
}

uint64_t Group::id_for(const std::vector<uint32_t>& members, const std::string& name) {
  uint64_t h = hash_bytes(name.data(), name.size(), 1);
  h = hash_bytes(members.data(), members.size() * sizeof(uint32_t), h);
  return h ? h : 1;  // 0 is the group of all ranks
}

bool Group::has(uint32_t rank) const { return std::find(members.begin(), members.end(), rank) != members.end(); }

uint32_t Group::place_of(uint32_t rank) const {
  return static_cast<uint32_t>(std::find(members.begin(), members.end(), rank) - members.begin());
}

bool Group::on_host(uint32_t host) const { return std::binary_search(hosts.begin(), hosts.end(), host); }

uint32_t Group::host_index(uint32_t host) const {
  return static_cast<uint32_t>(std::lower_bound(hosts.begin(), hosts.end(), host) - hosts.begin());
}

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) {  // FNV-1a, finished by a 64-bit mix
  const auto* bytes = static_cast<const uint8_t*>(data);
  uint64_t h = 0xcbf29ce484222325ULL ^ (seed * 0x9e3779b97f4a7c15ULL);
  for (size_t i = 0; i < size; ++i) h = (h ^ bytes[i]) * 0x100000001b3ULL;
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  return h ^ (h >> 33);
}

}  // namespace hdp
