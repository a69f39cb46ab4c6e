"""Every environment variable of ours: name, meaning, default, who sets it.

The rank variables that torch, Horovod and TensorFlow users expect (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
GROUP_RANK, MASTER_ADDR, MASTER_PORT) and SageMaker's SM_* are not ours; `hdp.runtime.environment` sets them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """One environment variable."""

    name: str
    meaning: str
    default: str
    set_by: str


HOME = Variable("HDP_HOME", "Folder where the local engine keeps its jobs.", "~/.local/state/hdp", "user")
BASE_DIR = Variable("SAGEMAKER_BASE_DIR", "Root of the /opt/ml layout.", "/opt/ml", "engine")
SECRET_FILE = Variable("HDP_SECRET_FILE", "File (0600) with the job's secret, 32 bytes or more.", "", "engine, agent")
ADDRESSES = Variable(
    "HDP_HOST_ADDRESSES",
    "JSON object, host name to IP address, where names don't resolve by themselves.",
    "{}",
    "engine",
)
CONTROL_PORT = Variable("HDP_CONTROL_PORT", "TCP port of the agents' coordinator on hosts[0].", "7591", "engine")
SERVER_PORT = Variable("HDP_SERVER_PORT", "TCP port of each host's reduction server.", "7592", "engine")
MASTER_PORT = Variable("HDP_MASTER_PORT", "What ranks get as MASTER_PORT.", "7777", "engine")
HOROVOD_PORT = Variable(
    "HDP_HOROVOD_PORT", "TCP port of Horovod's rendezvous on the first host, where there is no MPI.", "7593", "engine"
)
TENSORFLOW_PORTS = Variable(
    "HDP_TENSORFLOW_PORTS",
    "TCP ports of TF_CONFIG's workers by host, between commas; one alone is every host's.",
    "8890",
    "engine",
)
STOP_TIMEOUT = Variable(
    "HDP_STOP_TIMEOUT_SECONDS",
    "Seconds from SIGTERM to SIGKILL, for a rank to write a checkpoint.",
    "120",
    "engine",
)
START_TIMEOUT = Variable(
    "HDP_START_TIMEOUT_SECONDS",
    "Seconds that hosts and ranks wait for each other at start.",
    "600",
    "user, engine",
)
TIMESTAMPS = Variable("HDP_LOG_TIMESTAMPS", "1: the agent starts each log line with Unix seconds.", "0", "engine")
SERVER_SOCKET = Variable("HDP_SERVER_SOCKET", "Unix socket of this host's reduction server.", "", "agent")
ERROR_FILE = Variable("HDP_ERROR_FILE", "Where a rank leaves its exception (JSON).", "", "agent")
LAUNCHER = Variable("HDP_LAUNCHER", "What started this rank: the key of `distribution`, or none.", "none", "agent")
MPI_SOCKET = Variable("HDP_MPI_SOCKET", "Unix socket where mpirun's processes ask the agent for ranks.", "", "agent")
DIE_WITH_PARENT = Variable(
    "HDP_DIE_WITH_PARENT", "1: the agent is killed when the process that started it ends.", "0", "engine"
)
AGENT_PID = Variable(
    "HDP_AGENT_PID", "Process ID of the agent that started this rank; the rank ends with it.", "", "agent"
)
FASTFILE_FALLBACK = Variable(
    "HDP_FASTFILE_FALLBACK", "file: where there is no FUSE, FastFile channels are downloaded instead.", "", "user"
)
FASTFILE_BUDGET = Variable(
    "HDP_FASTFILE_BUDGET_MIB", "Memory that all FastFile channels of a host may hold together, in MiB.", "512", "user"
)
FASTFILE_ORDER = Variable(
    "HDP_FASTFILE_ORDER",
    "File in which the script writes the order in which it will open a FastFile channel's files, a path in the channel "
    "on each line; {channel} stands for the channel's name.",
    "",
    "user",
)
TIMEOUT = Variable("HDP_TIMEOUT_SECONDS", "Default time limit of one collective.", "1800", "user")
STALL = Variable(
    "HDP_STALL_SECONDS",
    "After this long, a collective that waits is logged with the ranks that it waits for; 0: never.",
    "60",
    "user",
)
ENCRYPT = Variable("HDP_ENCRYPT", "1: TLS between the hosts' reduction servers.", "0", "user, engine")
TOPOLOGY = Variable(
    "HDP_TOPOLOGY",
    "1: the ranks measure hosts and links at the start; the job's output keeps what they found.",
    "0",
    "user",
)
WIRE_DTYPE = Variable(
    "HDP_WIRE_DTYPE",
    "float32, bfloat16 or float16: what sums of float32 of 64 KiB or more travel as between hosts.",
    "float32",
    "user, engine",
)
CUDA_WAIT = Variable(
    "HDP_CUDA_WAIT",
    "How hdp.torch waits for an operation on CUDA tensors: stream, the tensors' stream waits alone; host, so does the "
    "calling thread.",
    "stream",
    "user",
)
LOCAL_TIER = Variable(
    "HDP_LOCAL_TIER",
    "What sums a host's CUDA tensors before they leave it: nccl; shm, hdp's shared memory; auto, nccl where every rank "
    "of a host has a GPU of its own.",
    "auto",
    "user",
)
CUDA_DRIVER = Variable("HDP_CUDA_DRIVER", "Another library than libcuda.so.1 as CUDA's driver.", "", "developer")
TIMELINE = Variable("HDP_TIMELINE", "1: every rank and server writes a timeline of all operations.", "0", "user")
TIMELINE_DIR = Variable(
    "HDP_TIMELINE_DIR",
    "Folder of the timelines, where there is no $SM_OUTPUT_DATA_DIR; else the current one.",
    "",
    "user",
)
TENSORFLOW_OPS = Variable(
    "HDP_TENSORFLOW_OPS", "python: hdp.tensorflow's operations run through tf.numpy_function.", "native", "user"
)
TENSORFLOW_LIBRARY = Variable("HDP_TENSORFLOW_LIBRARY", "Another build of libhdp_tensorflow.so.", "", "developer")
SLOTS = Variable(
    "HDP_SLOTS",
    "Chunks of 512 KiB that a host has in transfer at once, on all hosts as many; 4, or 16 where there are GPUs.",
    "",
    "user",
)
CORE_LIBRARY = Variable("HDP_CORE_LIBRARY", "Another build of libhdp_core.so, e.g. with a sanitizer.", "", "developer")
RUNTIME_WHEEL = Variable(
    "HDP_RUNTIME_WHEEL", "Wheel of hdp for Linux whose core travels to images that lack hdp.", "", "user"
)

HEARTBEAT_FILE = Variable(
    "HDP_HEARTBEAT_FILE", "File that the agent touches every few seconds, for a container's health check.", "", "image"
)
RUN_DIR = Variable(
    "HDP_RUN_DIR",
    "Folder of this host's socket and of what its ranks leave for the agent: a short path, made and removed by the "
    "agent; its parent is the engine's.",
    "",
    "engine",
)

ALL = tuple(v for v in globals().values() if isinstance(v, Variable))


def shell_safe(name: str) -> str:
    """`name` as the end of a variable's name that every shell can use: ``batch-size`` -> ``BATCH_SIZE``."""
    return re.sub(r"[^A-Z0-9_]", "_", name.upper())


def aws_region(environ: Mapping[str, str] = os.environ) -> str | None:
    """The region of the standard AWS variables; None: a profile may have one. boto3 doesn't read AWS_REGION itself."""
    return environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or None
