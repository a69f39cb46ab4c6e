"""Installs a job's ``requirements.txt`` into an overlay of its own, never into the user's environment.

The overlay is a virtual environment without pip, below the host's root. A ``.pth`` file in it leads to the packages of
the interpreter that runs the agent, so pip sees what is installed already and adds only what is missing; a version
that differs is installed in the overlay, before the other one on the path. Ranks get the overlay by PYTHONPATH.
"""

from __future__ import annotations

import logging
import os
import site
import subprocess
import sys
import venv
from collections import deque
from importlib import metadata, util
from pathlib import Path

from hdp.contract.errors import LaunchError
from hdp.contract.files import Layout
from hdp.runtime.launch.linux import Children

log = logging.getLogger(__name__)

#: First pip that installs into another interpreter's environment (``pip --python``).
_PIP_WITH_PYTHON = (22, 3)


def install(requirements: Path, layout: Layout, children: Children) -> None:
    """Make the host's overlay and install `requirements` in it. Raises LaunchError with pip's last lines."""
    overlay = layout.overlay
    log.info("requirements: installing %s into %s", requirements, overlay)
    own_pip = _pip_version() < _PIP_WITH_PYTHON
    if own_pip and util.find_spec("ensurepip") is None:
        oldest = ".".join(map(str, _PIP_WITH_PYTHON))
        raise LaunchError(
            f"{requirements} can't be installed: {sys.executable} has no pip {oldest} or newer, and no ensurepip; "
            "install what it lists in the image, or send it with the code (dependencies)"
        )
    try:
        venv.create(overlay, clear=True, symlinks=True, with_pip=own_pip)
    except (OSError, subprocess.CalledProcessError) as exc:
        raise LaunchError(f"the overlay {overlay} for {requirements} can't be made: {exc}; is the disk full?") from exc
    _lead_to_interpreter(layout.overlay_packages)
    python = str(overlay / "bin" / "python")
    pip = [python, "-m", "pip"] if own_pip else [sys.executable, "-m", "pip", "--python", python]
    command = [*pip, "install", "--no-input", "--disable-pip-version-check", "-r", requirements.name]
    _run(command, requirements, children)


def _lead_to_interpreter(packages: Path) -> None:
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    # addsitedir, not a plain path: .pth files in there count too (editable installs, such as ours in development).
    lines = [f"import site; site.addsitedir({folder!r})" for folder in folders if Path(folder).is_dir()]
    (packages / "hdp-interpreter.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


#: How pip's lines begin that don't say why it failed; they'd fill the little room that a failure's reason has.
_CHATTER = ("Looking in ", "Collecting ", "Using cached ", "Downloading ", "Requirement already ", "WARNING: Retrying")


def _run(command: list[str], requirements: Path, children: Children) -> None:
    tail: deque[str] = deque(maxlen=20)
    process = children.spawn_tethered(
        command, {**os.environ, "PIP_NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}, cwd=requirements.parent,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as lines:
        for raw in lines:
            text = raw.decode("utf-8", "replace").rstrip()
            if text:
                if not text.lstrip().startswith(_CHATTER):
                    tail.append(text)
                log.info("pip: %s", text)
    if children.wait(process) != 0:
        raise LaunchError(
            f"pip could not install {requirements} (exit code {process.returncode}); its last lines:\n"
            + "\n".join(tail)
        )


def _pip_version() -> tuple[int, ...]:
    """Version of the interpreter's pip; (0,) where it has none."""
    if util.find_spec("pip") is None:
        return (0,)
    return tuple(int(part) for part in metadata.version("pip").split(".")[:2] if part.isdigit())
