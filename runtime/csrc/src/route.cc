#include "route.h"

#include <algorithm>
#include <cstring>

#include "kernels.h"

namespace hdp {
namespace {

// Shares of equal size, one a host.
void host_regions(const Active& a, Chunk& chunk, uint64_t element) {
  const uint64_t n = whole_run(a.op, a.cut, chunk.index).count;
  const uint64_t hosts = a.group->hosts.size();
  for (uint64_t place = 0; place < hosts; ++place) {
    const Run share = host_share(n, hosts, place);
    chunk.regions.push_back({share.slot * element, share.count * element});
  }
}

// Shares by rank.
void piece_regions(const Active& a, Chunk& chunk, uint64_t element) {
  std::vector<Run> runs;
  piece_runs(a.op, a.group->size(), a.cut, chunk.index, runs);
  for (const Run& run : runs) chunk.regions.push_back({run.slot * element, run.count * element});
}

void check(bool valid) {
  if (!valid) unexpected("a share that this host does not get from that one");
}

class Reduction final : public Route {  // allreduce, reduce
 public:
  using Route::Route;

  void open(Chunk& chunk) override {
    host_regions(op_, chunk, element_);
    for (uint32_t h = 0; h < num_hosts(); ++h) chunk.await(h, result_here() || h == me_);
    // Nobody sends parts of an empty share.
    chunk.parts_awaited = chunk.regions[me_].bytes > 0 ? num_hosts() - 1 : 0;
  }
  void contributed(Chunk& chunk) override {
    for (uint32_t step = 1; step < num_hosts(); ++step) {
      const uint32_t h = (me_ + step) % num_hosts();
      carrier_.send(chunk, group_.hosts[h], Type::kPart, h, chunk.regions[h]);
    }
  }
  void reduce(Chunk& chunk) override {
    combine(chunk, me_);
    for (uint32_t step = 1; step < num_hosts(); ++step) {
      const uint32_t host = group_.hosts[(me_ + step) % num_hosts()];
      if (all() || host == host_of(op_.op.root)) carrier_.send(chunk, host, Type::kShare, me_, chunk.regions[me_]);
    }
    chunk.mark_present(me_);
  }
  uint32_t accept(uint32_t source, const Header& h) const override {
    check(h.share < num_hosts() && group_.on_host(source));
    check(h.type == Type::kPart ? h.share == me_ : group_.hosts[h.share] == source && result_here());
    return h.share;
  }

 private:
  bool all() const { return op_.op.kind == HDP_ALLREDUCE; }
  bool result_here() const { return all() || here(op_.op.root); }
};

class ReduceScatter final : public Route {
 public:
  using Route::Route;

  void open(Chunk& chunk) override {
    piece_regions(op_, chunk, element_);
    for (uint32_t p = 0; p < group_.size(); ++p) {
      chunk.await(p, here(p));
      if (here(p) && chunk.regions[p].bytes > 0) chunk.parts_awaited += num_hosts() - 1;
    }
  }
  void contributed(Chunk& chunk) override {
    const uint32_t first = group_.local_places.back() + 1;
    for (uint32_t step = 0; step < group_.size(); ++step) {
      const uint32_t p = (first + step) % group_.size();
      if (!here(p)) carrier_.send(chunk, host_of(p), Type::kPart, p, chunk.regions[p]);
    }
  }
  void reduce(Chunk& chunk) override {
    for (uint32_t p : group_.local_places) {
      combine(chunk, p);
      chunk.mark_present(p);
    }
  }
  uint32_t accept(uint32_t source, const Header& h) const override {
    check(h.type == Type::kPart && h.share < group_.size() && here(h.share) && group_.on_host(source));
    return h.share;
  }
};

class Broadcast final : public Route {
 public:
  using Route::Route;

  void open(Chunk& chunk) override {
    host_regions(op_, chunk, element_);
    for (uint32_t h = 0; h < num_hosts(); ++h) chunk.await(h, true);
  }
  void contributed(Chunk& chunk) override {
    if (!here(op_.op.root)) return;
    for (uint32_t h = 0; h < num_hosts(); ++h) {
      if (h == me_)
        relay(chunk, h);
      else
        carrier_.send(chunk, group_.hosts[h], Type::kShare, h, chunk.regions[h]);
      chunk.mark_present(h);
    }
  }
  uint32_t accept(uint32_t source, const Header& h) const override {
    check(h.type == Type::kShare && h.share < num_hosts() && !here(op_.op.root));
    check(source == (h.share == me_ ? host_of(op_.op.root) : group_.hosts[h.share]));
    return h.share;
  }
  void settled(Chunk& chunk, uint32_t share) override {
    chunk.mark_present(share);
    if (share == me_) relay(chunk, share);
  }

 private:
  // To every host that doesn't have it from the root.
  void relay(Chunk& chunk, uint32_t share) {
    for (uint32_t host : group_.hosts)
      if (host != topology_.host && host != host_of(op_.op.root))
        carrier_.send(chunk, host, Type::kShare, share, chunk.regions[share]);
  }
};

class AllGather final : public Route {
 public:
  using Route::Route;

  void open(Chunk& chunk) override {
    piece_regions(op_, chunk, element_);
    for (uint32_t p = 0; p < group_.size(); ++p) chunk.await(p, true);
  }
  void contributed(Chunk& chunk) override {
    for (uint32_t p : group_.local_places) {
      for (uint32_t step = 1; step < num_hosts(); ++step)
        carrier_.send(chunk, group_.hosts[(me_ + step) % num_hosts()], Type::kShare, p, chunk.regions[p]);
      chunk.mark_present(p);
    }
  }
  uint32_t accept(uint32_t source, const Header& h) const override {
    check(h.type == Type::kShare && h.share < group_.size() && host_of(h.share) == source);
    return h.share;
  }
};

// On the wire a share is sender x size + receiver; here, the receiver's place among the local ones x size + sender.
class Exchange final : public Route {
 public:
  using Route::Route;

  void open(Chunk& chunk) override {
    std::vector<Run> runs;
    for (const LocalCall& call : op_.local) {
      block_runs(call.operation.receives, call.in_block, op_.cut, chunk.index, runs);
      for (const Run& run : runs) chunk.regions.push_back({run.slot * element_, run.count * element_});
    }
    for (uint32_t share = 0; share < chunk.regions.size(); ++share) chunk.await(share, true);
  }
  void contributed(Chunk& chunk) override {
    std::vector<Run> runs;
    for (size_t l = 0; l < op_.local.size(); ++l) {
      block_runs(op_.local[l].operation.sends, op_.local[l].out_block, op_.cut, chunk.index, runs);
      for (uint32_t to = 0; to < group_.size(); ++to)
        if (runs[to].count > 0)
          pass_on(chunk, group_.local_places[l], to, {runs[to].slot * element_, runs[to].count * element_});
    }
  }
  uint32_t accept(uint32_t source, const Header& h) const override {
    const uint32_t from = h.share / group_.size(), to = h.share % group_.size();
    check(h.type == Type::kShare && from < group_.size() && host_of(from) == source && here(to));
    return index(from, to);
  }

 private:
  uint32_t index(uint32_t from, uint32_t to) const {
    const auto& places = group_.local_places;
    const auto local = static_cast<uint32_t>(std::find(places.begin(), places.end(), to) - places.begin());
    return local * group_.size() + from;
  }
  void pass_on(Chunk& chunk, uint32_t from, uint32_t to, Region region) {
    if (!here(to)) return carrier_.send(chunk, host_of(to), Type::kShare, from * group_.size() + to, region);
    const uint32_t share = index(from, to);
    if (chunk.regions[share].bytes != region.bytes) unexpected("a grant of an exchange whose ends disagree");
    std::memcpy(carrier_.slot(chunk) + chunk.regions[share].offset, carrier_.slot(chunk) + region.offset, region.bytes);
    chunk.mark_present(share);
  }
};

}  // namespace

void unexpected(const std::string& what) { throw Error(HDP_SYSTEM, "unexpected data: " + what); }

void Chunk::await(uint32_t share, bool needed) {
  needed = needed && regions[share].bytes > 0;
  present.push_back(!needed);
  missing += needed;
}

void Chunk::mark_present(uint32_t share) {
  if (present[share]) return;
  present[share] = true;
  --missing;
}

Route::Route(const Topology& topology, Carrier& carrier, const Active& op)
    : topology_(topology),
      carrier_(carrier),
      op_(op),
      group_(*op.group),
      me_(group_.host_index(topology.host)),
      element_(element_bytes(op.op.travel)) {}

uint32_t Route::num_hosts() const { return static_cast<uint32_t>(group_.hosts.size()); }

uint32_t Route::host_of(uint32_t place) const { return topology_.host_of(group_.members[place]); }

void Route::combine(Chunk& chunk, uint32_t share) {
  const Region region = chunk.regions[share];
  if (region.bytes == 0) return;
  uint8_t* own = carrier_.slot(chunk) + region.offset;
  std::vector<const void*> parts;
  for (uint32_t host : group_.hosts)
    parts.push_back(host == topology_.host ? own : chunk.parts.at({share, host}).bytes.get());
  const bool averaged = op_.op.op == HDP_AVG && averaged_early(op_.op.travel);
  kernels().combine(op_.op.travel, averaged ? HDP_SUM : op_.op.op, own, parts.data(), parts.size(),
                    region.bytes / element_, group_.size());
  for (uint32_t host : group_.hosts) {
    auto part = chunk.parts.find({share, host});
    if (part == chunk.parts.end()) continue;
    carrier_.consumed(host, std::move(part->second));
    chunk.parts.erase(part);
  }
}

std::unique_ptr<Route> Route::of(const Topology& topology, Carrier& carrier, const Active& a) {
  switch (a.op.kind) {
    case HDP_ALLREDUCE:
    case HDP_REDUCE: return std::make_unique<Reduction>(topology, carrier, a);
    case HDP_REDUCE_SCATTER: return std::make_unique<ReduceScatter>(topology, carrier, a);
    case HDP_BROADCAST: return std::make_unique<Broadcast>(topology, carrier, a);
    case HDP_ALLGATHER: return std::make_unique<AllGather>(topology, carrier, a);
    default: return std::make_unique<Exchange>(topology, carrier, a);
  }
}

}  // namespace hdp
