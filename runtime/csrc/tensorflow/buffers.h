// Memory for results and for gradients that travel together. It is used again: fresh memory costs a page fault for
// every 4 KiB, which for large gradients is as much as a copy.
#ifndef HDP_TF_BUFFERS_H_
#define HDP_TF_BUFFERS_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace hdp::tf {

// TensorFlow takes memory that isn't aligned so, but copies it.
constexpr size_t kAlignment = 64;

inline size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class Pool;

// A piece of memory with as many owners as it has references: the operation, and then the result tensors within it.
class Buffer {
 public:
  std::byte* data() const { return data_; }
  size_t capacity() const { return capacity_; }
  void keep() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();

 private:
  friend class Pool;
  Buffer(Pool& pool, size_t capacity);
  ~Buffer();
  Pool& pool_;
  size_t capacity_;
  std::byte* data_;
  std::atomic<int> references_{1};
};

class Pool {
 public:
  // At least `bytes`, with one reference. Throws std::bad_alloc.
  Buffer* take(size_t bytes);

 private:
  friend class Buffer;
  void put_back(Buffer* buffer);
  std::mutex mutex_;
  std::vector<Buffer*> free_;
  size_t free_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t most_used_bytes_ = 0;
};

}  // namespace hdp::tf
#endif
