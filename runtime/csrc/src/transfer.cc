#include "transfer.h"

#include <algorithm>

#include "kernels.h"

namespace hdp {
namespace {

constexpr uint64_t kShareAlign = 16;  // elements; keeps shares on vector boundaries

[[noreturn]] void unexpected(const std::string& what) { throw Error(HDP_SYSTEM, "unexpected data: " + what); }

}  // namespace

Transfer::Transfer(const Topology& topology, Arena& arena, std::vector<Connection>& peers)
    : topology_(topology),
      arena_(arena),
      peers_(peers),
      in_slot_(arena.slots(), nullptr),
      receiving_(topology.num_hosts()),
      early_bytes_(topology.num_hosts(), 0) {}

uint64_t Transfer::Active::count_of(uint64_t chunk) const {
  return std::min(chunk_count, op.count - chunk * chunk_count);
}

// ---- starting ------------------------------------------------------------------------------------------------------

void Transfer::start(const Operation& operation, const Group& group, uint64_t seq, uint64_t chunk_count,
                     std::vector<uint64_t> tickets) {
  queued_.insert(operation.key);
  queue_.push_back([=, this, tickets = std::move(tickets)] {
    if (active_.size() >= kMaxActive || !rings_have_room(group)) return false;
    queued_.erase(operation.key);
    launch(operation, group, seq, chunk_count, tickets);
    return true;
  });
}

void Transfer::then(std::function<void()> action) {
  queue_.push_back([action = std::move(action)] {
    action();
    return true;
  });
}

// Operations without chunks are never active, so kMaxActive doesn't bound them.
bool Transfer::rings_have_room(const Group& group) {
  return std::all_of(group.local.begin(), group.local.end(), [this](uint32_t local) {
    const GrantRing& ring = arena_.ring(local);
    return ring.head.load(std::memory_order_relaxed) - ring.tail.load(std::memory_order_acquire) < kGrantRing;
  });
}

bool Transfer::run_queue() {
  bool ran = false;
  while (!queue_.empty() && queue_.front()()) {
    queue_.pop_front();
    ran = true;
  }
  return ran;
}

void Transfer::launch(const Operation& operation, const Group& group, uint64_t seq, uint64_t chunk_count,
                      const std::vector<uint64_t>& tickets) {
  auto a = std::make_unique<Active>();
  a->op = operation;
  a->group = group;
  a->seq = seq;
  a->base = next_q_;
  a->chunk_count = chunk_count;
  a->chunks = operation.kind == HDP_BARRIER ? 0 : (operation.count + chunk_count - 1) / chunk_count;
  a->local_final = group.hosts.size() == 1;
  const bool root_here =
      operation.kind == HDP_BROADCAST && topology_.host_of(group.members[operation.root]) == topology_.host;
  a->contributors = operation.kind == HDP_BROADCAST ? root_here : static_cast<uint32_t>(group.local.size());
  next_q_ += a->chunks;
  last_seq_ = std::max(last_seq_, seq);
  for (size_t i = 0; i < group.local.size(); ++i) {
    GrantRing& ring = arena_.ring(group.local[i]);
    const uint64_t head = ring.head.load(std::memory_order_relaxed);
    ring.items[head % kGrantRing] = {tickets[i], a->base, a->chunks, chunk_count, a->local_final};
    ring.head.store(head + 1, std::memory_order_release);
    ring_bell(arena_.bell(group.local[i]));
  }
  if (a->chunks == 0) return;
  by_seq_[seq] = a.get();
  for (auto it = chunks_.lower_bound({seq, 0}); it != chunks_.end() && it->first.first == seq; ++it) {
    it->second.op = a.get();
    if (it->first.second >= a->chunks) unexpected("a chunk past the operation's end");
  }
  active_.emplace(a->base, std::move(a));
}

// ---- the engine ----------------------------------------------------------------------------------------------------

void Transfer::advance() {
  while (step()) {
  }
}

bool Transfer::step() {
  bool moved = run_queue();
  for (Chunk*& chunk : in_slot_)
    if (chunk != nullptr && progress(*chunk)) moved = true;
  if (reap()) moved = true;
  return open_slots() || moved;
}

Transfer::Active* Transfer::active_at(uint64_t q) const {
  auto after = active_.upper_bound(q);
  if (after == active_.begin()) return nullptr;
  Active* a = std::prev(after)->second.get();
  return q < a->end() ? a : nullptr;
}

bool Transfer::slot_free_for(uint64_t q) const {
  if (q <= arena_.slots()) return true;
  const uint64_t before = q - arena_.slots();
  const Active* a = active_at(before);
  if (a == nullptr) return true;  // that operation is finished
  if (a->local_final) return arena_.control(before).released.load(std::memory_order_acquire) >= before;
  return in_slot_[q % arena_.slots()] == nullptr;
}

bool Transfer::open_slots() {
  bool opened = false;
  while (next_open_ < next_q_ && slot_free_for(next_open_)) {
    Active& a = *active_at(next_open_);
    open(a, next_open_++);
    opened = true;
    // Within such an operation the ranks hand each slot on by themselves.
    if (a.local_final && next_open_ - a.base >= arena_.slots()) next_open_ = a.end();
  }
  return opened;
}

// Forget local operations whose last chunks have been copied out by all.
bool Transfer::reap() {
  return std::erase_if(active_, [this](const auto& item) {
           const Active& a = *item.second;
           if (a.local_final) {
             const uint64_t tail = std::min<uint64_t>(a.chunks, arena_.slots());
             for (uint64_t q = a.end() - tail; q < a.end(); ++q)
               if (q >= next_open_ || arena_.control(q).released.load(std::memory_order_acquire) < q) return false;
           } else if (a.finished < a.chunks) {
             return false;
           }
           by_seq_.erase(a.seq);
           return true;
         }) > 0;
}

void Transfer::open(Active& a, uint64_t q) {
  SlotControl& control = arena_.control(q);
  control.turn.store(0, std::memory_order_relaxed);
  control.done.store(0, std::memory_order_relaxed);
  if (!a.local_final) {
    Chunk& chunk = chunk_at(a.seq, static_cast<uint32_t>(q - a.base));
    chunk.op = &a;
    chunk.q = q;
    const uint32_t shares = a.op.kind == HDP_ALLGATHER ? a.group.size() : static_cast<uint32_t>(a.group.hosts.size());
    chunk.present.assign(shares, false);
    chunk.missing = shares;
    for (uint32_t s = 0; s < shares; ++s)
      if (region(a, chunk.index, s).bytes == 0) mark_present(chunk, s);
    in_slot_[q % arena_.slots()] = &chunk;
    adopt_early(chunk);
  }
  control.open.store(q, std::memory_order_release);
  if (a.op.kind == HDP_ALLGATHER) {
    for (uint32_t local : a.group.local) ring_bell(arena_.bell(local));
  } else if (a.op.kind == HDP_BROADCAST) {
    if (a.contributors != 0) ring_bell(arena_.bell(a.group.members[a.op.root] - topology_.first_rank[topology_.host]));
  } else if (!a.group.local.empty()) {
    ring_bell(arena_.bell(a.group.local.front()));
  }
}

// ---- one chunk -----------------------------------------------------------------------------------------------------

bool Transfer::progress(Chunk& chunk) {
  Active& a = *chunk.op;
  SlotControl& control = arena_.control(chunk.q);
  bool moved = false;
  if (!chunk.contributed && control.turn.load(std::memory_order_acquire) == a.contributors) {
    chunk.contributed = true;
    contribute(chunk);
    moved = true;
  }
  if (a.op.kind == HDP_ALLREDUCE && chunk.contributed && !chunk.reduced &&
      chunk.parts.size() + 1 == a.group.hosts.size()) {
    reduce(chunk);
    moved = true;
  }
  if (chunk.contributed && chunk.missing == 0 && !chunk.published) {
    publish(chunk);
    moved = true;
  }
  const bool copied = a.group.local.empty() || control.released.load(std::memory_order_acquire) >= chunk.q;
  if (!chunk.published || !copied || chunk.sending != 0 || chunk.acks_missing != 0) return moved;
  in_slot_[chunk.q % arena_.slots()] = nullptr;
  ++a.finished;
  chunks_.erase({a.seq, chunk.index});
  return true;
}

// The local members' part of the chunk is in the slot.
void Transfer::contribute(Chunk& chunk) {
  const Active& a = *chunk.op;
  const uint32_t me = a.group.host_index(topology_.host);
  if (a.op.kind == HDP_ALLREDUCE) {
    for (uint32_t h = 0; h < a.group.hosts.size(); ++h)
      if (h != me && region(a, chunk.index, h).bytes > 0) send_share(chunk, a.group.hosts[h], Type::kPart, h);
    // Nobody sends parts of an empty share.
    if (region(a, chunk.index, me).bytes == 0) chunk.reduced = true;
  } else if (a.op.kind == HDP_ALLGATHER) {
    for (uint32_t place : a.group.local_places) {
      for (uint32_t host : a.group.hosts)
        if (host != topology_.host) send_share(chunk, host, Type::kShare, place);
      mark_present(chunk, place);
    }
  } else if (a.contributors != 0) {  // broadcast, and the root is here
    for (uint32_t share = 0; share < a.group.hosts.size(); ++share) {
      if (region(a, chunk.index, share).bytes == 0) continue;
      if (share == me)
        relay(chunk, share);
      else
        send_share(chunk, a.group.hosts[share], Type::kShare, share);
      mark_present(chunk, share);
    }
    chunk.acks_missing += static_cast<uint32_t>(a.group.hosts.size()) - 1;
  }
}

void Transfer::reduce(Chunk& chunk) {
  const Active& a = *chunk.op;
  const uint32_t me = a.group.host_index(topology_.host);
  const Region r = region(a, chunk.index, me);
  uint8_t* own = arena_.slot(chunk.q) + r.offset;
  std::vector<const void*> parts;
  for (uint32_t host : a.group.hosts) {
    if (host != topology_.host && chunk.parts.at(host).size != r.bytes) unexpected("a part of the wrong size");
    parts.push_back(host == topology_.host ? own : chunk.parts.at(host).bytes.get());
  }
  kernels().combine(a.op.dtype, a.op.op, own, parts.data(), parts.size(), r.bytes / element_bytes(a.op.dtype),
                    a.group.size());
  for (auto& [source, buffer] : chunk.parts) release(source, std::move(buffer));
  chunk.parts.clear();
  chunk.reduced = true;
  for (uint32_t host : a.group.hosts)
    if (host != topology_.host) send_share(chunk, host, Type::kShare, me);
  mark_present(chunk, me);
}

void Transfer::publish(Chunk& chunk) {
  const Active& a = *chunk.op;
  chunk.published = true;
  arena_.control(chunk.q).result.store(chunk.q, std::memory_order_release);
  for (uint32_t local : a.group.local) ring_bell(arena_.bell(local));
  if (a.op.kind == HDP_BROADCAST && a.contributors == 0) {
    Header ack;
    ack.type = Type::kAck;
    ack.seq = a.seq;
    ack.chunk = chunk.index;
    peers_[topology_.host_of(a.group.members[a.op.root])].send_data(ack, nullptr, nullptr);
  }
}

void Transfer::mark_present(Chunk& chunk, uint32_t share) {
  if (chunk.present[share]) return;
  chunk.present[share] = true;
  --chunk.missing;
}

// Send a share that this host owns to every host that doesn't have it from the root.
void Transfer::relay(Chunk& chunk, uint32_t share) {
  const Active& a = *chunk.op;
  const uint32_t root_host = topology_.host_of(a.group.members[a.op.root]);
  for (uint32_t host : a.group.hosts)
    if (host != topology_.host && host != root_host) send_share(chunk, host, Type::kShare, share);
}

void Transfer::send_share(Chunk& chunk, uint32_t host, Type type, uint32_t share) {
  const Region r = region(*chunk.op, chunk.index, share);
  Header header;
  header.type = type;
  header.seq = chunk.op->seq;
  header.chunk = chunk.index;
  header.share = share;
  header.bytes = r.bytes;
  peers_[host].send_data(header, arena_.slot(chunk.q) + r.offset, &chunk.sending);
}

Transfer::Region Transfer::region(const Active& a, uint64_t chunk, uint32_t share) const {
  const uint64_t n = a.count_of(chunk);
  const uint64_t element = element_bytes(a.op.dtype);
  if (a.op.kind == HDP_ALLGATHER) return {share * a.chunk_count * element, n * element};
  const uint64_t hosts = a.group.hosts.size();
  const uint64_t width = ((n + hosts - 1) / hosts + kShareAlign - 1) / kShareAlign * kShareAlign;
  const uint64_t begin = std::min(n, share * width);
  return {begin * element, (std::min(n, begin + width) - begin) * element};
}

// ---- arrivals ------------------------------------------------------------------------------------------------------

Transfer::Chunk& Transfer::chunk_at(uint64_t seq, uint32_t index) {
  Chunk& chunk = chunks_[{seq, index}];
  chunk.index = index;
  if (chunk.op == nullptr)
    if (auto found = by_seq_.find(seq); found != by_seq_.end()) chunk.op = found->second;
  return chunk;
}

void Transfer::check_source(const Active& a, uint32_t source, const Header& h) const {
  const uint32_t shares = a.op.kind == HDP_ALLGATHER ? a.group.size() : static_cast<uint32_t>(a.group.hosts.size());
  if (h.chunk >= a.chunks || h.share >= shares || !a.group.on_host(source)) unexpected("no such chunk or share");
  if (h.bytes != region(a, h.chunk, h.share).bytes) unexpected("a share of the wrong size");
  if ((h.type == Type::kPart) && (a.op.kind != HDP_ALLREDUCE || a.group.hosts[h.share] != topology_.host))
    unexpected("a part that isn't ours");
}

uint8_t* Transfer::place(uint32_t source, const Header& h) {
  if (h.bytes > arena_.slot_bytes()) unexpected("a share larger than a slot");
  auto known = by_seq_.find(h.seq);
  if (known == by_seq_.end() && h.seq <= last_seq_) unexpected("an operation that is finished");
  if (known != by_seq_.end()) check_source(*known->second, source, h);
  auto found = chunks_.find({h.seq, h.chunk});
  if (h.type == Type::kShare && found != chunks_.end() && found->second.q != 0) {
    if (found->second.present[h.share]) unexpected("a share for the second time");
    return arena_.slot(found->second.q) + region(*found->second.op, h.chunk, h.share).offset;
  }
  // A peer is at most `slots` chunks ahead; a chunk's shares fit a slot.
  early_bytes_[source] += h.bytes;
  if (early_bytes_[source] > 2 * arena_.slots() * arena_.slot_bytes()) unexpected("more than the window allows");
  receiving_[source] = pool_.take(h.bytes);
  return receiving_[source].bytes.get();
}

void Transfer::arrived(uint32_t source, const Header& h, uint8_t* body) {
  Chunk& chunk = chunk_at(h.seq, h.chunk);
  Buffer& buffer = receiving_[source];
  if (body != buffer.bytes.get()) {  // straight into the slot
    settle(chunk, h.share);
  } else if (h.type == Type::kPart) {
    if (!chunk.parts.emplace(source, std::move(buffer)).second) unexpected("a part for the second time");
  } else {
    chunk.early.push_back({source, h.share, std::move(buffer)});
    if (chunk.q != 0) adopt_early(chunk);
  }
  buffer = {};
}

// A share from another host is in the slot.
void Transfer::settle(Chunk& chunk, uint32_t share) {
  mark_present(chunk, share);
  const Active& a = *chunk.op;
  if (a.op.kind == HDP_BROADCAST && a.group.hosts[share] == topology_.host) relay(chunk, share);
}

// The slot is open: take in the shares that came before.
void Transfer::adopt_early(Chunk& chunk) {
  for (Staged& staged : chunk.early) {
    Header h;
    h.type = Type::kShare;
    h.chunk = chunk.index;
    h.share = staged.share;
    h.bytes = staged.buffer.size;
    check_source(*chunk.op, staged.source, h);
    if (chunk.present[h.share]) unexpected("a share for the second time");
    std::memcpy(arena_.slot(chunk.q) + region(*chunk.op, h.chunk, h.share).offset, staged.buffer.bytes.get(), h.bytes);
    settle(chunk, h.share);
    release(staged.source, std::move(staged.buffer));
  }
  chunk.early.clear();
}

void Transfer::release(uint32_t source, Buffer buffer) {
  early_bytes_[source] -= buffer.size;
  pool_.give(std::move(buffer));
}

void Transfer::acknowledged(const Header& h) {
  auto found = chunks_.find({h.seq, h.chunk});
  if (found == chunks_.end() || found->second.acks_missing == 0) unexpected("an acknowledgement");
  --found->second.acks_missing;
}

// ---- questions -----------------------------------------------------------------------------------------------------

bool Transfer::active(const Key& key) const {
  if (queued_.contains(key)) return true;
  return std::any_of(active_.begin(), active_.end(), [&](const auto& item) { return item.second->op.key == key; });
}

std::string Transfer::stalled_on(const Key& key) const {
  for (const auto& [base, item] : active_) {
    const Active& a = *item;
    if (!(a.op.key == key)) continue;
    std::string text;
    for (const Chunk* chunk : in_slot_)
      if (chunk != nullptr && chunk->op == &a) text += (text.empty() ? "" : "; ") + stalled_chunk(*chunk);
    return text.empty() ? "its ranks on " + topology_.host_names[topology_.host] + " make no progress" : text;
  }
  return "it waits for the operations before it";
}

std::string Transfer::stalled_chunk(const Chunk& chunk) const {
  const Active& a = *chunk.op;
  std::string text = "chunk " + std::to_string(chunk.index + 1) + " of " + std::to_string(a.chunks);
  if (!chunk.contributed) {
    const uint32_t turn = arena_.control(chunk.q).turn.load(std::memory_order_acquire);
    const uint32_t local = a.op.kind == HDP_ALLREDUCE && turn < a.group.local.size() ? a.group.local[turn] : 0;
    return text + " waits for " + topology_.rank_name(topology_.first_rank[topology_.host] + local);
  }
  if (chunk.published) return text + " waits to be copied out";
  std::string hosts;
  for (uint32_t host : a.group.hosts)
    if (host != topology_.host && !chunk.parts.contains(host)) hosts += " " + topology_.host_names[host];
  return text + " waits for data from" + hosts;
}

}  // namespace hdp
