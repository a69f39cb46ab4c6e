#include "sequencer.h"

#include <algorithm>

#include "error.h"

namespace hdp {
namespace {

// How long a verdict on a mismatch waits for what the other ranks call.
constexpr auto kGraceTime = std::chrono::seconds(1);
// Far above what programs use; so that no host can fill the memory of this one.
constexpr size_t kMaxWaiting = 1 << 17;

}  // namespace

Sequencer::Sequencer(const Topology& topology, uint64_t slot_bytes, Decisions& out)
    : topology_(topology), slot_bytes_(slot_bytes), out_(out) {}

void Sequencer::declare(std::shared_ptr<const Group> group) { groups_.emplace(group->id, std::move(group)); }

bool Sequencer::Entry::complete() const {
  return by_host.size() == participants->hosts.size() &&
         std::all_of(by_host.begin(), by_host.end(), [](const auto& item) { return item.second.complete; });
}

bool Sequencer::Entry::in_cells() const {
  return std::all_of(by_host.begin(), by_host.end(), [](const auto& item) { return item.second.in_cells; });
}

std::vector<View> Sequencer::Entry::views() const {
  std::vector<View> all;
  for (const auto& [host, report] : by_host) all.insert(all.end(), report.views.begin(), report.views.end());
  return all;
}

void Sequencer::ready(uint32_t host, bool complete, bool in_cells, std::vector<View> views) {
  if (views.empty()) throw Error(HDP_SYSTEM, "a report of nothing arrived");
  const Operation first = views.front().operation;
  const Key key = first.key;
  if (poisoned_.contains(key.group)) return;
  auto group = groups_.find(key.group);
  if (group == groups_.end()) throw Error(HDP_SYSTEM, "an operation of an undeclared group arrived");
  for (const View& view : views) view.operation.check(*group->second);
  auto found = waiting_.find(key);
  if (found == waiting_.end()) {
    if (waiting_.size() >= kMaxWaiting) throw Error(HDP_SYSTEM, "too many operations wait at once");
    const Entry fresh{first, first.participants(topology_, group->second), {}, {}};
    check_report(fresh, host, complete, views);
    found = waiting_.emplace(key, fresh).first;
  } else {
    check_report(found->second, host, complete, views);
  }
  Entry& entry = found->second;
  const bool agree =
      std::all_of(views.begin(), views.end(), [&](const View& view) { return view.operation.same_call(entry.first); });
  if (!agree && !entry.deadline) {
    entry.deadline = Clock::now() + kGraceTime;
    disagreements_.insert(key);
  }
  entry.by_host[host] = {complete, in_cells, std::move(views)};
  if (!entry.complete()) {
    if (!entry.deadline) check_left(entry);
  } else if (entry.deadline) {
    disagree(entry);
  } else if (!entry.in_cells()) {
    grant(entry);
  }
}

void Sequencer::withdrawn(uint32_t host, const Key& key) {
  auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  found->second.by_host.erase(host);
  if (!found->second.by_host.empty()) return;
  disagreements_.erase(key);
  waiting_.erase(found);
}

// Each participant of the host once at most, and all of them if it says so.
void Sequencer::check_report(const Entry& entry, uint32_t host, bool complete, const std::vector<View>& views) const {
  std::set<uint32_t> theirs, told;
  for (uint32_t rank : entry.participants->members)
    if (topology_.host_of(rank) == host) theirs.insert(rank);
  bool valid = !theirs.empty();
  for (const View& view : views) {
    valid = valid && view.operation.key == entry.first.key;
    for (uint32_t rank : view.ranks) valid = valid && theirs.contains(rank) && told.insert(rank).second;
  }
  if (!valid || told.empty() || (complete && told != theirs))
    throw Error(HDP_SYSTEM, "a malformed report of " + entry.first.name() + " arrived");
}

void Sequencer::grant(const Entry& entry) {
  const Key key = entry.first.key;
  if (const std::string text = unequal_ends(entry); !text.empty()) return complain(key.group, HDP_MISMATCH, text);
  std::vector<std::vector<View>> by_host;
  if (entry.first.exchanges())
    for (const auto& [host, report] : entry.by_host) by_host.push_back(report.views);
  Cut cut;
  try {
    cut = choose_cut(entry.first, *entry.participants, by_host, slot_bytes_);
  } catch (const Error& e) {
    return complain(key.group, e.status(), e.what());
  }
  const std::shared_ptr<const Group> participants = entry.participants;
  waiting_.erase(key);
  const uint64_t seq = next_seq_++;
  for (uint32_t host : participants->hosts) out_.grant(host, key, seq, cut);
}

void Sequencer::disagree(const Entry& entry) {
  std::vector<uint32_t> silent = entry.participants->members;
  for (const auto& [host, report] : entry.by_host)
    for (const View& view : report.views)
      std::erase_if(silent, [&](uint32_t rank) {
        return std::find(view.ranks.begin(), view.ranks.end(), rank) != view.ranks.end();
      });
  std::sort(silent.begin(), silent.end());
  std::string text = "the ranks disagree on operation #" + std::to_string(entry.first.key.counter) + " of their group";
  if (!entry.first.tag.empty()) text += " with tag '" + entry.first.tag + "'";
  text += ": " + list_calls(topology_, entry.views());
  if (!silent.empty()) text += "; " + topology_.rank_names(silent) + " called nothing yet";
  complain(entry.first.key.group, HDP_MISMATCH, text);
}

// Of a gather, scatter or alltoall: two ranks have different numbers of elements for what one gives to the other.
std::string Sequencer::unequal_ends(const Entry& entry) const {
  const Operation& first = entry.first;
  if (!first.exchanges()) return {};
  const auto& members = entry.participants->members;
  std::vector<const Operation*> by_place(members.size());
  for (const auto& [host, report] : entry.by_host)
    for (const View& view : report.views)
      for (uint32_t rank : view.ranks) by_place[entry.participants->place_of(rank)] = &view.operation;
  for (size_t from = 0; from < members.size(); ++from)
    for (size_t to = 0; to < members.size(); ++to) {
      const uint64_t given = by_place[from]->sends[to];
      const uint64_t taken = by_place[to]->receives[from];
      if (given == taken) continue;
      return "the ranks disagree on " + first.name() + ": " + topology_.rank_name(members[from]) + " gives " +
             std::to_string(given) + " elements to " + topology_.rank_name(members[to]) + ", which expects " +
             std::to_string(taken);
    }
  return {};
}

void Sequencer::complain(uint64_t group, hdp_status status, const std::string& text) {
  if (!groups_.contains(group) || !poisoned_.insert(group).second) return;
  std::erase_if(waiting_, [&](const auto& item) { return item.first.group == group; });
  std::erase_if(disagreements_, [&](const Key& key) { return key.group == group; });
  for (uint32_t host : groups_.at(group)->hosts) out_.verdict(host, group, status, text);
}

std::string Sequencer::unheard(const Key& key) const {
  auto found = waiting_.find(key);
  if (found == waiting_.end()) return {};
  std::string hosts;
  for (uint32_t host : found->second.participants->hosts)
    if (!found->second.by_host.contains(host)) hosts += (hosts.empty() ? "" : ", ") + topology_.host_names[host];
  return hosts.empty() ? hosts : "; " + topology_.host_names[topology_.host] + " has not heard of it from " + hosts;
}

void Sequencer::left(uint32_t rank) {
  left_.insert(rank);
  std::vector<Key> keys;
  for (const auto& [key, entry] : waiting_) keys.push_back(key);
  for (const Key& key : keys)
    if (auto it = waiting_.find(key); it != waiting_.end() && !it->second.deadline) check_left(it->second);
}

// An operation that waits for a host whose participant has left can't complete, unless by cells: then those who wait
// see what the host sent of it.
bool Sequencer::check_left(const Entry& entry) {
  if (entry.in_cells()) return false;
  for (uint32_t rank : left_) {
    if (!entry.participants->has(rank) || entry.by_host.contains(topology_.host_of(rank))) continue;
    complain(entry.first.key.group, HDP_PEER_LOST, left_text(topology_, rank, entry.first));
    return true;
  }
  return false;
}

bool Sequencer::tick(Clock::time_point now) {
  const std::set<Key> keys = disagreements_;
  for (const Key& key : keys)
    if (auto it = waiting_.find(key); it != waiting_.end() && now >= *it->second.deadline) disagree(it->second);
  return !disagreements_.empty();
}

}  // namespace hdp
