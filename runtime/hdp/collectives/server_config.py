"""What a server is told at its start, see `hdp.collectives.server`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdp.collectives import library, timeline
from hdp.collectives.world import GPU_SLOTS, SLOT_BYTES, SLOTS, World
from hdp.contract import env
from hdp.contract.errors import InvalidCollective

_LEAST_SLOTS, _MOST_SLOTS = 2, 256
#: It's there where NVIDIA's driver is.
_NVIDIA = Path("/dev/nvidiactl")


@dataclass(frozen=True)
class Config:
    """Configuration of a server; what is in it says `hdp.collectives.server`."""

    host_index: int
    world: World
    socket: str
    secret_file: str
    start_timeout: float
    once: bool = False
    listen_fd: int | None = None
    slots: int = SLOTS
    slot_bytes: int = SLOT_BYTES
    encrypt: bool = False
    timeline_dir: str | None = None

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Config:
        """Read the configuration that a launcher wrote."""
        return Config(
            host_index=value["host_index"],
            world=World.from_json(value["hosts"], value.get("port", 0)),
            socket=value["socket"],
            secret_file=value["secret_file"],
            start_timeout=float(value.get("start_timeout_seconds", 600)),
            once=bool(value.get("once", False)),
            listen_fd=value.get("listen_fd"),
            slots=int(value.get("slots") or slots_here()),
            slot_bytes=int(value.get("slot_bytes", SLOT_BYTES)),
            timeline_dir=_timeline_dir(value.get("output_dir")),
            encrypt=bool(value.get("encrypt", os.environ.get(env.ENCRYPT.name, env.ENCRYPT.default) == "1")),
        )

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What all servers of a job must agree on."""
        return {
            "abi": library.ABI_VERSION,
            "slots": self.slots,
            "slot_bytes": self.slot_bytes,
            "sizes": self.world.local_sizes,
            "encrypt": self.encrypt,
        }


def slots_here(environ: Mapping[str, str] = os.environ) -> int:
    """Chunks in transfer at once, where nobody says. Raises InvalidCollective where $HDP_SLOTS is no such number."""
    text = environ.get(env.SLOTS.name) or env.SLOTS.default
    if not text:
        return GPU_SLOTS if _NVIDIA.exists() else SLOTS
    if not text.isascii() or not text.isdigit() or not _LEAST_SLOTS <= int(text) <= _MOST_SLOTS:
        raise InvalidCollective(
            f"${env.SLOTS.name} is {text!r}; expected a whole number from {_LEAST_SLOTS} to {_MOST_SLOTS}"
        )
    return int(text)


def _timeline_dir(output: str | None) -> str | None:
    """Where this host's timeline goes; None: there is none. output: the job's folder, which the agent knows."""
    folder = timeline.folder_of({**os.environ, timeline.OUTPUT: output} if output else os.environ)
    return None if folder is None else str(folder)
