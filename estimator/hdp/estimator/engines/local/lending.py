"""hdp for an interpreter that hasn't got it: a folder for its PYTHONPATH with what hosts run, without the client.

So `engine_options` may name any Python with the job's framework in it, however old its other packages are.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from hdp.contract import env
from hdp.contract.errors import EngineError

#: What hosts run.
_PACKAGES = (
    "hdp.contract",
    "hdp.runtime",
    "hdp.collectives",
    "hdp.torch",
    "hdp.tensorflow",
    "hdp.keras",
    "hdp.metrics",
    "smdistributed",
)
_LIBRARIES = {
    env.CORE_LIBRARY: ("hdp.collectives", "libhdp_core.so"),
    env.TENSORFLOW_LIBRARY: ("hdp.tensorflow", "libhdp_tensorflow.so"),
}


def lend(python: str, folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ`, with what lets `python` find hdp; unchanged where it does by itself. Makes `folder` where it doesn't.

    A script in a Python's place is left alone: it may set up the environment itself, and do more than run Python.
    Raises EngineError: it isn't a Python that can run a host.
    """
    if python == sys.executable or _is_script(python) or _runs(python, environ.get("PYTHONPATH", "")):
        return dict(environ)
    for package in _PACKAGES:
        link = folder.joinpath(*package.split("."))
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        places = sorted(_places(package), key=lambda place: not (place / "__init__.py").exists())
        if places and not link.is_symlink():
            link.symlink_to(places[0])  # the others, of an editable install, have libraries alone
    paths = [str(folder), *filter(None, [environ.get("PYTHONPATH")])]
    lent = {**environ, "PYTHONPATH": os.pathsep.join(paths)}
    for variable, (package, name) in _LIBRARIES.items():
        found = next((place / name for place in _places(package) if (place / name).exists()), None)
        if found is not None:
            lent.setdefault(variable.name, str(found))
    if not _runs(python, lent["PYTHONPATH"]):
        raise EngineError(
            f"{python} can't run a host: it needs Python 3.10 or newer with NumPy; try `{python} -c 'import numpy'`"
        )
    return lent


def faults(python: str, environ: Mapping[str, str]) -> list[str]:
    """Why `python` can't run a job's hosts, if it can't; before anything is started."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            lend(python, Path(folder), environ)
    except EngineError as exc:
        return [f"engine_options.python: {exc}"]
    return []


def _is_script(python: str) -> bool:
    with Path(python).open("rb") as file:
        return file.read(2) == b"#!"


@functools.cache
def _runs(python: str, path: str) -> bool:
    """Whether `python` can run a host with `path` as PYTHONPATH. Asked once for all hosts of a job."""
    command = [python, "-c", "import hdp.runtime.launch.agent, hdp.collectives.server, numpy"]
    environ = {**os.environ, "PYTHONPATH": path}
    try:
        return subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _places(package: str) -> Iterator[Path]:
    spec = find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place)
