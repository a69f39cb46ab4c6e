#include "engine.h"

#include <memory>
#include <utility>

namespace hdp::tf {
namespace {

constexpr uint64_t kLookAfterMs = 200;
constexpr size_t kErrorBytes = 4096;

TF_Code code_of(int32_t status) {
  switch (status) {
    case HDP_MISMATCH:
    case HDP_INVALID: return TF_INVALID_ARGUMENT;
    case HDP_TIMEOUT: return TF_DEADLINE_EXCEEDED;
    case HDP_PEER_LOST:
      return TF_ABORTED;  // not "unavailable": TensorFlow takes that for its own network's, and hides it
    default: return TF_INTERNAL;
  }
}

// hdp.contract.errors' name of it: the launcher looks for these in texts, to tell causes from consequences.
const char* name_of(int32_t status) {
  switch (status) {
    case HDP_MISMATCH: return "CollectiveMismatch";
    case HDP_TIMEOUT: return "CollectiveTimeout";
    case HDP_PEER_LOST: return "PeerLost";
    case HDP_INVALID: return "InvalidCollective";
    default: return "CollectiveError";
  }
}

void run_done(Pending& pending) {
  api().RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&pending.done));
}

}  // namespace

Engine& Engine::instance() {
  static Engine* engine = new Engine;  // never destroyed: TensorFlow's threads may outlive static objects
  return *engine;
}

int32_t Engine::attach(hdp_comm* comm, uint64_t ranks, uint64_t timeout_ms, uint64_t stall_ms, std::string& error) {
  const std::lock_guard lock(mutex_);
  if (comm_) {
    error = "TensorFlow's operations have a communicator already";
    return HDP_INVALID;
  }
  try {
    watcher_ = std::thread([this, comm] { watch(comm); });
  } catch (const std::exception& exception) {
    error = std::string("no thread for TensorFlow's operations: ") + exception.what();
    return HDP_SYSTEM;
  }
  comm_ = comm;
  ranks_ = ranks;
  timeout_ms_ = timeout_ms;
  stall_ms_ = stall_ms;
  return HDP_OK;
}

void Engine::stop() {
  hdp_comm* comm;
  {
    const std::lock_guard lock(mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  if (!comm) return;
  hdp_comm_interrupt(comm);
  watcher_.join();
}

void Engine::fail_pending(const std::string& why) {
  decltype(pending_) left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(pending_);
  }
  for (auto& [ticket, pending] : left) fail(*pending, HDP_PEER_LOST, why);
}

void Engine::submit(hdp_request request, std::unique_ptr<Pending>& pending) {
  char error[kErrorBytes] = "";
  int32_t status;
  {
    // Held until the ticket is known, so that `watch` finds it.
    const std::lock_guard lock(mutex_);
    if (!comm_) {
      status = HDP_INVALID;
      snprintf(error, sizeof error, "hdp.tensorflow isn't initialised in this process, or was shut down; call init()");
    } else {
      request.timeout_ms = timeout_ms_;
      request.stall_ms = stall_ms_;
      request.notify = 1;
      uint64_t ticket;
      status = hdp_submit(comm_, &request, &ticket, error, sizeof error);
      if (status == HDP_OK) pending_.emplace(ticket, std::move(pending));
    }
  }
  if (status != HDP_OK) fail(*std::exchange(pending, nullptr), status, error);
}

void Engine::watch(hdp_comm* comm) {
  while (true) {
    uint64_t ticket;
    const int32_t found = hdp_next_done(comm, kLookAfterMs, &ticket);
    if (found == HDP_PENDING) continue;
    if (found != HDP_OK) return;
    std::unique_ptr<Pending> pending;
    {
      const std::lock_guard lock(mutex_);
      auto it = pending_.find(ticket);
      if (it == pending_.end()) continue;
      pending = std::move(it->second);
      pending_.erase(it);
    }
    char error[kErrorBytes] = "";
    const int32_t status = hdp_wait(comm, ticket, 0, error, sizeof error);
    hdp_release(comm, ticket);
    if (status == HDP_OK) {
      complete(*pending);
    } else {
      fail(*pending, status, error);
    }
  }
}

void Engine::complete(Pending& pending) {
  pending.inputs.clear();
  Status status;
  for (size_t i = 0; i < pending.results.size() && status.ok(); ++i) {
    const Result& result = pending.results[i];
    pending.buffer->keep();
    const Tensor tensor(api().NewTensor(
        result.dtype, result.dims.data(), static_cast<int>(result.dims.size()), pending.buffer->data() + result.offset,
        result.bytes, [](void*, size_t, void* buffer) { static_cast<Buffer*>(buffer)->release(); }, pending.buffer));
    if (tensor.get()) {
      api().SetOutput(pending.context, static_cast<int>(i), tensor.get(), status);
    } else {
      status.set(TF_INTERNAL, "TensorFlow refused the memory of a result");
    }
  }
  if (!status.ok()) api().OpKernelContext_Failure(pending.context, status);
  run_done(pending);
}

void fail(Pending& pending, int32_t status, const std::string& text) {
  pending.inputs.clear();
  Status of_tensorflow;
  of_tensorflow.set(code_of(status), std::string(name_of(status)) + ": " + text);
  api().OpKernelContext_Failure(pending.context, of_tensorflow);
  run_done(pending);
}

}  // namespace hdp::tf
