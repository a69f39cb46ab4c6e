"""Our runtime as a wheel that a container can use without pip: the parts that run there, made from this installation.

The same files give the same bytes (with the same zlib): no times, sorted names. The client's own package stays here.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from hdp.contract.delivery import Platform
from hdp.contract.errors import EngineError
from hdp.estimator.delivery import elf, libraries

_DISTRIBUTION = "hdp-train"
_PARTS = ("contract", "runtime", "collectives", "torch", "tensorflow", "keras", "metrics")
_SUFFIXES = (".py", ".typed")
#: Entry points that are of use in a container.
_GROUPS = ("torch.backends", "torch.distributed.backends")
#: Makes our aliases a package of their own, so that they go before a SMDDP that the image brings.
_ALIASES = ("smdistributed/__init__.py", "smdistributed/dataparallel/__init__.py")
#: The earliest time that a zip archive can say.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Wheel:
    """A wheel, and what its libraries need."""

    name: str
    content: bytes
    platform: Platform


def build() -> Wheel:
    """The runtime's wheel. Raises EngineError where parts of it aren't installed here, or aren't for Linux."""
    root = _root()
    found = libraries.find(root)
    platform = _platform(found)
    files = {**_sources(root), **found}
    version = _version()
    info = f"hdp_train-{version}.dist-info"
    files |= {f"{info}/{name}": text.encode() for name, text in _info(version, platform).items()}
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    return Wheel(f"hdp_train-{version}-py3-none-{platform.tag}.whl", _zipped(files), platform)


def _root() -> Path:
    """The folder that has `hdp.contract`, and with it all that runs in a container."""
    spec = find_spec("hdp.contract")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))).parents[1]


def _sources(root: Path) -> dict[str, bytes]:
    missing = [part for part in _PARTS if not (root / "hdp" / part).is_dir()]
    if missing:
        raise EngineError(f"hdp.{missing[0]} isn't installed beside hdp.contract in {root}; reinstall hdp-train")
    folders = [*(root / "hdp" / part for part in _PARTS), root / "smdistributed"]
    found = [f for folder in folders for f in folder.rglob("*") if f.suffix in _SUFFIXES and f.is_file()]
    aliases = dict.fromkeys(_ALIASES, b"") if folders[-1].is_dir() else {}
    return {**aliases, **{f.relative_to(root).as_posix(): f.read_bytes() for f in found}}


def _platform(found: Mapping[str, bytes]) -> Platform:
    """What all of the libraries need."""
    needs = []
    for name, content in found.items():
        try:
            needs.append(elf.platform_of(content))
        except ValueError as exc:
            raise EngineError(f"{name} can't travel to the job's hosts: {exc}") from exc
    if len({need.machine for need in needs}) > 1:
        raise EngineError(f"hdp's libraries here are for different processors: {', '.join(map(str, needs))}")
    return max(needs, key=lambda need: need.glibc)


def _version() -> str:
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0"


def _info(version: str, platform: Platform) -> dict[str, str]:
    """What describes the distribution, so that its entry points are found."""
    return {
        "METADATA": f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: {version}\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: hdp\nRoot-Is-Purelib: false\nTag: py3-none-{platform.tag}\n",
        "entry_points.txt": "\n".join(_entry_points()),
    }


def _entry_points() -> Iterator[str]:
    try:
        text = metadata.distribution(_DISTRIBUTION).read_text("entry_points.txt")
    except metadata.PackageNotFoundError:
        text = None
    parser = ConfigParser(delimiters="=")
    parser.read_string(text or "")
    for group in _GROUPS:
        if parser.has_section(group):
            yield f"[{group}]"
            yield from (f"{name} = {value}" for name, value in parser.items(group))
            yield ""


def _record(files: Mapping[str, bytes], own_name: str) -> bytes:
    lines = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(files[name])}\n")
    return "".join([*lines, f"{own_name},,\n"]).encode()


def _zipped(files: Mapping[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _NO_TIME)
            entry.external_attr, entry.create_system = 0o100644 << 16, 3
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 6)
    return raw.getvalue()
