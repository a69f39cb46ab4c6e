"""The ``/opt/ml`` layout of a training container (source: SageMaker's training toolkit, 5.1.4).

Everything in it is a path below one root, so that the same code serves a container (``/opt/ml``), a host that the
local engine emulates, and a test.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdp.contract.errors import ContractError

#: First bytes of ``output/failure`` that a service keeps as FailureReason; we never write more characters.
FAILURE_MAX_CHARS = 1024

CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: Longest path of a folder for temporary things in which a Unix socket's name still fits into the kernel's 108 bytes.
_SHORT_BYTES = 60
#: What `whole_file` writes to before it is whole begins with this.
PART_PREFIX = ".hdp-part-"
#: The group of all hosts where a job names no groups, as SageMaker calls it.
ONE_GROUP = "homogeneousCluster"
JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


@dataclass(frozen=True)
class Layout:
    """Where things are below ``root`` (``/opt/ml`` in a container)."""

    root: Path

    @property
    def config(self) -> Path:
        """Folder of the three contract files."""
        return self.root / "input" / "config"

    @property
    def hyperparameters(self) -> Path:
        """``hyperparameters.json``: string to string."""
        return self.config / "hyperparameters.json"

    @property
    def resourceconfig(self) -> Path:
        """``resourceconfig.json``: current_host, hosts, network_interface_name, instance types and groups."""
        return self.config / "resourceconfig.json"

    @property
    def inputdataconfig(self) -> Path:
        """``inputdataconfig.json``: channel name to its mode and content type."""
        return self.config / "inputdataconfig.json"

    @property
    def channel_sources(self) -> Path:
        """Where an engine lists the channels that our agent has to provide: ``{"channels": InputDataConfig}``.

        Absent where a service provides them itself.
        """
        return self.config / "hdp-channels.json"

    @property
    def data(self) -> Path:
        """Folder with one entry a channel."""
        return self.root / "input" / "data"

    def channel(self, name: str) -> Path:
        """Folder of the channel `name`."""
        return self.data / name

    @property
    def code(self) -> Path:
        """The user's code, unpacked."""
        return self.root / "code"

    @property
    def overlay(self) -> Path:
        """The virtual environment that gets the code's ``requirements.txt``."""
        return self.root / "overlay"

    @property
    def overlay_packages(self) -> Path:
        """The folder of installed packages in `overlay`, for the Python that runs this."""
        return self.overlay / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    @property
    def model(self) -> Path:
        """What becomes ``model.tar.gz``."""
        return self.root / "model"

    @property
    def output(self) -> Path:
        """Failure file and output data."""
        return self.root / "output"

    @property
    def output_data(self) -> Path:
        """What becomes ``output.tar.gz``."""
        return self.output / "data"

    @property
    def failure(self) -> Path:
        """Reason of a failure as text, at most `FAILURE_MAX_CHARS` characters."""
        return self.output / "failure"

    @property
    def report(self) -> Path:
        """Our structured report on how this host's ranks ended (JSON; see `hdp.contract.outcome`)."""
        return self.output / "hdp-report.json"

    @property
    def started(self) -> Path:
        """An empty file, made when this host's channels are there and its ranks are about to start."""
        return self.output / "hdp-started"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints; a service keeps this folder in step with CheckpointConfig.S3Uri."""
        return self.root / "checkpoints"


def is_channel_name(name: object) -> bool:
    """Whether `name` can be a channel's: it becomes a folder."""
    return isinstance(name, str) and CHANNEL_NAME.fullmatch(name) is not None and name not in (".", "..")


def host_names(num_hosts: int) -> tuple[str, ...]:
    """algo-1 to algo-N, as SageMaker names a job's hosts."""
    return tuple(f"algo-{i}" for i in range(1, num_hosts + 1))


def new_run_folder() -> Path:
    """A name that nobody has yet for a folder of Unix sockets: in TMPDIR, or in /tmp where TMPDIR is a long path.

    Nothing is made. Whoever makes it does so with mode 0700 and fails where it exists.
    """
    usual = tempfile.gettempdir()
    return Path(usual if len(os.fsencode(usual)) <= _SHORT_BYTES else "/tmp", f"hdp-{secrets.token_hex(6)}")


@contextlib.contextmanager
def whole_file(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """Yield an empty file beside `path` to write to; it becomes `path` when the block ends well, and goes otherwise.

    So a reader sees the old or the new file, never a part of one.
    """
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=PART_PREFIX)
    os.close(fd)
    part = Path(name)
    try:
        yield part
        part.chmod(mode)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, content: str | bytes, mode: int = 0o600) -> None:
    """Write `content` (text as UTF-8) to `path`, whole or not at all. Raises OSError."""
    with whole_file(path, mode) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ContractError that names the file and what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ContractError(f"{path} is missing; expected a JSON object in it") from exc
    except (OSError, ValueError) as exc:
        raise ContractError(f"{path} can't be read as JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ContractError(f"{path} holds a {type(value).__name__}, expected an object")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` as JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=1, sort_keys=True) + "\n")
