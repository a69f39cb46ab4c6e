"""Which OpenSSL the core loads for encryption between hosts: the one that Python itself uses, where that is a library.

Two different OpenSSLs in one process can be told apart by the dynamic linker, but one is simpler, and it is the one
that the machine's owner keeps up to date.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

MAPS = Path("/proc/self/maps")


def libssl_path() -> str | None:
    """Where the libssl is that Python's ``_ssl`` uses.

    None: there is none to be loaded by others, because this Python has no ``ssl`` or has OpenSSL built in. The core
    then looks for one by the usual names.
    """
    try:
        import _ssl
    except ImportError:
        return None
    file = getattr(_ssl, "__file__", None)
    if file is None:
        return None
    try:
        function = ctypes.CDLL(file).SSL_CTX_new  # searched for in what _ssl is linked with
        address = ctypes.cast(function, ctypes.c_void_p).value
        return mapped_libssl(MAPS.read_text(), address or 0)
    except (OSError, AttributeError):
        return None


def mapped_libssl(maps: str, address: int) -> str | None:
    """The file that is mapped at `address`, where it is a libssl that still exists.

    maps: the text of ``/proc/<pid>/maps``.
    """
    for line in maps.splitlines():
        span, _, rest = line.partition(" ")
        first, _, last = span.partition("-")
        if int(first, 16) <= address < int(last, 16):
            fields = rest.split(maxsplit=4)  # permissions, offset, device, inode, path
            path = Path(fields[4]) if len(fields) == 5 else Path()
            return str(path) if path.name.startswith("libssl") and path.exists() else None
    return None
