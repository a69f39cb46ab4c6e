// What a server does with messages: operations, failures, leaving.
#include <sys/epoll.h>

#include <algorithm>
#include <cstdio>

#include "server.h"

namespace hdp {
namespace {

// How long the other hosts may take to say who has not called an operation that timed out.
constexpr auto kQueryTime = std::chrono::seconds(2);
// How long the sequencer may take to answer a complaint.
constexpr auto kVerdictTime = std::chrono::seconds(3);
// Far above what programs use; so that no rank and no host can fill this host's memory.
constexpr size_t kMaxGroups = 1 << 16;
constexpr size_t kMaxPending = 1 << 16;
constexpr size_t kMaxQueries = 1000;

std::string seconds(uint64_t ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ms) / 1000);
  return text;
}

}  // namespace

// ---- messages ------------------------------------------------------------------------------------------------------

uint8_t* Server::place(uint32_t source, const Header& header) {
  if (source & 0x80000000u) throw Error(HDP_SYSTEM, "data from a rank's socket");
  if (lost_) throw Error(HDP_PEER_LOST, "data after the end");
  return transfer_.place(source, header);
}

void Server::data(uint32_t source, const Header& header, uint8_t* body) {
  if (!lost_) transfer_.arrived(source, header, body);
}

void Server::control(uint32_t source, const Header& header, Reader body) {
  if (source & 0x80000000u)
    from_rank(source & 0x7fffffffu, header, body);
  else
    from_peer(source, header, body);
}

void Server::from_rank(uint32_t local, const Header& header, Reader& body) {
  switch (header.type) {
    case Type::kAnnounce: {
      const Operation operation = body.operation();
      const uint64_t ticket = body.u64();
      announce(local, operation, ticket, body.u32() != 0);
      return;
    }
    case Type::kWithdraw: withdraw(body.key()); return;
    case Type::kDeclare: {
      const uint64_t id = body.u64();
      declare(id, body.list());
      return;
    }
    case Type::kExpired: {
      const Key key = body.key();
      expired(local, key, body.u64());
      return;
    }
    case Type::kStalled: {
      const Key key = body.key();
      const uint64_t waited = body.u64();
      stalled(key, waited, body.u64());
      return;
    }
    case Type::kLeave: leave(local, body.text()); return;
    case Type::kFailed: lose(HDP_SYSTEM, topology_.rank_name(global(local)) + ": " + body.reason()); return;
    default: throw Error(HDP_SYSTEM, topology_.rank_name(global(local)) + " sent an unknown message");
  }
}

void Server::from_peer(uint32_t host, const Header& header, Reader& body) {
  if (lost_ && header.type != Type::kGoodbye) return;
  switch (header.type) {
    case Type::kGroup:
    case Type::kReady:
    case Type::kComplain:
    case Type::kStalled:
    case Type::kWithdrawn:
      if (!sequencer_) throw Error(HDP_SYSTEM, "a message for the sequencer, which isn't here");
      break;
    case Type::kGrant:
    case Type::kVerdict:
      if (host != 0) throw Error(HDP_SYSTEM, "a grant that isn't the sequencer's");
      break;
    default: break;
  }
  switch (header.type) {
    case Type::kGroup: {
      const uint64_t id = body.u64();
      declare(id, body.list());
      return;
    }
    case Type::kReady: {
      const bool complete = body.u32() != 0, in_cells = body.u32() != 0;
      std::vector<View> views(std::min<uint32_t>(body.u32(), topology_.local_sizes[host]));
      for (View& view : views) {
        view.operation = body.operation();
        view.ranks = body.list();
      }
      sequencer_->ready(host, complete, in_cells, std::move(views));
      return;
    }
    case Type::kWithdrawn: sequencer_->withdrawn(host, body.key()); return;
    case Type::kEager: eager_.arrived(host, body); return;
    case Type::kGrant: {
      const Key key = body.key();
      Cut cut;
      cut.chunks = body.u64();
      cut.elements = body.u64();
      granted(key, header.seq, cut);
      return;
    }
    case Type::kStalled: {
      const uint64_t waited = body.u64(), left = body.u64();
      stall_seen(body.operation(), waited, left);
      return;
    }
    case Type::kCredit: transfer_.credited(host, body.u64()); return;
    case Type::kComplain:
    case Type::kVerdict: {
      const uint64_t group = body.u64();
      const hdp_status status = body.status();
      const std::string text = body.reason();
      if (header.type == Type::kComplain) return complain(group, status, text, body.key());
      complaints_.erase(group);
      decided_.insert(group);
      transfer_.then([=, this] { poison(group, status, text); });
      return;
    }
    case Type::kLost: {
      const hdp_status status = body.status();
      lose(status, body.reason());
      return;
    }
    case Type::kQuery: {
      const Key key = body.key();
      // Perhaps no rank here has made the group yet.
      const std::vector<uint32_t> missing = missing_here(key, Group::of(topology_, key.group, body.list()));
      peers_[host].send(Type::kAnswer, Writer().key(key).list(missing).list(calls_of(key.group, missing)).take());
      return;
    }
    case Type::kAnswer: {
      const Key key = body.key();
      auto query = queries_.find(key);
      if (query == queries_.end()) return;
      const std::vector<uint32_t> ranks = body.list();
      const std::vector<uint64_t> calls = body.list<uint64_t>();
      const Group& asked = *query->second.participants;
      const auto theirs = [&](uint32_t rank) { return asked.has(rank) && topology_.host_of(rank) == host; };
      if (!asked.on_host(host) || calls.size() != ranks.size() || !std::all_of(ranks.begin(), ranks.end(), theirs))
        throw Error(HDP_SYSTEM, "a malformed answer arrived");
      answer(query->second, host, ranks, calls);
      return;
    }
    case Type::kLeft: {
      const std::vector<uint32_t> ranks = body.list();
      for (uint32_t rank : ranks)
        if (rank >= topology_.world_size || topology_.host_of(rank) != host)
          throw Error(HDP_SYSTEM, "a host told of ranks that aren't its own");
      left(ranks);
      return;
    }
    case Type::kGoodbye: peer_done_[host] = true; return;
    default: throw Error(HDP_SYSTEM, topology_.host_names[host] + " sent an unknown message");
  }
}

// ---- operations ----------------------------------------------------------------------------------------------------

void Server::declare(uint64_t id, std::vector<uint32_t> members) {
  if (auto known = groups_.find(id); known != groups_.end()) {
    if (known->second->members != members) throw Error(HDP_SYSTEM, "a group was declared with other ranks before");
    return;
  }
  if (groups_.size() >= kMaxGroups) throw Error(HDP_SYSTEM, "too many groups");
  auto group = std::make_shared<const Group>(Group::of(topology_, id, members));
  groups_.emplace(id, group);
  if (sequencer_)
    sequencer_->declare(group);
  else
    peers_[0].send(Type::kGroup, Writer().u64(id).list(members).take());
}

void Server::announce(uint32_t local, const Operation& operation, uint64_t ticket, bool in_cell) {
  if (lost_) return;
  auto group = groups_.find(operation.key.group);
  if (group == groups_.end() || !group->second->has(global(local)))
    throw Error(HDP_SYSTEM, topology_.rank_name(global(local)) + " announced an operation of a group it isn't in");
  operation.check(*group->second);
  if (poisoned_.contains(operation.key.group)) return;  // the rank has been told
  if (pending_.size() >= kMaxPending) throw Error(HDP_SYSTEM, "too many operations wait at once");
  auto [found, added] = pending_.try_emplace(operation.key);
  Pending& pending = found->second;
  if (added) {
    pending.first = operation;
    pending.participants = operation.participants(topology_, group->second);
  }
  if (!pending.participants->has(global(local)))
    throw Error(HDP_SYSTEM, topology_.rank_name(global(local)) + " announced a message of other ranks");
  pending.by_local[local] = {operation, ticket};
  pending.in_cells &= in_cell;
  if (!pending.first.same_call(operation)) pending.disagree = true;
  if (pending.disagree) return report(pending);
  if (pending.complete()) report(pending);
  if (!pending_.contains(operation.key)) return;  // granted
  for (uint32_t rank : left_)
    if (awaits_left(operation.key, pending, rank))
      return complain(operation.key.group, HDP_PEER_LOST, left_text(topology_, rank, operation));
}

void Server::report(Pending& pending) {
  pending.reported = true;
  std::vector<View> views;
  for (const auto& [local, view] : pending.by_local) {
    if (views.empty() || pending.disagree || pending.first.exchanges()) views.push_back({view.first, {}});
    views.back().ranks.push_back(global(local));
  }
  if (sequencer_) return sequencer_->ready(topology_.host, pending.complete(), pending.in_cells, std::move(views));
  Writer body;
  body.u32(pending.complete()).u32(pending.in_cells).u32(static_cast<uint32_t>(views.size()));
  for (const View& view : views) body.operation(view.operation).list(view.ranks);
  peers_[0].send(Type::kReady, body.take());
}

// A rank has the result, so all have called it and it completes on all; nobody needs to look after it any more.
void Server::withdraw(const Key& key) {
  auto found = pending_.find(key);
  if (found == pending_.end()) return;
  const bool reported = found->second.reported;
  pending_.erase(found);
  if (!reported || lost_) return;
  if (sequencer_)
    sequencer_->withdrawn(topology_.host, key);
  else
    peers_[0].send(Type::kWithdrawn, Writer().key(key).take());
}

void Server::complain(uint64_t group, hdp_status status, std::string text, const Key& puzzled) {
  if (sequencer_) return sequencer_->complain(group, status, text + sequencer_->unheard(puzzled));
  if (decided_.contains(group)) return;
  peers_[0].send(Type::kComplain, Writer().u64(group).u32(status).text(text).key(puzzled).take());
  complaints_.try_emplace(group, Clock::now() + kVerdictTime);
}

// A verdict that doesn't come is that of a server which is cut off, or stands still.
void Server::check_complaints() {
  for (const auto& [group, deadline] : complaints_)
    if (Clock::now() >= deadline)
      return lose(HDP_TIMEOUT, "an operation on " + host_name() + " failed, and " + topology_.host_names[0] +
                                   ", whose server decides, does not answer: it is cut off or stands still");
}

void Server::grant(uint32_t host, const Key& key, uint64_t seq, Cut cut) {
  if (host == topology_.host)
    granted(key, seq, cut);
  else
    peers_[host].send(Type::kGrant, Writer().key(key).u64(cut.chunks).u64(cut.elements).take(), seq);
}

void Server::granted(const Key& key, uint64_t seq, Cut cut) {
  auto found = pending_.find(key);
  if (found == pending_.end() || found->second.disagree || !found->second.complete())
    throw Error(HDP_SYSTEM, "a grant for an operation that isn't ready");
  std::vector<LocalCall> local;
  for (auto& [rank, view] : found->second.by_local) local.push_back({std::move(view.first), view.second});
  const std::shared_ptr<const Group> participants = found->second.participants;
  pending_.erase(found);
  eager_.granted(key);
  transfer_.start(participants, seq, cut, std::move(local));
}

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
