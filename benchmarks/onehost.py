"""This machine as the only host, or as several by their addresses: as `hdp.runtime.emulation.Network`, without one."""

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
        self.hosts: tuple[Here, ...] = (Here(),)

    def popen(self, host: int, argv: Sequence[str], **keywords: Any) -> subprocess.Popen[Any]:
        """Start a process on a host; it is killed when the calling thread ends."""
        assert 0 <= host < len(self.hosts)
        # The function is one system call, which nothing that another thread does at this moment can hold up.
        return subprocess.Popen(argv, preexec_fn=die_with_parent, **keywords)  # noqa: PLW1509

    def close(self) -> None:
        """Nothing was made."""

    def __enter__(self) -> OneHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Loopback(OneHost):
    """So many hosts that are nothing but addresses of this machine's loopback interface, whose rate nothing limits."""

    def __init__(self, hosts: int) -> None:
        super().__init__()
        self.hosts = tuple(Here(f"host-{i}", f"127.0.0.{i + 1}") for i in range(hosts))
