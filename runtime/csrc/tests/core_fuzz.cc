// A fuzzer of what the core reads from sockets: whole jobs whose messages are tampered with, or made up.
//
//   core_fuzz [--seconds N | --seeds N] [--first S] [--jobs N] [--only SCENARIO]
//
// Every seed is a scenario (seed % their number) in a process of its own, which ends well when nothing crashed, hung,
// took too much memory, gave a wrong result, or failed without saying why. A failing seed prints how to run it alone.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "fuzz_scenarios.h"
#include "fuzz_wire.h"
#include "fuzz_world.h"

// No single allocation is larger, and what was freed isn't kept for long. (clang and gcc read these by name.)
extern "C" const char* __asan_default_options() {
  return "max_allocation_size_mb=64:quarantine_size_mb=16:detect_leaks=0:allocator_may_return_null=0";
}
extern "C" const char* __tsan_default_options() { return "max_allocation_size_mb=64:halt_on_error=1"; }
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

namespace {

using Clock = std::chrono::steady_clock;
using namespace hdp::fuzz;

struct Scenario {
  const char* name;
  void (*run)(uint64_t seed);
};
constexpr Scenario kScenarios[] = {
    {"slow_links", slow_links},       {"corrupt_links", corrupt_links},         {"shuffled_links", shuffled_links},
    {"mutated_peers", mutated_peers}, {"mutated_ranks", mutated_ranks},         {"mutated_links", mutated_links},
    {"strange_peer", strange_peer},   {"strange_sequencer", strange_sequencer}, {"garbage", garbage},
    {"strange_ranks", strange_ranks}, {"strange_server", strange_server},       {"flood", flood},
};
constexpr uint64_t kCount = std::size(kScenarios);

struct Options {
  uint64_t seeds = 100, first = 1, jobs = 8;
  double seconds = 0;  // instead of `seeds`
  std::string only;
};

struct Child {
  uint64_t seed;
  int log;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--seeds") o.seeds = std::stoull(value);
    if (name == "--first") o.first = std::stoull(value);
    if (name == "--jobs") o.jobs = std::stoull(value);
    if (name == "--seconds") o.seconds = std::stod(value);
    if (name == "--only") o.only = value;
  }
  return o;
}

const Scenario* scenario_of(const Options& options, uint64_t seed) {
  for (const Scenario& s : kScenarios)
    if (options.only == s.name) return &s;
  return options.only.empty() ? &kScenarios[seed % kCount] : nullptr;
}

Child start(const Scenario& scenario, uint64_t seed, std::map<pid_t, Child>& children) {
  const int log = memfd_create("log", MFD_CLOEXEC);
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) {
    dup2(log, STDERR_FILENO);
    alarm(static_cast<unsigned>(45 * kSlowness));  // a hang is a failure
    scenario.run(seed);
    _exit(0);
  }
  return children[pid] = {seed, log};
}

std::string text_of(int log) {
  std::string text(static_cast<size_t>(lseek(log, 0, SEEK_END)), '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, pread(log, text.data(), text.size(), 0))));
  return text;
}

// Whether it ended well.
bool reap(const Options& options, const char* program, std::map<pid_t, Child>& children) {
  int status = 0;
  const pid_t pid = wait(&status);
  const Child child = children.at(pid);
  children.erase(pid);
  const std::string log = text_of(child.log);
  close(child.log);
  const bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!well || getenv("FUZZ_VERBOSE")) {
    const Scenario& scenario = *scenario_of(options, child.seed);
    std::printf("seed %llu (%s): %s %d\n  %s --only %s --seeds 1 --first %llu\n%s\n",
                static_cast<unsigned long long>(child.seed), scenario.name, WIFSIGNALED(status) ? "signal" : "exit",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), program, scenario.name,
                static_cast<unsigned long long>(child.seed), log.substr(0, 8000).c_str());
    std::fflush(stdout);
  }
  return well;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (scenario_of(options, 0) == nullptr) fail("there is no scenario " + options.only);
  const auto start_time = Clock::now();
  std::map<pid_t, Child> children;
  uint64_t seed = options.first, failures = 0;
  const auto more = [&] {
    if (failures >= 20) return false;
    if (options.seconds == 0) return seed < options.first + options.seeds;
    return std::chrono::duration<double>(Clock::now() - start_time).count() < options.seconds;
  };
  while (more() || !children.empty()) {
    while (more() && children.size() < options.jobs) {
      start(*scenario_of(options, seed), seed, children);
      ++seed;
    }
    if (!children.empty() && !reap(options, argv[0], children)) ++failures;
  }
  std::printf("seeds %llu to %llu: %llu failed\n", static_cast<unsigned long long>(options.first),
              static_cast<unsigned long long>(seed - 1), static_cast<unsigned long long>(failures));
  return failures == 0 ? 0 : 1;
}
