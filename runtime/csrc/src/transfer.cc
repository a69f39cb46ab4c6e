#include "transfer.h"

#include <algorithm>
#include <cstring>

#include "kernels.h"

namespace hdp {
namespace {

// Of a message, for the window: so that tiny ones are bounded in number too.
uint64_t charge(uint64_t bytes) { return std::max<uint64_t>(bytes, 64); }

// Room for what a peer may send of `slots` chunks: parts and shares, each in up to a message a pair of ranks.
uint64_t window_bytes(const Topology& topology, const Arena& arena) {
  const uint64_t most = *std::max_element(topology.local_sizes.begin(), topology.local_sizes.end());
  return 2 * arena.slots() * (arena.slot_bytes() + charge(0) * most * most) + 2 * arena.slot_bytes();
}

}  // namespace

Transfer::Transfer(const Topology& topology, Arena& arena, std::vector<Connection>& peers)
    : topology_(topology),
      arena_(arena),
      peers_(peers),
      in_slot_(arena.slots(), nullptr),
      window_(window_bytes(topology, arena)),
      outbox_(topology.num_hosts()),
      in_flight_(topology.num_hosts(), 0),
      receiving_(topology.num_hosts()),
      held_(topology.num_hosts(), 0),
      owed_(topology.num_hosts(), 0) {}

// ---- starting ------------------------------------------------------------------------------------------------------

void Transfer::start(std::shared_ptr<const Group> group, uint64_t seq, Cut cut, std::vector<LocalCall> local) {
  queued_.emplace(local.front().operation.key, local.front().operation);
  queue_.push_back([=, this, local = std::move(local)]() mutable {
    if (active_.size() >= kMaxActive || !rings_have_room(*group)) return false;
    queued_.erase(local.front().operation.key);
    launch(group, seq, cut, std::move(local));
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
    return ring.head.load(std::memory_order_relaxed) - ring.tail.load() < kGrantRing;
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

void Transfer::launch(std::shared_ptr<const Group> group, uint64_t seq, Cut cut, std::vector<LocalCall> local) {
  if (seq <= last_seq_) unexpected("a grant out of order");
  auto a = std::make_unique<Active>();
  a->op = local.front().operation;
  a->group = std::move(group);
  std::vector<Operation> calls;
  for (const LocalCall& call : local) calls.push_back(call.operation);
  if (!fits(a->op, *a->group, calls, cut, arena_.slot_bytes())) unexpected("a grant that doesn't fit the arena");
  a->local = std::move(local);
  a->seq = seq;
  a->base = next_q_;
  a->cut = cut;
  a->local_final = a->group->hosts.size() == 1 && !a->op.exchanges();
  const bool root_here =
      a->op.kind == HDP_BROADCAST && topology_.host_of(a->group->members[a->op.root]) == topology_.host;
  a->contributors = a->op.kind == HDP_BROADCAST ? root_here : static_cast<uint32_t>(a->group->local.size());
  a->route = Route::of(topology_, *this, *a);
  next_q_ += cut.chunks;
  last_seq_ = seq;
  if (a->op.exchanges() && cut.chunks > 0) {
    uint64_t at = 0;
    const uint64_t element = element_bytes(a->op.dtype);
    for (LocalCall& call : a->local) {
      call.out_block = at;
      call.in_block = at + block_elements(call.operation.sends, cut, element);
      at = call.in_block + block_elements(call.operation.receives, cut, element);
    }
  }
  grant(*a);
  if (timeline_ != nullptr) a->granted = Timeline::Clock::now();
  if (cut.chunks == 0) return;
  by_seq_[seq] = a.get();
  for (auto it = chunks_.lower_bound({seq, 0}); it != chunks_.end() && it->first.first == seq; ++it) {
    it->second.op = a.get();
    if (it->first.second >= cut.chunks) unexpected("a chunk past the operation's end");
  }
  active_.emplace(a->base, std::move(a));
}

// Tell the ranks.
void Transfer::grant(const Active& a) {
  for (size_t i = 0; i < a.local.size(); ++i) {
    const uint32_t local = a.group->local[i];
    const LocalCall& call = a.local[i];
    GrantRing& ring = arena_.ring(local);
    const uint64_t head = ring.head.load(std::memory_order_relaxed);
    ring.items[head % kGrantRing] = {call.ticket,    a.base,        a.cut.chunks, a.cut.elements,
                                     call.out_block, call.in_block, a.local_final};
    ring.head.store(head + 1);  // sequentially consistent, see Comm::take_grants
    ring_bell(arena_.bell(local));
  }
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

Active* Transfer::active_at(uint64_t q) const {
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
             const uint64_t tail = std::min<uint64_t>(a.cut.chunks, arena_.slots());
             for (uint64_t q = a.end() - tail; q < a.end(); ++q)
               if (q >= next_open_ || arena_.control(q).released.load(std::memory_order_acquire) < q) return false;
           } else if (a.finished < a.cut.chunks) {
             return false;
           }
           if (timeline_ != nullptr) record(a, true);
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
    a.route->open(chunk);
    in_slot_[q % arena_.slots()] = &chunk;
    adopt_early(chunk);
  }
  control.open.store(q, std::memory_order_release);
  if (a.op.kind == HDP_BROADCAST) {
    if (a.contributors != 0) ring_bell(arena_.bell(a.group->members[a.op.root] - topology_.first_rank[topology_.host]));
  } else if (a.op.reduces()) {
    ring_bell(arena_.bell(a.group->local.front()));
  } else {
    for (uint32_t local : a.group->local) ring_bell(arena_.bell(local));
  }
}

bool Transfer::progress(Chunk& chunk) {
  Active& a = *chunk.op;
  SlotControl& control = arena_.control(chunk.q);
  bool moved = false;
  if (!chunk.contributed && control.turn.load(std::memory_order_acquire) == a.contributors) {
    chunk.contributed = true;
    a.route->contributed(chunk);
    moved = true;
  }
  if (chunk.contributed && !chunk.reduced && chunk.parts.size() == chunk.parts_awaited) {
    chunk.reduced = true;
    a.route->reduce(chunk);
    moved = true;
  }
  if (chunk.reduced && chunk.missing == 0 && !chunk.published) {
    publish(chunk);
    moved = true;
  }
  const bool copied = a.group->local.empty() || control.released.load(std::memory_order_acquire) >= chunk.q;
  if (!chunk.published || !copied || chunk.sending != 0) return moved;
  in_slot_[chunk.q % arena_.slots()] = nullptr;
  ++a.finished;
  chunks_.erase({a.seq, chunk.index});
  return true;
}

void Transfer::publish(Chunk& chunk) {
  chunk.published = true;
  if (timeline_ != nullptr) chunk.op->last_published = Timeline::Clock::now();
  arena_.control(chunk.q).result.store(chunk.q, std::memory_order_release);
  for (uint32_t local : chunk.op->group->local) ring_bell(arena_.bell(local));
}

// ---- sending -------------------------------------------------------------------------------------------------------

uint8_t* Transfer::slot(const Chunk& chunk) { return arena_.slot(chunk.q); }

void Transfer::send(Chunk& chunk, uint32_t host, Type type, uint32_t share, Region region) {
  if (region.bytes == 0) return;
  if (timeline_ != nullptr && chunk.op->first_sent == Timeline::Clock::time_point{})
    chunk.op->first_sent = Timeline::Clock::now();
  Header header;
  header.type = type;
  header.seq = chunk.op->seq;
  header.chunk = chunk.index;
  header.share = share;
  header.bytes = region.bytes;
  ++chunk.sending;
  outbox_[host].push_back({header, slot(chunk) + region.offset, &chunk.sending});
  pump(host);
}

void Transfer::pump(uint32_t host) {
  auto& queue = outbox_[host];
  for (; !queue.empty(); queue.pop_front()) {
    const Queued& next = queue.front();
    const uint64_t bytes = charge(next.header.bytes);
    if (in_flight_[host] + bytes > window_) return;
    in_flight_[host] += bytes;
    peers_[host].send_data(next.header, next.data, next.pending);
  }
}

void Transfer::credited(uint32_t host, uint64_t bytes) {
  if (bytes > in_flight_[host]) unexpected("credit for more than was sent");
  in_flight_[host] -= bytes;
  pump(host);
}

// ---- arrivals ------------------------------------------------------------------------------------------------------

Chunk& Transfer::chunk_at(uint64_t seq, uint32_t index) {
  Chunk& chunk = chunks_[{seq, index}];
  chunk.index = index;
  if (chunk.op == nullptr)
    if (auto found = by_seq_.find(seq); found != by_seq_.end()) chunk.op = found->second;
  return chunk;
}

// Index of the share. For an open chunk.
uint32_t Transfer::accept(const Chunk& chunk, uint32_t source, const Header& h) const {
  const uint32_t share = chunk.op->route->accept(source, h);
  if (share >= chunk.regions.size() || h.bytes != chunk.regions[share].bytes) unexpected("a share of the wrong size");
  if (h.type == Type::kShare && chunk.present[share]) unexpected("a share that is here already");
  if (h.type == Type::kShare && chunk.op->op.reduces() && !chunk.contributed) unexpected("a sum before its parts");
  return share;
}

uint8_t* Transfer::place(uint32_t source, const Header& h) {
  if (h.bytes == 0 || h.bytes > arena_.slot_bytes()) unexpected("a share that doesn't fit a slot");
  if (held_[source] + charge(h.bytes) > window_) unexpected("more than the window allows");
  auto known = by_seq_.find(h.seq);
  if (known == by_seq_.end() && h.seq <= last_seq_) unexpected("an operation that is finished");
  if (known != by_seq_.end() && h.chunk >= known->second->cut.chunks) unexpected("a chunk past the operation's end");
  auto found = chunks_.find({h.seq, h.chunk});
  const bool open = found != chunks_.end() && found->second.q != 0;
  if (open) {
    const uint32_t share = accept(found->second, source, h);
    if (h.type == Type::kShare) return slot(found->second) + found->second.regions[share].offset;
  }
  held_[source] += charge(h.bytes);
  receiving_[source] = pool_.take(h.bytes);
  return receiving_[source].bytes.get();
}

void Transfer::arrived(uint32_t source, const Header& h, uint8_t* body) {
  Chunk& chunk = chunk_at(h.seq, h.chunk);
  Buffer buffer = std::exchange(receiving_[source], {});
  if (body != buffer.bytes.get()) {  // straight into the slot
    taken(source, charge(h.bytes));
    chunk.op->route->settled(chunk, accept(chunk, source, h));
  } else if (h.type == Type::kPart) {
    if (chunk.q != 0) accept(chunk, source, h);  // its slot may have been opened while it arrived
    if (!chunk.parts.emplace(std::pair(h.share, source), std::move(buffer)).second)
      unexpected("a part for the second time");
  } else {
    chunk.early.push_back({source, h, std::move(buffer)});
    if (chunk.q != 0) adopt_early(chunk);
  }
}

// The slot is open: take in the shares that came before, and check the parts.
void Transfer::adopt_early(Chunk& chunk) {
  for (auto& [key, buffer] : chunk.parts) {
    Header h;
    h.type = Type::kPart;
    h.share = key.first;
    h.bytes = buffer.size;
    accept(chunk, key.second, h);
  }
  for (Chunk::Early& early : std::exchange(chunk.early, {})) {
    const uint32_t share = accept(chunk, early.source, early.header);
    std::memcpy(slot(chunk) + chunk.regions[share].offset, early.buffer.bytes.get(), early.header.bytes);
    chunk.op->route->settled(chunk, share);
    consumed(early.source, std::move(early.buffer));
  }
}

void Transfer::consumed(uint32_t source, Buffer buffer) {
  const uint64_t bytes = charge(buffer.size);
  held_[source] -= bytes;
  pool_.give(std::move(buffer));
  taken(source, bytes);
}

void Transfer::taken(uint32_t source, uint64_t bytes) {
  owed_[source] += bytes;
  if (owed_[source] < arena_.slot_bytes()) return;
  peers_[source].send(Type::kCredit, Writer().u64(std::exchange(owed_[source], 0)).take());
}

// ---- questions -----------------------------------------------------------------------------------------------------

bool Transfer::active(const Key& key) const {
  if (queued_.contains(key)) return true;
  return std::any_of(active_.begin(), active_.end(), [&](const auto& item) { return item.second->op.key == key; });
}

std::string Transfer::name_of(const Key& key) const {
  if (auto found = queued_.find(key); found != queued_.end()) return found->second.name() + ", " + found->second.call();
  for (const auto& [base, a] : active_)
    if (a->op.key == key) return a->op.name() + ", " + a->op.call();
  return "an operation";
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
  std::string text = "chunk " + std::to_string(chunk.index + 1) + " of " + std::to_string(a.cut.chunks);
  if (!chunk.contributed) {
    const uint32_t turn = arena_.control(chunk.q).turn.load(std::memory_order_acquire);
    if (!a.op.reduces() || turn >= a.group->local.size()) return text + " waits for a rank of this host";
    return text + " waits for " + topology_.rank_name(topology_.first_rank[topology_.host] + a.group->local[turn]);
  }
  if (chunk.published) return text + (chunk.sending ? " waits to be sent" : " waits to be copied out");
  std::set<uint32_t> here;
  for (const auto& [key, buffer] : chunk.parts) here.insert(key.second);
  std::string hosts;
  for (uint32_t host : a.group->hosts)
    if (host != topology_.host && !here.contains(host)) hosts += " " + topology_.host_names[host];
  return text + " waits for data from" + (hosts.empty() ? " a rank of this host" : hosts);
}

}  // namespace hdp
