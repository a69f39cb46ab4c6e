// What a server does when something fails, takes too long or ends: tell those whom it concerns, and why.
#include <sys/epoll.h>

#include <algorithm>
#include <cstdio>

#include "server.h"

namespace hdp {
namespace {

// How long the other hosts may take to say who has not called an operation that timed out.
constexpr auto kQueryTime = std::chrono::seconds(2);
// So that no rank and no host can fill this host's memory.
constexpr size_t kMaxQueries = 1000;

std::string seconds(uint64_t ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ms) / 1000);
  return text;
}

}  // namespace

// ---- failures ------------------------------------------------------------------------------------------------------

void Server::verdict(uint32_t host, uint64_t group, hdp_status status, const std::string& text) {
  if (host == topology_.host)
    transfer_.then([=, this] { poison(group, status, text); });
  else
    peers_[host].send(Type::kVerdict, Writer().u64(group).u32(status).text(text).take());
}

void Server::poison(uint64_t id, hdp_status status, const std::string& text) {
  if (!poisoned_.try_emplace(id, status, text).second) return;
  std::erase_if(pending_, [&](const auto& item) { return item.first.group == id; });
  eager_.poisoned(id);
  // All ranks: a member that has not made the group yet learns of it then.
  for (Rank& rank : ranks_) rank.connection->send(Type::kPoison, Writer().u64(id).u32(0).u32(status).text(text).take());
}

void Server::lose(hdp_status status, const std::string& text) {
  if (lost_) return;
  lost_.emplace(status, text);
  lost_at_ = Clock::now();
  pending_.clear();
  queries_.clear();
  complaints_.clear();
  for (Connection& peer : peers_) peer.send(Type::kLost, Writer().u32(status).text(text).take());
  for (Rank& rank : ranks_) rank.connection->send(Type::kPoison, Writer().u64(0).u32(1).u32(status).text(text).take());
}

void Server::expired(uint32_t local, const Key& key, uint64_t waited_ms) {
  auto found = pending_.find(key);
  if (lost_) return;
  if (found == pending_.end()) {
    if (transfer_.active(key) && stands_still(key))
      lose(HDP_TIMEOUT,
           transfer_.name_of(key) + " did not finish within " + seconds(waited_ms) + ": " + transfer_.stalled_on(key));
    return;
  }
  auto view = found->second.by_local.find(local);
  if (view == found->second.by_local.end()) return;  // it overtook the announcement, and comes again
  Query query;
  query.operation = view->second.first;
  query.participants = found->second.participants;
  query.waited = seconds(waited_ms);
  query.fatal = true;
  ask(std::move(query));
}

// What all ranks have called can't be taken back; its time is up only where nothing has moved since it was last told.
bool Server::stands_still(const Key& key) {
  constexpr size_t kRemembered = 1000;
  constexpr auto kStillTime = std::chrono::milliseconds(800);
  if (still_.size() > kRemembered) still_.clear();
  const Still now{arena_.progress(), Clock::now()};
  auto [found, added] = still_.try_emplace(key, now);
  if (!added && found->second.progress == now.progress) return now.since - found->second.since >= kStillTime;
  found->second = now;
  return false;
}

// An operation of a rank here is slow. Who is missing is looked for by hosts[0], which hears of it from all hosts.
void Server::stalled(const Key& key, uint64_t waited_ms, uint64_t left_ms) {
  if (lost_) return;
  if (auto found = pending_.find(key); found != pending_.end()) {
    if (sequencer_) return stall_seen(found->second.first, waited_ms, left_ms);
    peers_[0].send(Type::kStalled, Writer().u64(waited_ms).u64(left_ms).operation(found->second.first).take());
  } else if (transfer_.active(key)) {
    log("stalled: " + transfer_.name_of(key) + " has been in transfer for up to " + seconds(waited_ms) + ": " +
        transfer_.stalled_on(key) + "; usually a process is stopped or a network is slow or down; it fails in " +
        seconds(left_ms));
  }
}

void Server::stall_seen(const Operation& operation, uint64_t waited_ms, uint64_t left_ms) {
  constexpr size_t kRemembered = 1000;
  if (stalls_.size() > kRemembered) stalls_.clear();
  uint64_t& logged = stalls_[operation.key];
  if (waited_ms < logged + logged / 2) return;  // every rank that waits tells it
  logged = waited_ms;
  auto group = groups_.find(operation.key.group);
  if (group == groups_.end()) return;
  operation.check(*group->second);
  Query query;
  query.operation = operation;
  query.participants = operation.participants(topology_, group->second);
  query.waited = seconds(waited_ms);
  query.left = seconds(left_ms);
  ask(std::move(query));
}

void Server::ask(Query query) {
  const Key key = query.operation.key;
  if (auto found = queries_.find(key); found != queries_.end()) {
    found->second.fatal |= query.fatal;
    return;
  }
  if (!query.fatal && queries_.size() >= kMaxQueries) return;
  query.deadline = Clock::now() + kQueryTime;
  const std::shared_ptr<const Group> participants = query.participants;
  Query& asked = queries_.emplace(key, std::move(query)).first->second;
  for (uint32_t host : participants->hosts)
    if (host != topology_.host) peers_[host].send(Type::kQuery, Writer().key(key).list(participants->members).take());
  if (!participants->on_host(topology_.host)) return;
  const std::vector<uint32_t> missing = missing_here(key, *participants);
  answer(asked, topology_.host, missing, calls_of(key.group, missing));
}

// Who has a small operation in a cell announces it late.
std::vector<uint32_t> Server::missing_here(const Key& key, const Group& participants) {
  std::vector<uint32_t> missing;
  auto found = pending_.find(key);
  if (transfer_.active(key) || eager_.complete(key)) return missing;
  for (uint32_t local : participants.local)
    if ((found == pending_.end() || !found->second.by_local.contains(local)) && !eager_.called(key, global(local)))
      missing.push_back(global(local));
  return missing;
}

std::vector<uint64_t> Server::calls_of(uint64_t group, const std::vector<uint32_t>& ranks) {
  std::vector<uint64_t> calls;
  for (uint32_t rank : ranks) {
    const RankState& state = arena_.state(rank - topology_.first_rank[topology_.host]);
    const uint32_t used = std::min(state.used.load(std::memory_order_acquire), RankState::kGroups);
    calls.push_back(0);
    for (uint32_t i = 0; i < used; ++i)
      if (state.group[i].load(std::memory_order_relaxed) == group)
        calls.back() = state.calls[i].load(std::memory_order_relaxed);
  }
  return calls;
}

void Server::answer(Query& query, uint32_t host, const std::vector<uint32_t>& ranks,
                    const std::vector<uint64_t>& calls) {
  query.missing[host] = ranks;
  for (size_t i = 0; i < ranks.size() && i < calls.size(); ++i) query.calls[ranks[i]] = calls[i];
  if (query.missing.size() == query.participants->hosts.size()) finish_query(query.operation.key);
}

void Server::finish_query(Key key) {
  const Query query = std::move(queries_.at(key));
  queries_.erase(key);
  std::vector<uint32_t> ranks;
  std::string silent, calls;
  for (uint32_t host : query.participants->hosts) {
    auto answer = query.missing.find(host);
    if (answer == query.missing.end())
      silent += " " + topology_.host_names[host];
    else
      ranks.insert(ranks.end(), answer->second.begin(), answer->second.end());
  }
  if (ranks.empty() && silent.empty() && !query.fatal) return;  // it was called in the meantime
  constexpr size_t kNamed = 8;
  for (size_t i = 0; i < ranks.size() && i < kNamed; ++i)
    calls += (i ? ", " : "") + ("rank " + std::to_string(ranks[i]) + ": " + std::to_string(query.calls.at(ranks[i])));
  std::string text = query.operation.name() + ", " + query.operation.call() + ", waited " + query.waited;
  if (!ranks.empty()) text += " for " + topology_.rank_names(ranks) + ", which did not call it";
  if (!silent.empty()) text += "; no answer from" + silent;
  if (!calls.empty()) text += "; operations of the group that they called so far: " + calls;
  if (!query.fatal)
    return log("stalled: " + text + "; usually they have fewer batches or call other operations than the rest, " +
               "or are busy (loading data, saving a checkpoint) or stuck; it fails in " + query.left);
  const bool puzzled = ranks.empty() && silent.empty();
  if (pending_.contains(key))
    complain(key.group, HDP_TIMEOUT, text, puzzled ? key : Key{});  // else granted or poisoned in the meantime
}

// ---- leaving -------------------------------------------------------------------------------------------------------

void Server::leave(uint32_t local, const std::string& abandoned) {
  if (ranks_[local].gone) return;
  ranks_[local].gone = true;
  if (!abandoned.empty())
    return lose(HDP_PEER_LOST, topology_.rank_name(global(local)) + " left before " + abandoned + " was complete");
  left({global(local)});
  for (Connection& peer : peers_) peer.send(Type::kLeft, Writer().list(std::vector{global(local)}).take());
}

// Whether an operation waits for a rank that has left without calling it. Of a rank of another host this shows here
// where the operation goes by cells: what the host sent of it came before the word that its rank left. Of all others
// the sequencer finds out.
bool Server::awaits_left(const Key& key, const Pending& pending, uint32_t rank) {
  const bool here = topology_.host_of(rank) == topology_.host;
  if (!pending.participants->has(rank) || !(here || pending.in_cells)) return false;
  if (here && pending.by_local.contains(rank - topology_.first_rank[topology_.host])) return false;
  return !eager_.called(key, rank);
}

void Server::left(const std::vector<uint32_t>& ranks) {
  if (lost_) return;
  for (uint32_t rank : ranks) {
    left_.insert(rank);
    std::vector<std::pair<uint64_t, std::string>> complaints;  // each may change pending_
    for (const auto& [key, pending] : pending_)
      if (!pending.disagree && awaits_left(key, pending, rank))
        complaints.emplace_back(key.group, left_text(topology_, rank, pending.first));
    for (auto& [group, text] : complaints) complain(group, HDP_PEER_LOST, std::move(text));
    if (sequencer_) sequencer_->left(rank);
  }
}

void Server::rank_ended(uint32_t local) {
  ranks_[local].gone = true;
  if (ranks_[local].connection->open())  // a forked child may hold the other end
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, ranks_[local].connection->fd(), nullptr);
  ranks_[local].connection->shut();
  lose(HDP_PEER_LOST, topology_.rank_name(global(local)) + ", process " + std::to_string(ranks_[local].pid) +
                          ", ended without leaving its groups");
}

void Server::peer_ended(uint32_t host) {
  if (peer_done_[host]) return;
  peer_done_[host] = true;
  lose(HDP_PEER_LOST, "host " + topology_.host_names[host] + " closed its connection to " + host_name() +
                          ": its server or machine is gone");
}

void Server::say_goodbye() {
  if (said_goodbye_ || !std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.gone; })) return;
  said_goodbye_ = true;
  for (Connection& peer : peers_) peer.send(Type::kGoodbye, {});
}

}  // namespace hdp
