"""Where the libraries come from that travel with our runtime: the core, and TensorFlow's operations.

The first of these that is there:

1. the wheel that HDP_RUNTIME_WHEEL names (on a Mac, or for hosts of another processor);
2. the file that HDP_CORE_LIBRARY names;
3. in a checkout, the wheel in ``dist/`` that ``make wheel`` has built for old systems, unless the sources are newer;
4. what is installed beside `hdp.collectives`, which in a checkout was built for this very machine.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from hdp.contract import env
from hdp.contract.errors import EngineError

CORE = "hdp/collectives/libhdp_core.so"
TENSORFLOW = "hdp/tensorflow/libhdp_tensorflow.so"
_BOTH = {CORE: env.CORE_LIBRARY, TENSORFLOW: env.TENSORFLOW_LIBRARY}


def find(root: Path, environ: Mapping[str, str] = os.environ) -> dict[str, bytes]:
    """The libraries, by their place in a wheel; TensorFlow's may be missing. Raises EngineError.

    root: the folder that has our packages.
    """
    chosen = environ.get(env.RUNTIME_WHEEL.name)
    if chosen:
        return _in_wheel(Path(chosen), env.RUNTIME_WHEEL.name)
    built = None if environ.get(env.CORE_LIBRARY.name) else _built(root.parent)
    found = _in_wheel(built, "dist") if built else _installed(root, environ)
    if CORE in found:
        return found
    raise EngineError(
        f"hdp's core isn't installed here, so it can't travel to the job's hosts; name a wheel of hdp for Linux in "
        f"{env.RUNTIME_WHEEL.name}, or have it in the image and say engine_options={{'runtime': 'image'}}"
    )


def _in_wheel(wheel: Path, where: str) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = {name: archive.read(name) for name in _BOTH if name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as exc:
        raise EngineError(f"{where}: {wheel} can't be read as a wheel: {exc}") from exc
    if CORE not in found:
        raise EngineError(f"{where}: {wheel} has no {CORE}; expected a wheel of hdp for Linux")
    return found


def _built(checkout: Path) -> Path | None:
    """The newest wheel of a checkout's ``dist/`` whose libraries are those of its sources; None: there is none."""
    sources = [f for f in (checkout / "runtime" / "csrc").rglob("*") if f.is_file()]
    wheels = sorted((checkout / "dist").glob("hdp_train-*-manylinux_*.whl"), key=_changed) if sources else []
    return wheels[-1] if wheels and _changed(wheels[-1]) >= max(map(_changed, sources)) else None


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def _installed(root: Path, environ: Mapping[str, str]) -> dict[str, bytes]:
    """What a variable names, or is beside the packages."""
    found: dict[str, bytes] = {}
    for name, variable in _BOTH.items():
        chosen = environ.get(variable.name)
        folders = [root / Path(name).parent, *_folders(name)]
        places = [Path(chosen)] if chosen else [folder / Path(name).name for folder in folders]
        for place in filter(Path.is_file, places):
            found.setdefault(name, place.read_bytes())
    return found


def _folders(name: str) -> list[Path]:
    """The folders of the library's package; an editable install has two. Imports nothing."""
    spec = find_spec(".".join(Path(name).parent.parts))
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
