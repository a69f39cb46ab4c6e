"""What the supervisor of a Docker job is given, and the names of what it makes in the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hdp.contract.files import read_json, write_json
from hdp.estimator.engines.docker.options import DockerOptions
from hdp.estimator.engines.local.home import Home, JobDir
from hdp.estimator.engines.local.localjob import Job

#: Labels of everything that a job makes in the daemon.
JOB_LABEL, HOME_LABEL, HOST_LABEL = "hdp.job", "hdp.home", "hdp.host"
#: What our images, and those made from them, have.
IMAGE_LABEL, SBOM_LABEL = "hdp.image", "hdp.sbom"


@dataclass(frozen=True)
class DockerJob(Job):
    """A job whose hosts are containers."""

    options: DockerOptions

    @property
    def image(self) -> str:
        """The image that the hosts run."""
        return str(self.training_job.get("AlgorithmSpecification", {}).get("TrainingImage", ""))

    @property
    def network(self) -> str:
        """Name of the job's network."""
        return f"hdp-{self.folder.name}"

    def container(self, host: str) -> str:
        """Name of the container of `host`; names are the daemon's, so the job's is in it."""
        return f"hdp-{self.folder.name}-{host}"


def labels_of(folder: JobDir) -> Mapping[str, str]:
    """The labels that tell whose something in the daemon is."""
    return {JOB_LABEL: folder.name, HOME_LABEL: str(folder.path.parent.parent)}


def record(folder: JobDir) -> Path:
    """The file that says which daemon has the job; there is one for Docker jobs alone."""
    return folder.path / "docker.json"


def write_record(folder: JobDir, address: str) -> None:
    """Record the daemon at `address`, for the job, and that its home uses it. Raises OSError."""
    write_json(record(folder), {"daemon": address})
    home = Home(folder.path.parent.parent)
    if address not in (known := daemons_of(home)):
        write_json(_known(home), {"daemons": sorted({*known, address})})


def daemons_of(home: Home) -> list[str]:
    """Addresses of the daemons that jobs of this home have used. Raises ContractError."""
    return list(map(str, read_json(_known(home))["daemons"])) if _known(home).exists() else []


def _known(home: Home) -> Path:
    return home.path / "docker-daemons.json"


def daemon_of(folder: JobDir) -> str | None:
    """Address of the daemon that has the job; None: its hosts are no containers. Raises ContractError."""
    return str(read_json(record(folder))["daemon"]) if record(folder).exists() else None
