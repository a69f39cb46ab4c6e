"""Notebooks executed on small settings, each once, for the tests of what they show and of the site that has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from notebooks_support import DOCKER, ROOT, alone_with, common


@pytest.fixture(scope="session")
def executed(tmp_path_factory, request) -> Callable[[str], Path]:
    """Gives a notebook's file with its outputs by the notebook's name; fails with what its cell raised.

    Of the processes that run tests beside each other, the first that asks executes it, and the others wait for that.
    """
    for module in ("nbclient", "ipykernel"):
        pytest.importorskip(module, reason=f"NO {module}, so no notebook is executed: pip install -e '.[docs]'")
    folder = common(tmp_path_factory, "executed")

    def get(name: str) -> Path:
        with alone_with(folder / f"{name}.lock"):
            record = folder / f"{name}.json"
            if not record.exists():
                environment = {**os.environ, "HDP_HOME": str(common(tmp_path_factory, "notebooks-home"))}
                if name == DOCKER:
                    environment |= _docker(request)
                record.write_text(json.dumps(_execute(name, folder, environment)))
        status, said = json.loads(record.read_text())
        assert status == 0, said
        return folder / "notebooks" / f"{name}.ipynb"

    return get


def _execute(name: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    command = [sys.executable, "tools/notebooks.py", "--small", "--to", str(folder / "notebooks"), name]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=900)
    return done.returncode, done.stdout + done.stderr


def _docker(request: pytest.FixtureRequest) -> dict[str, str]:
    """Where the daemon is, and the checkout that has a wheel; where there's no daemon, none that answers."""
    try:
        daemon = request.getfixturevalue("daemon")
    except pytest.skip.Exception:
        return {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    return {"DOCKER_HOST": daemon, "NOTEBOOK_CHECKOUT": str(request.getfixturevalue("context"))}
