// A CUDA driver without a device, for tests: libhdp_fake_cuda.so, by $HDP_CUDA_DRIVER.
//
// It exports the functions of libcuda.so.1 that the core uses. A stream is a thread with a queue. Copies take time and
// read their source when their turn comes, so who doesn't wait for an event reads what was there before. Memory of
// cuMemAlloc can't be touched by the host at the address that the program has: it is mapped twice, and only streams
// (and fake_cuda_view) know the other place. Any other address is taken as device memory too, so that a framework's
// CPU tensors can stand for CUDA tensors, unless it is pinned.
//
// A call without a current context, a copy whose host end isn't pinned, and pinned memory as a device's are refused.
// Memory that is freed while a copy is in flight, and an event that another device's stream records, end the process.
//
//   HDP_FAKE_CUDA_DEVICES     how many there are; 1
//   HDP_FAKE_CUDA_GBPS        of each stream's copies, 10^9 bytes a second; 0: as fast as memory
//   HDP_FAKE_CUDA_LATENCY_US  of each copy, microseconds; 0
//   HDP_FAKE_CUDA_REFUSE      functions that always fail as unsupported, between commas
//   HDP_FAKE_CUDA_FAIL        function:n, the n-th call of it from now on fails
//   HDP_FAKE_CUDA_STUCK       1: a stream that waits for a word stops all copies
#pragma once

#include <cstdint>

extern "C" {

// Where the host finds device memory.
void* fake_cuda_view(unsigned long long pointer);
// $HDP_FAKE_CUDA_FAIL, from now on.
void fake_cuda_fail(const char* function, uint64_t nth);
// Calls of a function so far.
uint64_t fake_cuda_calls(const char* function);
// Copies in flight now, of all streams.
uint64_t fake_cuda_flying();
// A kernel: sleeps, and then fills `n` bytes of device memory.
int fake_cuda_fill(void* stream, unsigned long long pointer, int byte, uint64_t n, uint64_t microseconds);
// Another one: the same with a copy on the device.
int fake_cuda_kernel_copy(void* stream, unsigned long long to, unsigned long long from, uint64_t n,
                          uint64_t microseconds);
}
