"""The native operations: loading them into TensorFlow, and tying them to the communicator.

They are asynchronous kernels for CPU and GPU (there with arguments in host memory), registered through TensorFlow's
C API. That API leaves two things uncertain: whether
a TensorFlow has its functions at all (2.12 hasn't), and what the callback of an asynchronous kernel points at. So a
TensorFlow of a version that isn't known to work is tried out in a process of its own first. Where the operations
can't be had, `hdp.tensorflow.fallback` stands in, and the log says why.
"""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from hdp.collectives import Communicator, library
from hdp.contract import env
from hdp.contract.errors import CollectiveError

logger = logging.getLogger(__name__)

#: First and last minor version with which the tests run the operations.
TRIED = ((2, 15), (2, 21))


@functools.cache
def operations() -> Any:
    """The module with `hdp_allreduce` and `hdp_exchange`; None: the fallback serves, and the log has the reason."""
    try:
        why, module = _unusable(), None
        if not why:
            library.load()  # under its own name, so that the operations find this copy
            module = tf.load_op_library(str(library_path()))  # first: it makes functions of what appears meanwhile
            why = functions().hdp_tf_why_not().decode()
    except (CollectiveError, OSError, tf.errors.OpError) as exc:
        why = str(exc)
    if not why:
        return module
    logger.warning(
        "TensorFlow %s runs hdp's operations in Python (tf.numpy_function), one after the other: %s",
        tf.__version__,
        why,
    )
    return None


def name() -> str:
    """What runs the operations: "native" or "numpy_function"."""
    return "native" if operations() is not None else "numpy_function"


def attach(comm: Communicator) -> None:
    """Let the operations use `comm`. Raises CollectiveError."""
    if operations() is None:
        return
    text, defaults = library.ErrorText(), comm.defaults
    milliseconds = (int(seconds * 1000) for seconds in (max(0.001, defaults.timeout), defaults.stall))
    text.check(functions().hdp_tf_attach(comm.handle, comm.world.size, *milliseconds, *text.arguments))


def stop() -> None:
    """Take no operation any more. Call `fail_pending` after the communicator was closed."""
    if operations() is not None:
        functions().hdp_tf_stop()


def fail_pending(why: str) -> None:
    """Fail what is in flight."""
    if operations() is not None:
        functions().hdp_tf_fail_pending(why.encode())


def library_path() -> Path:
    """Where libhdp_tensorflow.so is. Raises CollectiveError."""
    return library.installed("hdp.tensorflow", "libhdp_tensorflow.so", env.TENSORFLOW_LIBRARY)


@functools.cache
def functions() -> ctypes.CDLL:
    """The library's own functions. TensorFlow must have loaded it before."""
    found = ctypes.CDLL(str(library_path()))
    error = (ctypes.c_char_p, ctypes.c_size_t)
    found.hdp_tf_why_not.restype = ctypes.c_char_p
    found.hdp_tf_attach.argtypes = (ctypes.c_void_p, *[ctypes.c_uint64] * 3, *error)
    found.hdp_tf_fail_pending.argtypes = (ctypes.c_char_p,)
    return found


def _unusable() -> str:
    """Why the operations can't be used; empty: they can."""
    if os.environ.get(env.TENSORFLOW_OPS.name) == "python":
        return f"${env.TENSORFLOW_OPS.name} is python"
    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    if version < TRIED[0]:
        return f"asynchronous kernels exist from TensorFlow {'.'.join(map(str, TRIED[0]))} on"
    if version > TRIED[1] and not _tried_out():
        return "they don't work with it"
    return ""


def _tried_out() -> bool:
    """Whether they work, in a process of its own; remembered for this TensorFlow and this build."""
    path = library_path()
    stamp = f"{tf.__version__} {path} {path.stat().st_mtime_ns}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hdp" / "tensorflow.json"
    try:
        known = json.loads(cache.read_text())
    except (OSError, ValueError):
        known = {}
    if stamp not in known:
        # Without a GPU, whose memory the rank itself may want all of: the operations do the same on each device.
        environ = {**os.environ, env.TENSORFLOW_LIBRARY.name: str(path), "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, "-m", "hdp.tensorflow.trial"], env=environ, timeout=120, check=False, capture_output=True
        )
        known[stamp] = done.returncode == 0
        try:
            cache.parent.mkdir(parents=True, exist_ok=True)
            cache.write_text(json.dumps(known))
        except OSError:
            logger.info("what the operations' trial found can't be kept in %s", cache)
    return bool(known[stamp])
