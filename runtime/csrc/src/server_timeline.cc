// What a server tells its timeline (timeline.h): operations from their grant to their last chunk, and bytes sent.
#include "server.h"

namespace hdp {

void Transfer::trace(Timeline* timeline) {
  if (timeline == nullptr)
    for (const auto& [base, a] : active_) record(*a, false);
  timeline_ = timeline;
}

void Transfer::record(const Active& a, bool complete) const {
  Fields more;
  more.number("chunks", a.cut.chunks)
      .number("ranks here", a.group->local.size())
      .number("hosts", a.group->hosts.size());
  more.text("status", complete ? "OK" : "not complete");
  if (!complete) more.text("waits", stalled_on(a.op.key));
  const std::string name = a.op.name();
  timeline_->operation(a.op, *a.group, {name, a.granted, Timeline::Clock::now()}, more);
  if (a.last_published == Timeline::Clock::time_point{}) return;
  const auto from =
      a.first_sent == Timeline::Clock::time_point{} ? a.granted : std::min(a.first_sent, a.last_published);
  timeline_->phase(Timeline::Phase::kExchange, a.op, {name, from, a.last_published});
}

void Server::begin_timeline(const hdp_server_config& config) {
  if (config.timeline_fd <= 0) return;
  try {
    timeline_ = std::make_unique<Timeline>(config.timeline_fd, Timeline::Row::of_server(topology_), config.log);
  } catch (const std::exception& e) {
    return log(std::string("there is no timeline of the server: ") + e.what());
  }
  transfer_.trace(timeline_.get());
  counted_.assign(topology_.num_hosts(), 0);
}

void Server::end_timeline() {
  if (!timeline_) return;
  transfer_.trace(nullptr);
  next_count_ = {};
  count_sent(Clock::now());
}

// So often that at most about a thousand counters a second are written, with any number of hosts.
void Server::count_sent(Clock::time_point now) {
  if (now < next_count_) return;
  next_count_ = now + std::chrono::milliseconds(topology_.num_hosts());
  for (uint32_t host = 0; host < peers_.size(); ++host) {
    const uint64_t sent = peers_[host].sent();
    if (std::exchange(counted_[host], sent) != sent) timeline_->counter("sent to " + topology_.host_names[host], sent);
  }
}

}  // namespace hdp
