#include "timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "error.h"
#include "kernels.h"

namespace hdp {
namespace {

// How often the writer writes, and from how many bytes on it does so earlier.
constexpr std::chrono::milliseconds kEvery{250};
constexpr size_t kWriteAt = 64 << 10;
// What may wait for the disk: some thousand operations.
constexpr size_t kMaxBuffer = 4 << 20;
// About what viewers in a browser can open; some 400,000 operations.
constexpr uint64_t kMaxFile = 256 << 20;
// Lanes of a row, those of its phases, and how far apart their threads' numbers are: world sizes and all lanes fit 31
// bits.
constexpr uint32_t kMaxLanes = 512;
constexpr uint32_t kPhaseLanes = kMaxLanes / 4;
constexpr const char* kPhaseNames[] = {"", ", copy in and local reduce", ", exchange", ", copy out"};
constexpr uint32_t kLaneStride = 1 << 21;
constexpr uint32_t kServerRow = 1 << 20;

int64_t now_micros() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

std::string member_list(const Operation& o, const Group& participants) {
  constexpr size_t kNamed = 16;
  if (participants.id == 0 && !o.is_message()) return "all " + std::to_string(participants.size()) + " ranks";
  std::string text = participants.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < participants.members.size() && i < kNamed; ++i)
    text += (i ? ", " : " ") + std::to_string(participants.members[i]);
  return participants.size() > kNamed ? text + ", ..., " + std::to_string(participants.size()) + " in all" : text;
}

// Of the larger one of a rank's arrays.
uint64_t bytes_of(const Operation& o, uint32_t ranks) {
  const auto sum = [](const std::vector<uint64_t>& counts) {
    uint64_t total = 0;
    for (uint64_t n : counts) total += n;
    return total;
  };
  uint64_t elements = o.count;
  if (o.exchanges())
    elements = std::max(sum(o.sends), sum(o.receives));
  else if (o.kind == HDP_ALLGATHER || o.kind == HDP_REDUCE_SCATTER)
    elements = o.counts.empty() ? o.count * ranks : sum(o.counts);
  return o.kind == HDP_BARRIER ? 0 : elements * element_bytes(o.dtype);
}

}  // namespace

// ---- what is written
// -------------------------------------------------------------------------------------------------

Timeline::Row Timeline::Row::of_rank(const Topology& topology, uint32_t rank) {
  const uint32_t host = topology.host_of(rank);
  return {host, topology.host_names[host], rank + 1, "rank " + std::to_string(rank)};
}

Timeline::Row Timeline::Row::of_server(const Topology& topology) {
  return {topology.host, topology.host_names[topology.host], kServerRow, "server"};
}

void Timeline::operation(const Operation& o, const Group& participants, const Span& whole, const Fields& more,
                         std::span<const Span> parts) {
  Fields fields;
  fields.number("bytes", bytes_of(o, participants.size()));
  if (o.kind != HDP_BARRIER) fields.text("dtype", dtype_name(o.dtype));
  if (o.reduces()) fields.text("op", op_name(o.op));
  if (o.travel != o.dtype) fields.text("wire", dtype_name(o.travel));
  fields.text("group", member_list(o, participants));
  const uint32_t thread = thread_of(lane(Phase::kWhole, micros(whole.begin), micros(whole.end)));
  span(whole, kind_name(o.kind), thread, fields.json(), more.json());
  for (const Span& part : parts) span(part, kind_name(o.kind), thread, {}, {});
  add();
}

void Timeline::phase(Phase phase, const Operation& o, const Span& whole, Clock::duration busy) {
  Fields fields;
  if (busy > Clock::duration{})
    fields.number("busy_us", std::chrono::duration_cast<std::chrono::microseconds>(busy).count());
  span(whole, kind_name(o.kind), thread_of(lane(phase, micros(whole.begin), micros(whole.end))), fields.json(), {});
  add();
}

void Timeline::counter(std::string_view name, uint64_t value) {
  begin(events_, "C", name, row_.id);
  events_ += ",\"ts\":";
  put_number(events_, micros(Clock::now()));
  events_ += ",\"args\":{\"bytes\":";
  put_number(events_, static_cast<int64_t>(value));
  events_ += "}}";
  add();
}

// args, more: members of one object.
void Timeline::span(const Span& span, std::string_view category, uint32_t thread, std::string_view args,
                    std::string_view more) {
  const int64_t from = micros(span.begin);
  begin(events_, "X", span.name, thread);
  events_ += ",\"cat\":";
  put_quoted(events_, category);
  events_ += ",\"ts\":";
  put_number(events_, from);
  events_ += ",\"dur\":";
  put_number(events_, std::max<int64_t>(0, micros(span.end) - from));
  if (!args.empty()) {
    events_ += ",\"args\":{";
    events_ += args;
    if (!more.empty()) events_ += ',';
    events_ += more;
    events_ += '}';
  }
  events_ += '}';
}

void Timeline::metadata(const char* what, uint32_t thread, const Fields& args) {
  begin(events_, "M", what, thread);
  events_ += ",\"args\":{" + args.json() + "}}";
}

// An event that still lacks its other members, and the bracket.
void Timeline::begin(std::string& out, const char* phase, std::string_view name, uint32_t thread) const {
  out += ",\n{\"ph\":\"";
  out += phase;
  out += in_row_;
  put_number(out, thread);
  out += ",\"name\":";
  put_quoted(out, name);
}

// Whole ones: they are exact in a reader's floating point, so that what lies within another still does there.
int64_t Timeline::micros(Clock::time_point when) const {
  return epoch_ + std::chrono::floor<std::chrono::microseconds>(when - origin_).count();
}

uint32_t Timeline::thread_of(uint32_t lane) const { return row_.id + lane * kLaneStride; }

// The first one that is free at `begin`. Spans come in the order of their ends.
uint32_t Timeline::lane(Phase phase, int64_t begin, int64_t end) {
  const auto of = static_cast<uint32_t>(phase);
  std::vector<int64_t>& ends = lane_ends_[of];
  uint32_t found = 0;
  while (found < ends.size() && ends[found] > begin) ++found;
  found = std::min(found, kPhaseLanes - 1);
  const uint32_t number = of * kPhaseLanes + found;
  if (found == ends.size()) {
    ends.push_back(end);
    const std::string beside = found > 0 ? ", at the same time (" + std::to_string(found + 1) + ")" : "";
    if (number > 0) name_lane(number, row_.name + kPhaseNames[of] + beside);
  }
  ends[found] = end;
  return number;
}

void Timeline::name_lane(uint32_t lane, const std::string& name) {
  const uint64_t order = uint64_t{row_.id} * kMaxLanes + lane;
  metadata("thread_name", thread_of(lane), Fields().text("name", name));
  metadata("thread_sort_index", thread_of(lane), Fields().number("sort_index", order));
}

// ---- the file
// --------------------------------------------------------------------------------------------------------

Timeline::Timeline(int fd, Row row, hdp_log_function log)
    : fd_(fcntl(fd, F_DUPFD_CLOEXEC, 3)),
      row_(std::move(row)),
      in_row_("\",\"pid\":" + std::to_string(row_.host + 1) + ",\"tid\":"),
      log_(log),
      epoch_(now_micros()),
      origin_(Clock::now()) {
  if (!fd_) throw SystemError("dup of the timeline's file");
  metadata("process_name", row_.id, Fields().text("name", row_.host_name));
  metadata("process_sort_index", row_.id, Fields().number("sort_index", row_.host));
  name_lane(0, row_.name);
  text_ = '[' + events_.substr(1);
  events_.clear();
  writer_ = std::thread([this] { write_out(); });
}

Timeline::~Timeline() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_one();
  writer_.join();
}

// What has been put together goes to the writer.
void Timeline::add() {
  {
    std::lock_guard lock(mutex_);
    if (!ended_ && text_.size() + events_.size() > kMaxBuffer) {
      dropped_ += std::count(events_.begin(), events_.end(), '\n');
    } else if (!ended_) {
      const size_t before = text_.size();
      text_ += events_;
      if (before == 0 || (before < kWriteAt && text_.size() >= kWriteAt)) wake_.notify_one();
    }
  }
  events_.clear();
}

void Timeline::write_out() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    wake_.wait(lock, [this] { return closing_ || !text_.empty(); });
    wake_.wait_for(lock, kEvery, [this] { return closing_ || text_.size() >= kWriteAt; });
    std::string text;
    text.swap(text_);
    const uint64_t dropped = std::exchange(dropped_, 0);
    const bool last = closing_;
    lock.unlock();
    if (dropped > 0) {
      begin(text, "i", std::to_string(dropped) + " events are missing here: the disk is too slow", row_.id);
      text += ",\"s\":\"t\",\"ts\":" + std::to_string(micros(Clock::now())) + '}';
    }
    const bool whole = written_ + text.size() <= kMaxFile;
    if (last || !whole) text = (whole ? text : "") + "\n]\n";
    const bool good = write_all(text);
    if (good && !whole) complain("its file is full, " + std::to_string(kMaxFile >> 20) + " MiB");
    lock.lock();
    ended_ = !good || !whole || last;
  }
  text_.clear();
}

// False: that failed; it is logged, and what is half written is taken back.
bool Timeline::write_all(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(fd_.get(), text.data() + at, text.size() - at);
    if (n >= 0) {
      at += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      const std::string why = std::strerror(errno);
      [[maybe_unused]] const int taken_back = ftruncate(fd_.get(), static_cast<off_t>(written_));
      complain("writing its file failed: " + why);
      return false;
    }
  }
  written_ += text.size();
  return true;
}

void Timeline::complain(const std::string& why) const {
  if (log_ != nullptr) log_(("the timeline of " + row_.name + " ends here: " + why).c_str());
}

}  // namespace hdp
