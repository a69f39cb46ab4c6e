"""libhdp_core.so through ctypes: the one place that loads it (DESIGN I8).

The structures below mirror ``runtime/csrc/include/hdp.h``; a test compares them with the header, and `load` compares
their sizes with the library's.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from pathlib import Path

from hdp.contract import env
from hdp.contract.errors import (
    CollectiveError,
    CollectiveMismatch,
    CollectiveTimeout,
    HdpError,
    InvalidCollective,
    PeerLost,
)

ABI_VERSION = 4
ERROR_BYTES = 4096


class Status(IntEnum):
    """``enum hdp_status``."""

    OK = 0
    PENDING = 1
    MISMATCH = 2
    TIMEOUT = 3
    PEER_LOST = 4
    INVALID = 5
    SYSTEM = 6


class Kind(IntEnum):
    """``enum hdp_kind``."""

    ALLREDUCE = 0
    BROADCAST = 1
    ALLGATHER = 2
    BARRIER = 3
    REDUCE = 4
    REDUCE_SCATTER = 5
    GATHER = 6
    SCATTER = 7
    ALLTOALL = 8
    SEND = 9
    RECV = 10


#: Kinds that combine elements, and kinds that name a rank.
REDUCTIONS = frozenset({Kind.ALLREDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER})
ROOTED = frozenset({Kind.BROADCAST, Kind.REDUCE, Kind.GATHER, Kind.SCATTER, Kind.SEND, Kind.RECV})


class DType(IntEnum):
    """``enum hdp_dtype``."""

    FLOAT16 = 0
    BFLOAT16 = 1
    FLOAT32 = 2
    FLOAT64 = 3
    INT8 = 4
    UINT8 = 5
    INT32 = 6
    INT64 = 7
    BOOL = 8


class ReduceOp(IntEnum):
    """How elements are combined (``enum hdp_op``). On bool, sum and max are "or", product and min are "and"."""

    SUM = 0
    AVG = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4


class Request(Structure):
    """``struct hdp_request``."""

    _fields_ = (
        ("kind", c_uint32),
        ("dtype", c_uint32),
        ("op", c_uint32),
        ("root", c_uint32),
        ("count", c_uint64),
        ("group", c_uint64),
        ("in", c_void_p),
        ("out", c_void_p),
        ("send_counts", POINTER(c_uint64)),
        ("recv_counts", POINTER(c_uint64)),
        ("shape", POINTER(c_uint64)),
        ("tag", c_char_p),
        ("timeout_ms", c_uint64),
        ("stall_ms", c_uint64),
        ("dims", c_uint32),
        ("notify", c_uint32),
        ("once", c_uint32),
        ("wire", c_uint32),
        ("stream", c_uint64),
        ("device", c_uint32),
    )


class Layout(Structure):
    """``struct hdp_layout``."""

    _fields_ = (
        ("host", c_int32),
        ("num_hosts", c_int32),
        ("local_sizes", POINTER(c_int32)),
        ("host_names", POINTER(c_char_p)),
    )


#: ``hdp_log_function``.
LogFunction = CFUNCTYPE(None, c_char_p)


class ServerConfig(Structure):
    """``struct hdp_server_config``."""

    _fields_ = (
        ("layout", Layout),
        ("arena_fd", c_int32),
        ("event_fd", c_int32),
        ("stop_fd", c_int32),
        ("timeline_fd", c_int32),
        ("rank_fds", POINTER(c_int32)),
        ("rank_pids", POINTER(c_int32)),
        ("peer_fds", POINTER(c_int32)),
        ("tls_library", c_char_p),
        ("tls_keys", POINTER(c_uint8)),
        ("log", LogFunction),
    )


_ERROR = (c_char_p, c_size_t)
SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "hdp_abi_version": (c_uint32, ()),
    "hdp_status_name": (c_char_p, (c_int32,)),
    "hdp_abi_sizes": (None, (POINTER(c_uint64),)),
    "hdp_arena_bytes": (c_uint64, (c_uint32, c_uint32, c_uint64)),
    "hdp_arena_init": (c_int32, (c_int32, c_uint32, c_uint32, c_uint64, *_ERROR)),
    "hdp_server_run": (c_int32, (POINTER(ServerConfig), *_ERROR)),
    "hdp_comm_open": (c_void_p, (POINTER(Layout), c_int32, c_int32, c_int32, c_int32, *_ERROR)),
    "hdp_comm_timeline": (c_int32, (c_void_p, c_int32, LogFunction, *_ERROR)),
    "hdp_comm_log": (c_int32, (c_void_p, LogFunction, *_ERROR)),
    "hdp_group_add": (c_int32, (c_void_p, POINTER(c_int32), c_int32, c_char_p, POINTER(c_uint64), *_ERROR)),
    "hdp_submit": (c_int32, (c_void_p, POINTER(Request), POINTER(c_uint64), *_ERROR)),
    "hdp_wait": (c_int32, (c_void_p, c_uint64, c_uint64, *_ERROR)),
    "hdp_stream_wait": (c_int32, (c_void_p, c_uint64, c_uint64, *_ERROR)),
    "hdp_device_count": (c_int32, (POINTER(c_int32), *_ERROR)),
    "hdp_next_done": (c_int32, (c_void_p, c_uint64, POINTER(c_uint64))),
    "hdp_release": (None, (c_void_p, c_uint64)),
    "hdp_comm_interrupt": (None, (c_void_p,)),
    "hdp_comm_close": (None, (c_void_p,)),
}


@functools.cache
def load() -> ctypes.CDLL:
    """The library, loaded once. Raises CollectiveError where it isn't there or isn't of this version."""
    path = library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as exc:
        raise CollectiveError(f"{path} can't be loaded: {exc}") from exc
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    sizes = (c_uint64 * 3)()
    library.hdp_abi_sizes(sizes)
    expected = [ctypes.sizeof(s) for s in (Request, Layout, ServerConfig)]
    if library.hdp_abi_version() != ABI_VERSION or list(sizes) != expected:
        raise CollectiveError(
            f"{path} has ABI version {library.hdp_abi_version()} and sizes {list(sizes)}, "
            f"expected version {ABI_VERSION} and {expected}; reinstall hdp-train"
        )
    return library


def library_path() -> Path:
    """Where the library is: $HDP_CORE_LIBRARY, or beside this package (installed or editable)."""
    return installed("hdp.collectives", "libhdp_core.so", env.CORE_LIBRARY)


def installed(package: str, name: str, variable: env.Variable) -> Path:
    """The file that `variable` names, else `name` beside `package`, which is imported. Raises CollectiveError."""
    chosen = os.environ.get(variable.name)
    if chosen:
        return Path(chosen)
    folders = list(sys.modules[package].__path__)
    for folder in folders:
        candidate = Path(folder) / name
        if candidate.exists():
            return candidate
    raise CollectiveError(
        f"{name} isn't installed. It needs Linux and a C++20 compiler at install time; looked in {folders}"
    )


_EXCEPTIONS: dict[Status, type[HdpError]] = {
    Status.MISMATCH: CollectiveMismatch,
    Status.TIMEOUT: CollectiveTimeout,
    Status.PEER_LOST: PeerLost,
    Status.INVALID: InvalidCollective,
    Status.SYSTEM: CollectiveError,
}


def exception_for(status: int, text: str) -> HdpError:
    """The exception that stands for a status of the C ABI."""
    return _EXCEPTIONS[Status(status)](text)


_Text = c_char * ERROR_BYTES


class ErrorText:
    """Room for a message from the library: ``check(lib.f(..., *text.arguments))``."""

    __slots__ = ("_buffer", "arguments")

    def __init__(self) -> None:
        self._buffer = _Text()
        self.arguments = (self._buffer, ERROR_BYTES)

    def __str__(self) -> str:
        return self._buffer.value.decode(errors="replace")

    def check(self, status: int) -> None:
        """Raise the exception of `status`, unless it is OK."""
        if status != Status.OK:
            raise exception_for(status, str(self))


def device_count() -> int:
    """CUDA devices of this process; loads the driver, see $HDP_CUDA_DRIVER. Raises CollectiveError: there is none."""
    count, text = c_int32(), ErrorText()
    text.check(load().hdp_device_count(ctypes.byref(count), *text.arguments))
    return count.value


def make_layout(host: int, local_sizes: list[int], host_names: list[str]) -> Layout:
    """A ``struct hdp_layout`` that keeps its arrays alive."""
    layout = Layout(
        host,
        len(local_sizes),
        (c_int32 * len(local_sizes))(*local_sizes),
        (c_char_p * len(host_names))(*(name.encode() for name in host_names)),
    )
    return layout
