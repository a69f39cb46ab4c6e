#include "mistakes.h"

#include <climits>
#include <cstdio>
#include <memory>
#include <thread>

namespace hdp {
namespace {

// The compiler must not see through these.
volatile int one = 1;
int shared = 0;

int race() {
  std::thread other([] { shared += one; });
  shared += one;
  other.join();
  return shared;
}

int overflow_heap() {
  const auto bytes = std::make_unique<char[]>(16);
  volatile char* p = bytes.get();
  p[16 * one] = 1;
  return p[16 * one];
}

int overflow_int() { return INT_MAX * one + one; }

}  // namespace

int commit_mistake(const std::string& name) {
  int result;
  if (name == "data-race")
    result = race();
  else if (name == "heap-overflow")
    result = overflow_heap();
  else if (name == "signed-overflow")
    result = overflow_int();
  else
    return 2;
  std::printf("committed: %d\n", result);  // so that nothing is optimised away
  return 0;
}

}  // namespace hdp
