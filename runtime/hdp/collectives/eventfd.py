"""eventfd(2), which `os` has since Python 3.10 only."""

from __future__ import annotations

import ctypes
import os
import sys

_CLOEXEC, _NONBLOCK = os.O_CLOEXEC, os.O_NONBLOCK  # the kernel's header defines them as these
_ONE = (1).to_bytes(8, sys.byteorder)


def eventfd(*, blocking: bool) -> int:
    """A new one: whoever reads it waits until somebody rings. Raises OSError."""
    fd: int = ctypes.CDLL(None, use_errno=True).eventfd(0, _CLOEXEC | (0 if blocking else _NONBLOCK))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "eventfd")
    return fd


def ring(fd: int) -> None:
    """Wake whoever waits for `fd`. To be called from a signal handler too."""
    os.write(fd, _ONE)
