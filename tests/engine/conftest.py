"""An engine with a home of its own for each test; whatever a test leaves running is killed after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_support import end_all, stand_in

from hdp.estimator.engines.local.engine import LocalEngine
from hdp.estimator.engines.local.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """$HDP_HOME, in a folder with a space and letters that aren't ASCII."""
    folder = Home(tmp_path / "häme dir")
    monkeypatch.setenv("HDP_HOME", str(folder.path))
    yield folder
    end_all(folder)


@pytest.fixture
def engine(home: Home) -> LocalEngine:
    """The local engine with `home`."""
    return LocalEngine(home)


@pytest.fixture
def agent(tmp_path: Path) -> Callable[[str], str]:
    """Makes a stand-in for the agent; see `engine_support.stand_in`."""
    return lambda body: stand_in(tmp_path, sys.executable, body)


@pytest.fixture(scope="session")
def is_root() -> bool:
    """Whether the tests run as root."""
    return os.geteuid() == 0
