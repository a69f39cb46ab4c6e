"""Helpers, most of other libraries, that tidy up after processes that were killed: they must be the last to be killed.

``multiprocessing`` (its spawn and forkserver methods, and ``shared_memory``) and ``torch.multiprocessing`` have
semaphores and memory with names in ``/dev/shm``. A process of theirs watches a pipe: when all who hold it have ended,
it removes the names, and ends itself. Killed with the others, it would leave them for ever. So would a FastFile
channel's mount process its mount, where the host has no mount namespace of its own.
"""

from __future__ import annotations

from pathlib import Path

#: What a helper has to tidy up takes milliseconds, once the others are gone.
TIDY_SECONDS = 1.0
_RESOURCE_TRACKER = b"from multiprocessing.resource_tracker import main"
_TORCH_SHM_MANAGER = b"/torch_shm_manager"
_MOUNT_PROCESS = b"hdp.runtime.channels.fastfile.process"


def is_tracker(pid: int) -> bool:
    """Whether the process is such a helper. One that is gone isn't."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    known = (_RESOURCE_TRACKER, _MOUNT_PROCESS)
    return arguments[0].endswith(_TORCH_SHM_MANAGER) or any(a.startswith(known) for a in arguments)
