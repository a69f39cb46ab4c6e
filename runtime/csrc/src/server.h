// The server of one host: a single thread that waits in epoll for its ranks, the other servers, and the arena.
//
// It collects its ranks' announcements until an operation is ready here, reports it to the sequencer (which is in the
// server of hosts[0]), and carries out what the sequencer grants (Transfer). It watches its ranks by pidfd: a forked
// data-loader worker keeps a dead rank's socket open, so end-of-file alone proves nothing.
//
// Failures. What can be settled in the sequencer's order is (mismatch, missing rank: the group is poisoned by a
// verdict). A lost rank or host, a stall within a transfer, or a malformed message poisons all groups at once
// (`lose`): the arena's slots can't be trusted any more. The first cause wins, and is told to all ranks and servers.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "arena.h"
#include "connection.h"
#include "descriptor.h"
#include "eager_exchange.h"
#include "sequencer.h"
#include "topology.h"
#include "transfer.h"

struct epoll_event;

namespace hdp {

class Server final : private Sink, private Decisions {
 public:
  explicit Server(const hdp_server_config& config);  // throws Error
  ~Server() override;

  // Returns when all is done. Throws the first cause as an Error when the groups were poisoned.
  void run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {    // an operation that some participants have announced
    Operation first;  // as the first one did
    std::shared_ptr<const Group> participants;
    std::map<uint32_t, std::pair<Operation, uint64_t>> by_local;  // local rank -> its view, ticket
    bool disagree = false;
    bool in_cells = true;   // all who have announced it have cells
    bool reported = false;  // to the sequencer
    bool complete() const { return by_local.size() == participants->local.size(); }
  };
  struct Query {  // who has not called an operation?
    Operation operation;
    std::shared_ptr<const Group> participants;
    std::string waited;
    bool fatal = false;  // its time is up; else it is only slow
    std::string left;    // until then
    Clock::time_point deadline;
    std::map<uint32_t, std::vector<uint32_t>> missing;  // by host that answered
    std::map<uint32_t, uint64_t> calls;                 // of the missing ranks, so far
  };
  struct Rank {
    std::unique_ptr<Connection> connection;
    int pid = 0;
    Descriptor pidfd;
    bool gone = false;
  };

  // Sink
  uint8_t* place(uint32_t source, const Header& header) override;
  void data(uint32_t source, const Header& header, uint8_t* body) override;
  void control(uint32_t source, const Header& header, Reader body) override;
  // Decisions: of our own sequencer
  void grant(uint32_t host, const Key& key, uint64_t seq, Cut cut) override;
  void verdict(uint32_t host, uint64_t group, hdp_status status, const std::string& text) override;

  void from_rank(uint32_t local, const Header& header, Reader& body);
  void from_peer(uint32_t host, const Header& header, Reader& body);
  void declare(uint64_t id, std::vector<uint32_t> members);
  void announce(uint32_t local, const Operation& operation, uint64_t ticket, bool in_cell);
  void report(Pending& pending);
  void withdraw(const Key& key);
  // `puzzled`: about this operation, and nobody was found to blame.
  void complain(uint64_t group, hdp_status status, std::string text, const Key& puzzled = {});
  void check_complaints();
  void granted(const Key& key, uint64_t seq, Cut cut);
  void poison(uint64_t group, hdp_status status, const std::string& text);
  void lose(hdp_status status, const std::string& text);
  void tell_lost(Connection& to);
  void expired(uint32_t local, const Key& key, uint64_t waited_ms);
  bool stands_still(const Key& key);
  void stalled(const Key& key, uint64_t waited_ms, uint64_t left_ms);
  void stall_seen(const Operation& operation, uint64_t waited_ms, uint64_t left_ms);
  void ask(Query query);
  std::vector<uint32_t> missing_here(const Key& key, const Group& participants);
  bool awaits_left(const Key& key, const Pending& pending, uint32_t rank);
  void answer(Query& query, uint32_t host, const std::vector<uint32_t>& ranks, const std::vector<uint64_t>& calls);
  std::vector<uint64_t> calls_of(uint64_t group, const std::vector<uint32_t>& ranks);
  void finish_query(Key key);  // a copy: it erases the query, whose key it may be
  void leave(uint32_t local, const std::string& abandoned);
  void left(const std::vector<uint32_t>& ranks);
  void rank_ended(uint32_t local);
  void peer_ended(uint32_t host);
  void say_goodbye();
  void log(const std::string& line) const;

  template <class F>
  void guarded(F step);
  void encrypt();
  void tick();
  void begin_timeline(const hdp_server_config& config);
  void end_timeline();
  void count_sent(Clock::time_point now);
  void watch(int fd, uint64_t tag, uint32_t events);
  void step();
  void arm();
  void dispatch(uint64_t tag, uint32_t events);
  void receive_rank(uint32_t local);
  void receive_peer(uint32_t host);
  bool flush_all();
  int await(epoll_event* events, int most);
  int timeout_ms() const;
  bool finished() const;
  bool told(const Connection& peer) const;
  uint32_t global(uint32_t local) const { return topology_.first_rank[topology_.host] + local; }
  std::string host_name() const { return topology_.host_names[topology_.host]; }

  Topology topology_;
  Arena arena_;
  std::vector<Connection> peers_;
  std::vector<Rank> ranks_;
  Transfer transfer_;
  std::optional<Sequencer> sequencer_;
  Descriptor epoll_;
  int event_fd_;
  int stop_fd_;
  bool stopped_ = false;
  Clock::time_point lost_at_;
  const char* tls_library_;  // the configuration's, like the keys
  const uint8_t* tls_keys_;
  hdp_log_function log_;
  std::map<uint64_t, std::shared_ptr<const Group>> groups_;
  EagerExchange eager_;
  std::map<Key, Pending> pending_;
  struct Still {
    uint64_t progress;
    Clock::time_point since;
  };
  std::map<Key, Still> still_;                        // expired in transfer: the arena when last looked at
  std::map<uint64_t, Clock::time_point> complaints_;  // by group, until their verdict arrives
  std::set<uint64_t> decided_;                        // groups with a verdict, which may wait for its turn
  std::map<Key, uint64_t> stalls_;                    // logged -> after how many ms
  bool disagreements_ = false;                        // the sequencer waits with a verdict
  std::map<Key, Query> queries_;
  std::map<uint64_t, std::pair<hdp_status, std::string>> poisoned_;
  std::optional<std::pair<hdp_status, std::string>> lost_;
  std::set<uint32_t> left_;
  std::vector<bool> peer_done_;
  std::vector<bool> rank_armed_, peer_armed_;
  bool said_goodbye_ = false;
  // server_timeline.cc
  std::unique_ptr<Timeline> timeline_;
  std::vector<uint64_t> counted_;  // bytes sent to each host, as the timeline has them
  Clock::time_point next_count_;
};

}  // namespace hdp
