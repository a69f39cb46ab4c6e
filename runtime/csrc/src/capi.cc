// The C ABI: arguments in, exceptions translated into hdp_status, nothing else.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

#include "arena.h"
#include "comm.h"
#include "hdp.h"
#include "server.h"

// Outlives its communicator by design (a few bytes each), so that a thread that is still inside a call, or comes late,
// finds it closed instead of freed.
struct hdp_comm {
  const pid_t owner = getpid();
  std::mutex mutex;
  std::shared_ptr<hdp::Comm> comm;
};

namespace {

void write_text(const std::string& text, char* into, size_t bytes) {
  if (into == nullptr || bytes == 0) return;
  const size_t n = std::min(bytes - 1, text.size());
  std::memcpy(into, text.data(), n);
  into[n] = '\0';
}

// Run `f`; the one place where an exception becomes a status.
template <class F>
int32_t guarded(char* error, size_t error_bytes, F f) {
  try {
    return f();
  } catch (const hdp::Error& e) {
    write_text(e.what(), error, error_bytes);
    return e.status();
  } catch (const std::exception& e) {
    write_text(e.what(), error, error_bytes);
    return HDP_SYSTEM;
  }
}

std::chrono::milliseconds clamped(uint64_t timeout_ms) {
  return std::chrono::milliseconds(std::min<uint64_t>(timeout_ms, uint64_t{1} << 40));
}

std::shared_ptr<hdp::Comm> opened(hdp_comm* handle) {
  if (getpid() != handle->owner)  // before the mutex, which the fork may have copied locked
    throw hdp::Error(HDP_INVALID, "this is a forked child of the process that joined; collectives work only there");
  std::lock_guard lock(handle->mutex);
  if (!handle->comm) throw hdp::Error(HDP_INVALID, "the communicator is closed");
  return handle->comm;
}

}  // namespace

uint32_t hdp_abi_version(void) { return HDP_ABI_VERSION; }

const char* hdp_status_name(int32_t status) {
  static const char* const names[] = {"OK", "PENDING", "MISMATCH", "TIMEOUT", "PEER_LOST", "INVALID", "SYSTEM"};
  return status >= 0 && status <= HDP_SYSTEM ? names[status] : "?";
}

void hdp_abi_sizes(uint64_t sizes[3]) {
  sizes[0] = sizeof(hdp_request);
  sizes[1] = sizeof(hdp_layout);
  sizes[2] = sizeof(hdp_server_config);
}

uint64_t hdp_arena_bytes(uint32_t local_size, uint32_t slots, uint64_t slot_bytes) {
  return hdp::Arena::bytes(local_size, slots, slot_bytes);
}

int32_t hdp_arena_init(int32_t fd, uint32_t local_size, uint32_t slots, uint64_t slot_bytes, char* error,
                       size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    hdp::Arena::initialise(fd, local_size, slots, slot_bytes);
    return HDP_OK;
  });
}

int32_t hdp_server_run(const hdp_server_config* config, char* error, size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    hdp::Server(*config).run();
    return HDP_OK;
  });
}

hdp_comm* hdp_comm_open(const hdp_layout* layout, int32_t rank, int32_t socket_fd, int32_t arena_fd, int32_t event_fd,
                        char* error, size_t error_bytes) {
  hdp_comm* handle = nullptr;
  guarded(error, error_bytes, [&] {
    auto comm = std::make_shared<hdp::Comm>(*layout, static_cast<uint32_t>(rank), socket_fd, arena_fd, event_fd);
    handle = new hdp_comm;
    handle->comm = std::move(comm);
    return HDP_OK;
  });
  return handle;
}

int32_t hdp_comm_timeline(hdp_comm* handle, int32_t timeline_fd, hdp_log_function log, char* error,
                          size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    opened(handle)->trace(timeline_fd, log);
    return HDP_OK;
  });
}

int32_t hdp_comm_log(hdp_comm* handle, hdp_log_function log, char* error, size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    opened(handle)->log_to(log);
    return HDP_OK;
  });
}

int32_t hdp_group_add(hdp_comm* handle, const int32_t* ranks, int32_t size, const char* name, uint64_t* id, char* error,
                      size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    *id = opened(handle)->add_group(std::vector<uint32_t>(ranks, ranks + size), name);
    return HDP_OK;
  });
}

int32_t hdp_submit(hdp_comm* handle, const hdp_request* request, uint64_t* ticket, char* error, size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    *ticket = opened(handle)->submit(*request);
    return HDP_OK;
  });
}

int32_t hdp_wait(hdp_comm* handle, uint64_t ticket, uint64_t timeout_ms, char* error, size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    const auto [status, text] = opened(handle)->wait(ticket, clamped(timeout_ms));
    write_text(text, error, error_bytes);
    return status;
  });
}

int32_t hdp_next_done(hdp_comm* handle, uint64_t timeout_ms, uint64_t* ticket) {
  return guarded(nullptr, 0, [&] {
    const auto done = opened(handle)->next_done(clamped(timeout_ms));
    *ticket = done.value_or(0);
    return done ? HDP_OK : HDP_PENDING;
  });
}

int32_t hdp_stream_wait(hdp_comm* handle, uint64_t ticket, uint64_t stream, char* error, size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    const auto [status, text] = opened(handle)->stream_wait(ticket, stream);
    write_text(text, error, error_bytes);
    return status;
  });
}

int32_t hdp_device_count(int32_t* count, char* error, size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    *count = hdp::CudaDriver::get().device_count();
    return HDP_OK;
  });
}

void hdp_release(hdp_comm* handle, uint64_t ticket) {
  guarded(nullptr, 0, [&] {
    opened(handle)->release(ticket);
    return HDP_OK;
  });
}

void hdp_comm_interrupt(hdp_comm* handle) {
  guarded(nullptr, 0, [&] {
    opened(handle)->interrupt();
    return HDP_OK;
  });
}

void hdp_comm_close(hdp_comm* handle) {
  guarded(nullptr, 0, [&] {
    const std::shared_ptr<hdp::Comm> comm = opened(handle);  // not in a forked child
    {
      std::lock_guard lock(handle->mutex);
      handle->comm.reset();
    }
    comm->close();
    return HDP_OK;
  });
}
