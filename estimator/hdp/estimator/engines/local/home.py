"""Where the local engine keeps things: pure paths below ``$HDP_HOME``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hdp.contract import env
from hdp.contract.errors import EngineError
from hdp.contract.files import Layout


@dataclass(frozen=True)
class JobDir:
    """One job's folder. ``path`` is absolute; its last part is the job's name."""

    path: Path

    @property
    def name(self) -> str:
        """The job's name."""
        return self.path.name

    @property
    def request(self) -> Path:
        """The job request as it was submitted (JSON)."""
        return self.path / "request.json"

    @property
    def state(self) -> Path:
        """What is known about the job (JSON, see `state.JobState`)."""
        return self.path / "state.json"

    @property
    def lock(self) -> Path:
        """Whoever changes ``state.json`` holds this file's flock."""
        return self.path / "state.lock"

    @property
    def reserve(self) -> Path:
        """A block of disk that is given up when the disk is full, so that the outcome can still be recorded."""
        return self.path / "reserve"

    @property
    def final_metrics(self) -> Path:
        """The last value of each metric, once the job has ended and somebody has asked (JSON)."""
        return self.path / "final-metrics.json"

    @property
    def service(self) -> Path:
        """What was changed through the HTTP API: tags, and what UpdateTrainingJob may change (JSON)."""
        return self.path / "service.json"

    @property
    def secret(self) -> Path:
        """The job's secret (mode 0600)."""
        return self.path / "secret"

    @property
    def logs(self) -> Path:
        """Folder of the hosts' logs."""
        return self.path / "logs"

    def log(self, host: str) -> Path:
        """Log of `host`: its agent's standard output and error."""
        return self.logs / f"{host}.log"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor has to say about itself."""
        return self.path / "supervisor.log"

    @property
    def hosts(self) -> Path:
        """Folder of the hosts' trees."""
        return self.path / "hosts"

    def tree(self, host: str) -> Layout:
        """The ``/opt/ml``-shaped tree of `host`."""
        return Layout(self.hosts / host)

    @property
    def artifacts(self) -> Path:
        """Folder of ``model.tar.gz`` and ``output.tar.gz``, where they aren't copied somewhere else."""
        return self.path / "artifacts"

    @property
    def checkpoints(self) -> Path:
        """The hosts' checkpoints, where their home is S3."""
        return self.path / "checkpoints"

    @property
    def etc_hosts(self) -> Path:
        """The file that the job's hosts see as ``/etc/hosts``."""
        return self.path / "etc-hosts"


@dataclass(frozen=True)
class Home:
    """The engine's folder."""

    path: Path

    @property
    def jobs(self) -> Path:
        """Folder of the jobs."""
        return self.path / "jobs"

    @property
    def bundles(self) -> Path:
        """Folder of the code archives, named by their digest."""
        return self.path / "bundles"

    def job(self, name: str) -> JobDir:
        """Folder of the job `name`."""
        return JobDir(self.jobs / name)

    def bundle(self, digest: str) -> Path:
        """The code archive with this SHA-256 digest."""
        return self.bundles / f"{digest}.tar.gz"

    def make(self) -> None:
        """Make the folders, for this user alone. Raises EngineError where that isn't possible."""
        try:
            for folder in (self.path, self.jobs, self.bundles):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise EngineError(
                f"the local engine can't keep jobs in {self.path}: {exc.strerror or exc}; "
                f"set {env.HOME.name} to a folder that you can write to"
            ) from exc


def home_from(environ: Mapping[str, str] = os.environ) -> Home:
    """The engine's folder by ``HDP_HOME``, else ``XDG_STATE_HOME/hdp``, else ``~/.local/state/hdp``."""
    if own := environ.get(env.HOME.name):
        return Home(Path(own).expanduser().absolute())
    xdg = environ.get("XDG_STATE_HOME", "")
    base = Path(xdg) if xdg.startswith("/") else Path("~/.local/state").expanduser()
    return Home(base.absolute() / "hdp")
