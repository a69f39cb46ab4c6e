// Rings a communicator's bell from the driver's callbacks, which may come after the communicator is gone.
#pragma once

#include <mutex>

#include "arena.h"

namespace hdp {

class Ringer {
 public:
  explicit Ringer(Bell& bell) : bell_(&bell) {}
  void ring() {
    std::lock_guard lock(mutex_);
    if (bell_ != nullptr) ring_bell(*bell_);
  }
  void silence() {
    std::lock_guard lock(mutex_);
    bell_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Bell* bell_;
};

}  // namespace hdp
