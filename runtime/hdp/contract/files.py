"""The ``/opt/ml`` layout of a training container (source: SageMaker's training toolkit, 5.1.4).

Everything in it is a path below one root, so that the same code serves a container (``/opt/ml``), a host that the
local engine emulates, and a test.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdp.contract.errors import ContractError

#: First bytes of ``output/failure`` that a service keeps as FailureReason; we never write more characters.
FAILURE_MAX_CHARS = 1024

CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
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
    def checkpoints(self) -> Path:
        """Checkpoints; a service keeps this folder in step with CheckpointConfig.S3Uri."""
        return self.root / "checkpoints"


def write_atomic(path: Path, text: str, mode: int = 0o600) -> None:
    """Write `text` to `path` so that a reader sees the old or the new file, never a part of one."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ContractError that names the file and what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ContractError(f"{path} is missing; a training host needs it before the agent starts") from exc
    except (OSError, ValueError) as exc:
        raise ContractError(f"{path} can't be read as JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ContractError(f"{path} holds a {type(value).__name__}, expected an object")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` as JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=1, sort_keys=True) + "\n")
