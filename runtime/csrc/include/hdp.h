/* hdp.h: the C ABI of libhdp_core, the collective library.
 *
 * A host runs one *server* (hdp_server_run); each of its ranks holds one *communicator* (hdp_comm_*). Both map the
 * host's *arena*, a memfd through which the ranks reduce; the server exchanges with the servers of the other hosts.
 * Nothing here listens, connects or authenticates: every descriptor that is passed in is connected, and its other end
 * has proved that it knows the job's secret (hdp.collectives.handshake does that).
 *
 * All functions may be called from any thread. A communicator that is closed stays a valid argument; calls on it fail.
 * A function that fails writes a message, ended by a NUL, into `error` (`error_bytes` long; NULL and 0 for none).
 */
#ifndef HDP_H
#define HDP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDP_API __attribute__((visibility("default")))
#define HDP_ABI_VERSION 4

enum hdp_status {
  HDP_OK = 0,
  HDP_PENDING = 1,   /* the operation isn't complete yet; hdp_stream_wait: call hdp_wait */
  HDP_MISMATCH = 2,  /* ranks called different operations; the group is unusable */
  HDP_TIMEOUT = 3,   /* ranks are missing (the group is unusable), or a transfer stands still (every group is) */
  HDP_PEER_LOST = 4, /* a rank has left (the group is unusable), or a rank or a host is gone (every group is) */
  HDP_INVALID = 5,   /* an argument is wrong; nothing was started */
  HDP_SYSTEM = 6,    /* a system call failed, or what this host's server says makes no sense */
};

enum hdp_kind {
  HDP_ALLREDUCE = 0,
  HDP_BROADCAST = 1,
  HDP_ALLGATHER = 2,
  HDP_BARRIER = 3,
  HDP_REDUCE = 4,
  HDP_REDUCE_SCATTER = 5,
  HDP_GATHER = 6,
  HDP_SCATTER = 7,
  HDP_ALLTOALL = 8,
  HDP_SEND = 9,
  HDP_RECV = 10,
};

enum hdp_dtype {
  HDP_FLOAT16 = 0,
  HDP_BFLOAT16 = 1,
  HDP_FLOAT32 = 2,
  HDP_FLOAT64 = 3,
  HDP_INT8 = 4,
  HDP_UINT8 = 5,
  HDP_INT32 = 6,
  HDP_INT64 = 7,
  HDP_BOOL = 8, /* one byte, 0 or 1; sum and max are "or", product and min are "and" */
};

/* What float32 is rounded to on the way between hosts, each host's sum once and the whole sum once. */
enum hdp_wire { HDP_WIRE_SAME = 0, HDP_WIRE_FLOAT16 = 1, HDP_WIRE_BFLOAT16 = 2 };

enum hdp_op { HDP_SUM = 0, HDP_AVG = 1, HDP_MIN = 2, HDP_MAX = 3, HDP_PRODUCT = 4 };

/* One operation. Every rank of the group passes the same kind, dtype, op, root and tag; of a send and its recv, only the
 * sender and the receiver call. The n-th operation of a (group, tag) on one rank meets the n-th on the others; the n-th
 * send from one rank to another with a tag meets the n-th recv. Different tags may be submitted in any order. Both
 * buffers stay the caller's and untouched by it until completion.
 *
 *              `in`, elements                  `out`, elements
 * allreduce    count                           count; may be `in`
 * reduce       count                           root: count; may be `in`
 * broadcast    root: count                     count; may be `in`
 * allgather    count                           recv_counts of all, by rank; `in` may be the rank's own place in it
 * reduce_scatter
 *              recv_counts of all, by rank     count; may be the rank's own place in `in`
 * gather       count                           root: recv_counts of all, by rank; `in`: likewise
 * scatter      root: send_counts, by rank      count; on the root it may be its own place in `in`
 * alltoall     send_counts, by rank            recv_counts, by rank; may be `in` where all counts are equal
 * send         count                           -
 * recv         -                               count
 *
 * Lists of counts are as long as the group; NULL: `count` for each rank. Those of allgather and reduce_scatter are
 * the same on every rank; those of gather, scatter and alltoall are read where the table names them. `count` is the
 * rank's own place in a list of allgather and reduce_scatter, and the root's in that of gather.
 */
struct hdp_request {
  uint32_t kind;
  uint32_t dtype;
  uint32_t op;        /* allreduce, reduce, reduce_scatter; 0 otherwise */
  uint32_t root;      /* rank within the group: root; of a send the receiver, of a recv the sender; 0 otherwise */
  uint64_t count;
  uint64_t group;     /* 0: all ranks; else from hdp_group_add */
  const void *in;
  void *out;
  const uint64_t *send_counts;
  const uint64_t *recv_counts;
  const uint64_t *shape; /* of the array, or of one rank's piece of it; compared between ranks, unless one has none */
  const char *tag;    /* at most 63 bytes; NULL: the group's untagged sequence */
  uint64_t timeout_ms; /* for all to call it; then it lasts as long as anything moves on this host */
  uint64_t stall_ms;  /* after this, and again after twice as long, the server logs who is missing; 0: never */
  uint32_t dims;      /* of shape, at most 32; 0: none */
  uint32_t notify;    /* 1: hdp_next_done will return the ticket */
  uint32_t once;      /* 1: no other operation of the group has this tag, so nobody needs to count them */
  uint32_t wire;      /* float32 in allreduce, reduce, reduce_scatter: hdp_wire; 0 otherwise */
  uint64_t stream;    /* with a device: the CUstream in which `in` was written and `out` last used; the copies wait
                         for what is in it now. 0: the legacy default stream */
  uint32_t device;    /* 0: both buffers are host memory; n: memory of CUDA device n-1 */
};

struct hdp_layout {      /* who is where; ranks are numbered host by host */
  int32_t host;          /* this host's index */
  int32_t num_hosts;
  const int32_t *local_sizes;      /* ranks of each host */
  const char *const *host_names;   /* for messages */
};

HDP_API uint32_t hdp_abi_version(void);
HDP_API const char *hdp_status_name(int32_t status);
/* sizeof(struct hdp_request), sizeof(struct hdp_layout), sizeof(struct hdp_server_config): for a binding's check. */
HDP_API void hdp_abi_sizes(uint64_t sizes[3]);

/* The arena of a host with `local_size` ranks: `slots` chunks of `slot_bytes` and the control words around them. */
HDP_API uint64_t hdp_arena_bytes(uint32_t local_size, uint32_t slots, uint64_t slot_bytes);
/* Writes the header into the file `fd`, which must be hdp_arena_bytes long and zero. */
HDP_API int32_t hdp_arena_init(int32_t fd, uint32_t local_size, uint32_t slots, uint64_t slot_bytes, char *error,
                               size_t error_bytes);

typedef void (*hdp_log_function)(const char *line);

struct hdp_server_config {
  struct hdp_layout layout;
  int32_t arena_fd;
  int32_t event_fd;          /* eventfd by which ranks wake the server */
  int32_t stop_fd;           /* eventfd: readable = return at once */
  int32_t timeline_fd;       /* file for a timeline, which hdp_comm_timeline explains; 0: none */
  const int32_t *rank_fds;   /* local_sizes[host] Unix stream sockets, by local rank */
  const int32_t *rank_pids;  /* their processes */
  const int32_t *peer_fds;   /* num_hosts TCP sockets, by host; -1 at this host's place */
  const char *tls_library;   /* path of OpenSSL's libssl: encrypt what goes to other hosts; NULL: don't */
  const uint8_t *tls_keys;   /* with it: 32 bytes a host, which only the servers of both hosts know */
  hdp_log_function log;      /* called with a line for the log, from threads of the server's; NULL: none */
};

/* Serve until every local rank has left and every other server is done, or `stop_fd` is readable. Owns none of the
 * descriptors. Returns HDP_OK, or HDP_PEER_LOST etc. with the first cause when the groups were poisoned. */
HDP_API int32_t hdp_server_run(const struct hdp_server_config *config, char *error, size_t error_bytes);

typedef struct hdp_comm hdp_comm;

/* Join as `rank`. Takes over `socket_fd`; maps `arena_fd` and duplicates `event_fd`. NULL on failure. */
HDP_API hdp_comm *hdp_comm_open(const struct hdp_layout *layout, int32_t rank, int32_t socket_fd, int32_t arena_fd,
                                int32_t event_fd, char *error, size_t error_bytes);
/* Write what happens from now on to each operation into the empty file `timeline_fd`, which is duplicated, in Chrome's
 * trace event format: a JSON array with an event a line, ended by hdp_comm_close. `log` is called with a line for the
 * log, from a thread of its own, when that can't go on; NULL: none. At most once for a communicator. */
HDP_API int32_t hdp_comm_timeline(hdp_comm *comm, int32_t timeline_fd, hdp_log_function log, char *error,
                                  size_t error_bytes);
/* `log` is called with a line for the log, within hdp_submit and hdp_stream_wait: what a device can't do. */
HDP_API int32_t hdp_comm_log(hdp_comm *comm, hdp_log_function log, char *error, size_t error_bytes);
/* Declare a group of `size` global ranks, this one among them; place in the list = rank within the group. Local:
 * no message waits for the others. The same ranks and name give the same id everywhere. */
HDP_API int32_t hdp_group_add(hdp_comm *comm, const int32_t *ranks, int32_t size, const char *name, uint64_t *id,
                              char *error, size_t error_bytes);
/* Start an operation. HDP_OK: `ticket` names it until hdp_release. The lists and the tag are copied. */
HDP_API int32_t hdp_submit(hdp_comm *comm, const struct hdp_request *request, uint64_t *ticket, char *error,
                           size_t error_bytes);
/* Wait up to timeout_ms for completion. Returns its status, or HDP_PENDING. After an error `out` is undefined. */
HDP_API int32_t hdp_wait(hdp_comm *comm, uint64_t ticket, uint64_t timeout_ms, char *error, size_t error_bytes);
/* Wait up to timeout_ms for any operation with `notify` to complete. HDP_OK, HDP_PENDING, or HDP_PEER_LOST once
 * hdp_comm_interrupt was called. */
HDP_API int32_t hdp_next_done(hdp_comm *comm, uint64_t timeout_ms, uint64_t *ticket);
/* Make `stream`, a CUstream of the operation's device, wait until the operation is complete or has failed; the caller
 * isn't blocked. HDP_OK: it will, or the operation is complete. HDP_PENDING: this device can't; call hdp_wait. Else the
 * status of the operation, which has failed. One that fails later is told by hdp_wait. */
HDP_API int32_t hdp_stream_wait(hdp_comm *comm, uint64_t ticket, uint64_t stream, char *error, size_t error_bytes);
HDP_API void hdp_release(hdp_comm *comm, uint64_t ticket);
/* Makes hdp_next_done return HDP_PEER_LOST from now on, so that a waiting thread can end. */
HDP_API void hdp_comm_interrupt(hdp_comm *comm);
/* Leave. Operations that aren't complete fail. In a forked child it frees nothing and tells nobody. */
HDP_API void hdp_comm_close(hdp_comm *comm);

/* CUDA devices of this process. Loads the driver: the library that $HDP_CUDA_DRIVER names, else libcuda.so.1. HDP_SYSTEM
 * with the reason where that can't be. Operations on host memory never load it. */
HDP_API int32_t hdp_device_count(int32_t *count, char *error, size_t error_bytes);

#ifdef __cplusplus
}
#endif
#endif
