// What a server does with messages of its ranks and of the other servers, and with the operations they call.
#include <algorithm>

#include "server.h"

namespace hdp {
namespace {

// How long the sequencer may take to answer a complaint.
constexpr auto kVerdictTime = std::chrono::seconds(3);
// Far above what programs use; so that no rank and no host can fill this host's memory.
constexpr size_t kMaxGroups = 1 << 16;
constexpr size_t kMaxPending = 1 << 16;

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

}  // namespace hdp
