"""What lies in the channel ``hdp_runtime``: our wheel, and the script that the container starts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from hdp.contract.delivery import START, Platform
from hdp.contract.errors import EngineError
from hdp.estimator.delivery import wheel


@dataclass(frozen=True)
class Parcel:
    """The files, by name, and what they need of an image."""

    files: Mapping[str, bytes] = field(repr=False)
    platform: Platform

    @property
    def digest(self) -> str:
        """SHA-256 over names and contents, in hexadecimal: the same files have the same place on S3."""
        whole = hashlib.sha256()
        for name in sorted(self.files):
            whole.update(f"{name}\0{len(self.files[name])}\0".encode() + self.files[name])
        return whole.hexdigest()

    @property
    def size_bytes(self) -> int:
        """Sum of the files."""
        return sum(map(len, self.files.values()))


def parcel() -> Parcel:
    """Make the files. Raises EngineError where this installation has no runtime for Linux."""
    made = wheel.build()
    return Parcel({made.name: made.content, START: _start().read_bytes()}, made.platform)


def _start() -> Path:
    """The start script's source; as it is for any Python 3, it isn't imported here."""
    spec = find_spec("hdp.contract")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        script = Path(folder).parent / "runtime" / START
        if script.is_file():
            return script
    raise EngineError(f"hdp.runtime's {START} isn't installed beside hdp.contract; reinstall hdp-train")
