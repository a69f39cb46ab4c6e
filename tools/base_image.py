"""Make a base image from this machine's own Python, for where no image can be pulled.

    python tools/base_image.py [--tag hdp-base] [--with torch ...]

The image has this interpreter at /usr/local, the C libraries that it needs, a shell with the usual small programs, and
the packages of this environment that are asked for, with all that they need. It takes seconds and downloads nothing.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import docker
from packaging.requirements import Requirement

PROGRAMS = (
    "sh cat cp mv ln ls mkdir rm rmdir chmod chown id env sleep true false touch head tail df dd find sort stat grep "
    "sed basename dirname uname tar"
)
#: What hosts run needs; the rest of hdp-train's dependencies is for the client, and small.
PACKAGES = ("pip", "setuptools", "wheel", "boto3", "numpy", "pydantic", "rich", "typer", "obstore")
LEFT_OUT = re.compile(r"(^|/)(test|idlelib|turtledemo|lib2to3)(/|$)|\.a$|^torch/(include/|bin/(?!torch_shm_manager))")
#: Of the C library and the compiler's, what packages from PyPI may be linked to.
LIBRARIES = (
    "libutil.so.1 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 libnss_dns.so.2 libnss_files.so.2 libanl.so.1 "
    "libcrypt.so.1 libz.so.1 libgcc_s.so.1 libstdc++.so.6"
)
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
LINKS = {"bin": "usr/bin", "usr/local/bin/python3": "python", "usr/bin/python3": "/usr/local/bin/python"}
ACCOUNTS = {"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n"}


def main() -> None:
    """Build the image and say what it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", default="hdp-base")
    parser.add_argument("--with", dest="packages", nargs="*", default=["torch"], help="packages of this environment")
    args = parser.parse_args()
    print(make(args.tag, args.packages))


def make(tag: str, packages: Iterable[str]) -> str:
    """Import the image as `tag`. Returns its ID."""
    client = docker.from_env(timeout=600)
    files = dict(_files(packages))
    reader, writer = _pipe()
    thread = threading.Thread(target=_write, args=(files, writer))
    thread.start()
    try:
        changes = ["ENV PATH=/usr/local/bin:/usr/bin:/bin", "ENV LANG=C.UTF-8"]
        client.api.import_image_from_stream(reader, repository=tag, tag="latest", changes=changes)
    finally:
        reader.close()
        thread.join()
    return str(client.images.get(tag).id)


def _pipe() -> tuple[io.BufferedReader, io.BufferedWriter]:
    import os

    readable, writable = os.pipe()
    return os.fdopen(readable, "rb"), os.fdopen(writable, "wb")


def _write(files: dict[str, Path], out: io.BufferedWriter) -> None:
    with out, tarfile.open(fileobj=out, mode="w|") as archive:
        for folder in ("tmp", "root", "proc", "sys", "dev", "usr/bin", "var/tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder.endswith("tmp") else 0o755
            archive.addfile(entry)
        for name, target in {
            "bin": "usr/bin",
            "usr/local/bin/python3": "python",
            "usr/bin/python3": "/usr/local/bin/python",
        }.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for name, text in ACCOUNTS.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
        for name, path in files.items():
            archive.add(path.resolve(), name, recursive=False, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode |= 0o444 | (0o111 if entry.mode & 0o100 else 0)
    return entry


def _files(packages: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Name in the image, and file on this machine."""
    found: dict[str, Path] = {}
    programs = [Path(path) for name in PROGRAMS.split() if (path := shutil.which(name, path="/usr/bin:/bin"))]
    found |= {f"usr/bin/{path.name}": path for path in programs}
    found |= dict(_interpreter())
    for name in _closure([*PACKAGES, *packages]):
        found |= dict(_package(name))
    found[CERTIFICATES.lstrip("/")] = Path(CERTIFICATES)
    binaries = [
        path
        for name, path in found.items()
        if name.startswith("usr/bin/") or ".so" in path.name or name.endswith("bin/python")
    ]
    own = {path.name for path in found.values()}
    for library in _libraries(binaries):
        if library.name not in own:
            found[str(library).lstrip("/")] = library
    yield from found.items()


def _interpreter() -> Iterator[tuple[str, Path]]:
    base = Path(sys.base_prefix)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    yield "usr/local/bin/python", Path(sys.executable).resolve()
    for path in base.glob("lib/libpython*.so*"):
        yield f"usr/local/lib/{path.name}", path
        yield f"usr/lib/{path.name}", path
    library = Path(sysconfig.get_path("stdlib"))
    for path in library.rglob("*"):
        relative = path.relative_to(library).as_posix()
        if path.is_file() and not relative.startswith("site-packages/") and not LEFT_OUT.search(relative):
            yield f"usr/local/lib/{version}/{relative}", path


def _closure(names: Iterable[str]) -> list[str]:
    """`names` and what they require, as far as it is installed here."""
    todo, seen = list(names), {}
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in seen:
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        seen[name] = found
        wanted = map(Requirement, found.requires or ())
        todo += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    return list(seen)


def _package(name: str) -> Iterator[tuple[str, Path]]:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for file in distribution(name).files or ():
        path = Path(str(file.locate()))
        relative = file.as_posix()
        if not relative.startswith("..") and path.is_file() and not LEFT_OUT.search(relative):
            yield f"usr/local/lib/{version}/site-packages/{relative}", path


def _libraries(binaries: Iterable[Path]) -> list[Path]:
    """The C libraries of the machine that these programs and libraries are linked to."""
    said = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    found = {Path(match[1]) for match in re.finditer(r"(?:=> |^\s+)(/\S+) \(0x", said, re.MULTILINE)}
    folders = {path.parent for path in found}
    found |= {folder / name for folder in folders for name in LIBRARIES.split() if (folder / name).exists()}
    return sorted(path for path in found if str(path).startswith(("/lib", "/usr/lib")))


if __name__ == "__main__":
    main()
