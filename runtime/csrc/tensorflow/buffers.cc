#include "buffers.h"

#include <algorithm>
#include <new>

namespace hdp::tf {

Buffer::Buffer(Pool& pool, size_t capacity)
    : pool_(pool),
      capacity_(capacity),
      data_(static_cast<std::byte*>(::operator new(capacity, std::align_val_t(kAlignment)))) {}

Buffer::~Buffer() { ::operator delete(data_, std::align_val_t(kAlignment)); }

void Buffer::release() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) pool_.put_back(this);
}

Buffer* Pool::take(size_t bytes) {
  bytes = std::max(aligned(bytes), kAlignment);
  std::unique_lock lock(mutex_);
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const size_t capacity = (*it)->capacity();
    const bool fits = capacity >= bytes && capacity <= 2 * bytes;  // not a large one for little
    if (fits && (best == free_.end() || capacity < (*best)->capacity())) best = it;
  }
  Buffer* buffer = nullptr;
  if (best != free_.end()) {
    buffer = *best;
    free_.erase(best);
    free_bytes_ -= buffer->capacity();
    buffer->references_.store(1, std::memory_order_relaxed);
  } else {
    lock.unlock();
    buffer = new Buffer(*this, bytes);
    lock.lock();
  }
  used_bytes_ += buffer->capacity();
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  return buffer;
}

// What is free and in use together stays below what was once in use: a training loop takes the same every step.
void Pool::put_back(Buffer* buffer) {
  std::vector<Buffer*> surplus;
  {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= buffer->capacity();
    free_.push_back(buffer);
    free_bytes_ += buffer->capacity();
    while (used_bytes_ + free_bytes_ > most_used_bytes_) {
      surplus.push_back(free_.front());
      free_bytes_ -= free_.front()->capacity();
      free_.erase(free_.begin());
    }
  }
  for (Buffer* old : surplus) delete old;
}

}  // namespace hdp::tf
