"""Builds our images from a checkout, as ``docker build -f containers/KIND/Dockerfile .`` does."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hdp.contract.errors import EngineError
from hdp.estimator.engines.docker import daemon

if TYPE_CHECKING:
    from docker import APIClient

#: Where in the checkout the Dockerfiles look for the certificates of a proxy.
CA_FILE = "containers/ca.pem"


@dataclass(frozen=True)
class Build:
    """One image to build."""

    kind: str
    tag: str
    source: Path
    """The checkout."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Of the Dockerfile."""
    ca_bundle: Path | None = None
    """Certificates that the build trusts, for a proxy that rewrites TLS; they don't get into the image."""


def build(client: APIClient, what: Build, say: Callable[[str], None]) -> str:
    """Build the image and tag it. Returns its ID. say: hears what the build says.

    Raises EngineError: no checkout, or a step failed, with the end of what it said.
    """
    dockerfile = f"containers/{what.kind}/Dockerfile"
    if not (what.source / dockerfile).is_file():
        raise EngineError(
            f"{what.source} is no checkout of hdp: it has no {dockerfile}; run this in one, or give --source"
        )
    with _certificates(what), daemon.explained(f"the image {what.tag} can't be built"):
        lines = client.build(
            path=str(what.source),
            dockerfile=dockerfile,
            tag=what.tag,
            buildargs=dict(what.arguments),
            rm=True,
            forcerm=True,
            decode=True,
            timeout=3600,
        )
        _heard(lines, what, say)
        return str(client.inspect_image(what.tag)["Id"])


def _heard(lines: Iterator[Mapping[str, str]], what: Build, say: Callable[[str], None]) -> None:
    said: list[str] = []
    for line in lines:
        text = line.get("stream", line.get("status", "")).rstrip()
        if "error" in line:
            end = "\n".join(said[-8:])
            raise EngineError(f"the image {what.tag} can't be built: {line['error'].strip()}; before, it said:\n{end}")
        if text:
            said.append(text)
            say(text)


@contextlib.contextmanager
def _certificates(what: Build) -> Iterator[None]:
    """The certificates in the checkout, for the block; a file that is there already stays."""
    target = what.source / CA_FILE
    if what.ca_bundle is None or target.exists():
        yield
        return
    try:
        shutil.copyfile(what.ca_bundle, target)
    except OSError as exc:
        raise EngineError(f"--ca-bundle: {what.ca_bundle} can't be copied to {target}: {exc.strerror}") from exc
    try:
        yield
    finally:
        target.unlink(missing_ok=True)
