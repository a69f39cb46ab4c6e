// From an operation of TensorFlow's to one of the core's, and back when that is complete.
#ifndef HDP_TF_ENGINE_H_
#define HDP_TF_ENGINE_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "buffers.h"
#include "hdp.h"
#include "tf_c_api.h"

namespace hdp::tf {

// One result: a part of the operation's buffer.
struct Result {
  TF_DataType dtype;
  std::vector<int64_t> dims;
  size_t offset;
  size_t bytes;
};

// An operation in flight. Inputs and memory stay alive with it.
struct Pending {
  TF_OpKernelContext* context = nullptr;
  std::function<void()> done;
  std::vector<Tensor> inputs;
  Buffer* buffer = nullptr;
  std::vector<Result> results;

  Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending() {
    if (buffer) buffer->release();
  }
};

class Engine {
 public:
  static Engine& instance();

  // Operations go through `comm` from now on; a thread waits for their completion.
  // `ranks`: how many there are.
  int32_t attach(hdp_comm* comm, uint64_t ranks, uint64_t timeout_ms, uint64_t stall_ms, std::string& error);
  // No operation is taken any more, and the thread ends. Those in flight stay: `comm` may still use their memory.
  void stop();
  // Fail what is in flight. The communicator must have been closed.
  void fail_pending(const std::string& why);

  Buffer* take(size_t bytes) { return pool_.take(bytes); }
  // How many ranks there are; 0: there is no communicator.
  uint64_t ranks() {
    const std::lock_guard lock(mutex_);
    return comm_ ? ranks_ : 0;
  }
  // Start it, or fail it; `pending->done` is called in either case. `pending` is taken over unless this throws.
  void submit(hdp_request request, std::unique_ptr<Pending>& pending);

 private:
  void watch(hdp_comm* comm);
  void complete(Pending& pending);
  Pool pool_;
  std::mutex mutex_;
  hdp_comm* comm_ = nullptr;
  uint64_t ranks_ = 0;
  uint64_t timeout_ms_ = 0;
  uint64_t stall_ms_ = 0;
  std::thread watcher_;
  std::unordered_map<uint64_t, std::unique_ptr<Pending>> pending_;
};

// Let `pending` fail in TensorFlow with a status of the core's.
void fail(Pending& pending, int32_t status, const std::string& text);

}  // namespace hdp::tf
#endif
