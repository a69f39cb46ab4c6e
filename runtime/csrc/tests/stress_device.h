// Device memory for core_stress, of the fake driver (fake_cuda.h), which $HDP_CUDA_DRIVER names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace hdp::stress {

struct FakeDriver;

// A thread's device: its context is current, and it has a stream.
class Device {
 public:
  Device();  // ends the process where there is no driver
  uint64_t stream() const { return reinterpret_cast<uint64_t>(stream_); }
  void synchronize() const;
  const FakeDriver& driver() const { return driver_; }

 private:
  const FakeDriver& driver_;
  void* stream_ = nullptr;
};

// `address` is the device's; the host finds the same bytes at `view`.
class Memory {
 public:
  Memory(const Device& device, size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* address() const { return reinterpret_cast<uint8_t*>(pointer_); }
  uint8_t* view() const { return view_; }
  // A kernel in the device's stream writes them: late.
  void write(const uint8_t* bytes, size_t n, uint64_t microseconds);

 private:
  const Device& device_;
  unsigned long long pointer_ = 0;
  uint8_t* view_ = nullptr;
  std::unique_ptr<Memory> origin_;
};

}  // namespace hdp::stress
