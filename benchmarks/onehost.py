"""This machine as the only host: what `hdp.runtime.emulation.Network` is, without a network."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from processes import die_with_parent


@dataclass(frozen=True)
class Here:
    """This machine."""

    name: str = "localhost"
    address: str = "127.0.0.1"
    interface: str = "lo"


class OneHost:
    """One host whose processes are plain processes of this machine."""

    def __init__(self) -> None:
        self.hosts = (Here(),)

    def popen(self, host: int, argv: Sequence[str], **keywords: Any) -> subprocess.Popen[Any]:
        """Start a process on host 0, the only one; it is killed when the calling thread ends."""
        assert host == 0
        # The function is one system call, which nothing that another thread does at this moment can hold up.
        return subprocess.Popen(argv, preexec_fn=die_with_parent, **keywords)  # noqa: PLW1509

    def close(self) -> None:
        """Nothing was made."""

    def __enter__(self) -> OneHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
