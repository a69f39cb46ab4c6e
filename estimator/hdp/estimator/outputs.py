"""Files that a job has left in its output: while it runs in its hosts' trees, then in its output archive."""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from hdp.contract import uris
from hdp.contract.errors import EngineError

#: Links that a job measured (HDP_TOPOLOGY=1), and what its ranks and servers traced (HDP_TIMELINE=1).
TOPOLOGY = "hdp-topology.json"
TIMELINES = "hdp-timeline-*.json"

Opened = list[tuple[str, IO[bytes]]]
"""Names of files, and the files, open for reading."""


def opened(answer: Mapping[str, Any], pattern: str, stack: contextlib.ExitStack) -> Opened:
    """The files that match `pattern`, in the order of hosts and names; `stack` closes them. Empty: there is none.

    answer: the job's description. Raises EngineError: the archive isn't on this machine, or can't be read.
    """
    trees = [Path(host["tree"], "output", "data") for host in answer.get("Hdp", {}).get("hosts", ()) if "tree" in host]
    found = [path for tree in trees for path in sorted(tree.glob(pattern))]
    if found:
        return [(path.name, stack.enter_context(path.open("rb"))) for path in found]
    archive = answer.get("Hdp", {}).get("output_artifacts")
    return _in_archive(archive, pattern, stack) if archive else []


def _in_archive(uri: str, pattern: str, stack: contextlib.ExitStack) -> Opened:
    if uris.scheme(uri) != "file":
        raise EngineError(f"{pattern} is in {uri}: download and unpack that")
    try:
        archive = stack.enter_context(tarfile.open(uris.local_path(uri)))  # noqa: SIM115 (the stack closes it)
        members = [m for m in archive.getmembers() if m.isfile() and PurePosixPath(m.name).match(pattern)]
        files = [(m.name, archive.extractfile(m)) for m in members]
    except (OSError, tarfile.TarError) as exc:
        raise EngineError(f"{uri} can't be read: {exc}") from exc
    return [(name, file) for name, file in files if file is not None]


def topology(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """The links that the job measured; None: it kept none. Raises EngineError, as `opened` does."""
    with contextlib.ExitStack() as stack:
        for name, file in opened(answer, TOPOLOGY, stack):
            try:
                found: dict[str, Any] = json.loads(file.read())
            except ValueError as exc:
                raise EngineError(f"{name} can't be read: {exc}") from exc
            return found
    return None
