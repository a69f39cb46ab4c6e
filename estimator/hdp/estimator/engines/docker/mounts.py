"""What of this machine a job's containers see, and where. Pure, but for looking at manifests.

A host's tree is at ``/opt/ml``. Sources that the request names by ``file://`` are at the same path as here, read-only:
so the request, and what manifests say, hold inside too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hdp.contract.uris import local_path, scheme
from hdp.estimator.engines.local.home import JobDir
from hdp.estimator.engines.local.trees import OPT_ML

SECRET = "/run/hdp/secret"
CA_BUNDLE = "/run/hdp/ca.pem"
#: Whoever mounts over these, or above them, takes away what the image needs.
_IMAGES_OWN = (
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/opt/hdp",
    "/opt/ml",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
)


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine, in the container."""

    source: Path
    target: str
    read_only: bool = True


def of_host(folder: JobDir, training_job: Mapping[str, Any], host: str, ca_bundle: str = "") -> list[Mount]:
    """Everything that `host` sees. ca_bundle: this machine's file with certificates for S3, if there is one."""
    tree = folder.tree(host)
    found = [Mount(tree.root, str(OPT_ML), read_only=False), Mount(folder.secret, SECRET)]
    if uri := (training_job.get("CheckpointConfig") or {}).get("S3Uri"):
        found.append(Mount(local_path(uri), str(OPT_ML / "checkpoints"), read_only=False))
    if ca_bundle:
        found.append(Mount(Path(ca_bundle), CA_BUNDLE))
    sources = dict.fromkeys(path for _, path in sources_of(training_job))
    return [*found, *(Mount(path, str(path)) for path in sources if not _within(path, sources))]


def faults(training_job: Mapping[str, Any]) -> list[str]:
    """Sources that can't be mounted, a line each."""
    return [
        f"{what}: {path} can't be mounted into a container, for it would hide the image's own {hidden}; move it to a "
        "folder of its own"
        for what, path in sources_of(training_job)
        if (hidden := _hidden(path))
    ]


def sources_of(training_job: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """What in the request needs it, and a path of this machine that the hosts read."""
    code = str(training_job.get("HyperParameters", {}).get("sagemaker_submit_directory", "")).strip('"')
    if scheme(code) == "file":
        yield "the code archive", local_path(code)
    for channel in training_job.get("InputDataConfig") or ():
        source = channel.get("DataSource", {}).get("S3DataSource", {})
        if scheme(source.get("S3Uri", "")) == "file":
            for uri in (source["S3Uri"], *_prefixes(source)):
                yield f"channel {channel['ChannelName']!r}", local_path(uri)


def _prefixes(source: Mapping[str, Any]) -> Sequence[str]:
    """What a manifest says its files are below. One that can't be read is the agent's to refuse."""
    if source.get("S3DataType") != "ManifestFile":
        return ()
    try:
        first = json.loads(local_path(source["S3Uri"]).read_text(encoding="utf-8"))[0]
        prefix = str(first["prefix"])
        folder = prefix if prefix.endswith("/") else prefix.rpartition("/")[0]
        return (folder,) if scheme(folder) == "file" else ()
    except (OSError, ValueError, LookupError, TypeError):
        return ()


def _within(path: Path, others: Mapping[Path, None]) -> bool:
    return any(other in path.parents for other in others)


def _hidden(path: Path) -> str | None:
    """Which of the image's own folders `path` would hide."""
    mounted = PurePosixPath(path)
    for own in map(PurePosixPath, _IMAGES_OWN):
        if mounted == own or mounted in own.parents or (own in mounted.parents and own.name not in ("run", "opt")):
            return str(own)
    return None
