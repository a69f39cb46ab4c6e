// Reusable byte buffers: large ones from malloc are mapped and unmapped each time, which costs a page fault a page.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace hdp {

struct Buffer {
  std::unique_ptr<uint8_t[]> bytes;
  uint64_t size = 0;      // asked for
  uint64_t capacity = 0;  // a power of two
};

class BufferPool {
 public:
  Buffer take(uint64_t size) {
    const uint64_t capacity = std::bit_ceil(size < 64 ? uint64_t{64} : size);
    auto& shelf = free_[capacity];
    if (shelf.empty()) return {std::make_unique_for_overwrite<uint8_t[]>(capacity), size, capacity};
    Buffer b{std::move(shelf.back()), size, capacity};
    shelf.pop_back();
    return b;
  }
  void give(Buffer b) {
    auto& shelf = free_[b.capacity];
    if (shelf.size() < kKept) shelf.push_back(std::move(b.bytes));
  }

 private:
  static constexpr size_t kKept = 32;
  std::map<uint64_t, std::vector<std::unique_ptr<uint8_t[]>>> free_;
};

}  // namespace hdp
