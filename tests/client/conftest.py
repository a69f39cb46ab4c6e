"""A user's folder, a home for the local engine that nobody may touch, and a small engine that only remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from hdp.estimator.engines.base import Capabilities, JobRequest, LogLine, LogPage

ROLE = "arn:aws:iam::123456789012:role/Trainer"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/train:1"


class MemoryEngine:
    """Keeps what it is given, in order; every job has completed at once."""

    name = "memory"

    def __init__(self, capabilities: Capabilities | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.requests: dict[str, JobRequest] = {}
        self.bundles: dict[str, bytes] = {}
        self._capabilities = capabilities or Capabilities(uri_schemes=("file", "s3"))

    def capabilities(
        self, training_job: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
    ) -> Capabilities:
        return self._capabilities

    def validate_options(self, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[str]]:
        return {"speed": 1, **options}, [f"engine option {k!r} is unknown" for k in options if k != "speed"]

    def bundle_uri(self, digest: str, base: str = "") -> str:
        return f"file:///bundles/{digest}.tar.gz"

    def put_bundle(self, digest: str, archive: bytes, base: str = "", key_id: str | None = None) -> str:
        self.calls.append(("put_bundle", digest))
        self.bundles[digest] = archive
        return self.bundle_uri(digest)

    def submit(self, request: JobRequest) -> None:
        self.calls.append(("submit", request.name))
        self.requests[request.name] = request

    def describe(self, name: str) -> dict[str, Any]:
        now = datetime.now(timezone.utc)
        step = {"Status": "Completed", "StatusMessage": "done", "StartTime": now, "EndTime": now}
        return {
            "TrainingJobName": name,
            "TrainingJobStatus": "Completed",
            "SecondaryStatus": "Completed",
            "SecondaryStatusTransitions": [step],
            "ModelArtifacts": {"S3ModelArtifacts": f"file:///models/{name}.tar.gz"},
        }

    def logs(self, name: str, cursor: Mapping[str, int]) -> LogPage:
        lines = [] if cursor else [LogLine(0.0, "algo-1", 0, "hello from rank 0")]
        return LogPage(lines, {"algo-1": 1})

    def stop(self, name: str) -> None:
        self.calls.append(("stop", name))

    def list(self) -> Sequence[dict[str, Any]]:
        return [self.describe(n) for n in self.requests]


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the local engine would keep jobs; doesn't exist yet."""
    path = tmp_path / "home"
    monkeypatch.setenv("HDP_HOME", str(path))
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with train.py and data/ in it; no region in the environment."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    return folder
