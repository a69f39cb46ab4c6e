// What a server does with messages: operations, failures, leaving.
#include <sys/epoll.h>

#include <algorithm>
#include <cstdio>

#include "server.h"

namespace hdp {
namespace {

// How long the other hosts may take to say who has not called an operation that timed out.
constexpr auto kQueryTime = std::chrono::seconds(2);

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
      announce(local, operation, body.u64());
      return;
    }
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
    case Type::kLeave: leave(local, body.text()); return;
    default: throw Error(HDP_SYSTEM, topology_.rank_name(global(local)) + " sent an unknown message");
  }
}

void Server::from_peer(uint32_t host, const Header& header, Reader& body) {
  if (lost_ && header.type != Type::kGoodbye) return;
  switch (header.type) {
    case Type::kGroup:
    case Type::kReady:
    case Type::kComplain:
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
    case Type::kReady: sequencer_->ready(host, body.operation()); return;
    case Type::kGrant: {
      const Key key = body.key();
      granted(key, header.seq, body.u64());
      return;
    }
    case Type::kComplain:
    case Type::kVerdict: {
      const uint64_t group = body.u64();
      const auto status = static_cast<hdp_status>(body.u32());
      const std::string text = body.text();
      if (header.type == Type::kComplain)
        sequencer_->complain(group, status, text);
      else
        transfer_.then([=, this] { poison(group, status, text); });
      return;
    }
    case Type::kLost: {
      const auto status = static_cast<hdp_status>(body.u32());
      lose(status, body.text());
      return;
    }
    case Type::kQuery: {
      const Key key = body.key();
      // Perhaps no rank here has made the group yet.
      const std::vector<uint32_t> missing = missing_here(key, Group::of(topology_, key.group, body.list()));
      peers_[host].send(Type::kAnswer, Writer().key(key).list(missing).take());
      return;
    }
    case Type::kAnswer: {
      const Key key = body.key();
      auto query = queries_.find(key);
      if (query == queries_.end()) return;
      query->second.missing[host] = body.list();
      if (query->second.missing.size() == groups_.at(key.group).hosts.size()) finish_query(key);
      return;
    }
    case Type::kLeft: left(body.list()); return;
    case Type::kGoodbye: peer_done_[host] = true; return;
    case Type::kAck: transfer_.acknowledged(header); return;
    default: throw Error(HDP_SYSTEM, topology_.host_names[host] + " sent an unknown message");
  }
}

// ---- operations ----------------------------------------------------------------------------------------------------

void Server::declare(uint64_t id, std::vector<uint32_t> members) {
  if (groups_.contains(id)) return;
  const Group& group = groups_.emplace(id, Group::of(topology_, id, members)).first->second;
  if (sequencer_)
    sequencer_->declare(group);
  else
    peers_[0].send(Type::kGroup, Writer().u64(id).list(members).take());
}

void Server::announce(uint32_t local, const Operation& operation, uint64_t ticket) {
  if (lost_) return;
  auto found = groups_.find(operation.key.group);
  if (found == groups_.end() || !found->second.has(global(local)))
    throw Error(HDP_SYSTEM, topology_.rank_name(global(local)) + " announced an operation of a group it isn't in");
  const Group& group = found->second;
  if (poisoned_.contains(group.id)) return;  // the rank has been told
  Pending& pending = pending_.try_emplace(operation.key, Pending{operation, {}, false}).first->second;
  pending.by_local[local] = {operation, ticket};
  if (!pending.first.same_call(operation)) {
    disagree(group, pending);
    return;
  }
  if (pending.by_local.size() == group.local.size()) {
    report(operation);
    return;
  }
  for (uint32_t rank : left_)
    if (topology_.host_of(rank) == topology_.host && group.has(rank))
      return complain(group.id, HDP_PEER_LOST, left_text(topology_, rank, operation));
}

void Server::report(const Operation& operation) {
  pending_.at(operation.key).reported = true;
  if (sequencer_)
    sequencer_->ready(topology_.host, operation);
  else
    peers_[0].send(Type::kReady, Writer().operation(operation).take());
}

void Server::disagree(const Group& group, const Pending& pending) {
  std::string text =
      "the ranks disagree on operation #" + std::to_string(pending.first.key.counter) + " of their group:";
  const char* separator = " ";
  for (const auto& [local, view] : pending.by_local) {
    text += separator + topology_.rank_name(global(local)) + " called " + view.first.call();
    separator = "; ";
  }
  complain(group.id, HDP_MISMATCH, text);
}

void Server::complain(uint64_t group, hdp_status status, const std::string& text) {
  if (sequencer_)
    sequencer_->complain(group, status, text);
  else
    peers_[0].send(Type::kComplain, Writer().u64(group).u32(status).text(text).take());
}

void Server::grant(uint32_t host, const Key& key, uint64_t seq, uint64_t chunk_count) {
  if (host == topology_.host)
    granted(key, seq, chunk_count);
  else
    peers_[host].send(Type::kGrant, Writer().key(key).u64(chunk_count).take(), seq);
}

void Server::granted(const Key& key, uint64_t seq, uint64_t chunk_count) {
  auto found = pending_.find(key);
  if (found == pending_.end() || !found->second.reported || chunk_count == 0)
    throw Error(HDP_SYSTEM, "a grant for an operation that isn't ready");
  std::vector<uint64_t> tickets;
  for (const auto& [local, view] : found->second.by_local) tickets.push_back(view.second);
  const Operation operation = found->second.first;
  pending_.erase(found);
  transfer_.start(operation, groups_.at(key.group), seq, chunk_count, std::move(tickets));
}

// ---- failures ------------------------------------------------------------------------------------------------------

void Server::verdict(uint32_t host, uint64_t group, hdp_status status, const std::string& text) {
  if (host == topology_.host)
    transfer_.then([=, this] { poison(group, status, text); });
  else
    peers_[host].send(Type::kVerdict, Writer().u64(group).u32(status).text(text).take());
}

void Server::poison(uint64_t id, hdp_status status, const std::string& text) {
  auto group = groups_.find(id);
  if (group == groups_.end() || !poisoned_.try_emplace(id, status, text).second) return;
  std::erase_if(pending_, [&](const auto& item) { return item.first.group == id; });
  for (uint32_t local : group->second.local)
    ranks_[local].connection->send(Type::kPoison, Writer().u64(id).u32(0).u32(status).text(text).take());
}

void Server::lose(hdp_status status, const std::string& text) {
  if (lost_) return;
  lost_.emplace(status, text);
  lost_at_ = Clock::now();
  pending_.clear();
  queries_.clear();
  for (Connection& peer : peers_) peer.send(Type::kLost, Writer().u32(status).text(text).take());
  for (Rank& rank : ranks_) rank.connection->send(Type::kPoison, Writer().u64(0).u32(1).u32(status).text(text).take());
}

void Server::expired(uint32_t local, const Key& key, uint64_t waited_ms) {
  char waited[32];
  std::snprintf(waited, sizeof waited, "%.1f s", static_cast<double>(waited_ms) / 1000);
  auto found = pending_.find(key);
  if (lost_ || queries_.contains(key)) return;
  if (found == pending_.end()) {
    if (transfer_.active(key))
      lose(HDP_TIMEOUT, std::string("an operation did not finish within ") + waited + ": " + transfer_.stalled_on(key));
    return;
  }
  auto view = found->second.by_local.find(local);
  if (view == found->second.by_local.end()) return;  // it overtook the announcement, and comes again
  const Group& group = groups_.at(key.group);
  Query& query = queries_[key];
  query.operation = view->second.first;
  query.waited = waited;
  query.deadline = Clock::now() + kQueryTime;
  query.missing[topology_.host] = missing_here(key, group);
  for (uint32_t host : group.hosts)
    if (host != topology_.host) peers_[host].send(Type::kQuery, Writer().key(key).list(group.members).take());
  if (group.hosts.size() == 1) finish_query(key);
}

std::vector<uint32_t> Server::missing_here(const Key& key, const Group& group) const {
  std::vector<uint32_t> missing;
  auto found = pending_.find(key);
  if (transfer_.active(key)) return missing;
  for (uint32_t local : group.local)
    if (found == pending_.end() || !found->second.by_local.contains(local)) missing.push_back(global(local));
  return missing;
}

void Server::finish_query(const Key& key) {
  const Query query = std::move(queries_.at(key));
  queries_.erase(key);
  if (!pending_.contains(key)) return;  // it was granted, or its group poisoned, in the meantime
  std::vector<uint32_t> ranks;
  std::string silent;
  for (uint32_t host : groups_.at(key.group).hosts) {
    auto answer = query.missing.find(host);
    if (answer == query.missing.end())
      silent += " " + topology_.host_names[host];
    else
      ranks.insert(ranks.end(), answer->second.begin(), answer->second.end());
  }
  std::string text = query.operation.name() + ", " + query.operation.call() + ", waited " + query.waited;
  text += ranks.empty() ? "" : " for " + topology_.rank_names(ranks) + ", which did not call it";
  if (!silent.empty()) text += "; no answer from" + silent;
  complain(key.group, HDP_TIMEOUT, text);
}

// ---- leaving -------------------------------------------------------------------------------------------------------

void Server::leave(uint32_t local, const std::string& abandoned) {
  if (ranks_[local].gone) return;
  ranks_[local].gone = true;
  if (!abandoned.empty())
    return lose(HDP_PEER_LOST, topology_.rank_name(global(local)) + " left before " + abandoned + " was complete");
  left({global(local)});
  for (Connection& peer : peers_) peer.send(Type::kLeft, Writer().list({global(local)}).take());
}

void Server::left(const std::vector<uint32_t>& ranks) {
  if (lost_) return;
  for (uint32_t rank : ranks) {
    left_.insert(rank);
    if (topology_.host_of(rank) == topology_.host) {
      const uint32_t local = rank - topology_.first_rank[topology_.host];
      for (const auto& [key, pending] : pending_) {
        const Group& group = groups_.at(key.group);
        if (!group.has(rank) || pending.by_local.contains(local)) continue;
        complain(group.id, HDP_PEER_LOST, left_text(topology_, rank, pending.first));
      }
    }
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
