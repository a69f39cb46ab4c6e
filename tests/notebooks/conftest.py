"""Notebooks executed on small settings, each once, for the tests of what they show and of the site that has them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from notebooks_support import ROOT


@pytest.fixture(scope="session")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives a notebook's file with its outputs by the notebook's name; fails with what its cell raised."""
    for module in ("nbclient", "ipykernel"):
        pytest.importorskip(module, reason=f"there is no {module}: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("executed")
    home = tmp_path_factory.mktemp("home")
    done: dict[str, subprocess.CompletedProcess[str]] = {}

    def get(name: str) -> Path:
        if name not in done:
            command = [sys.executable, "tools/notebooks.py", "--small", "--to", str(folder), name]
            environment = {**os.environ, "HDP_HOME": str(home)}
            done[name] = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done[name].returncode == 0, done[name].stdout + done[name].stderr
        return folder / f"{name}.ipynb"

    return get
