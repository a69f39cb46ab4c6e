"""Engines by name and by instance type."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from hdp.contract.errors import EngineError
from hdp.estimator.engines import registry
from hdp.estimator.engines.base import Engine
from hdp.estimator.engines.local.engine import LocalEngine


def test_local_is_an_engine() -> None:
    engine: Engine = registry.get_engine("local")
    assert isinstance(engine, LocalEngine)


def test_an_unknown_engine_brings_the_near_one() -> None:
    said = r"no engine is called 'locl'; did you mean 'local'\? \(known: docker, local, sagemaker\)"
    with pytest.raises(EngineError, match=said):
        registry.get_engine("locl")


@pytest.mark.parametrize(
    ("instance_type", "engine"),
    [("local", "local"), ("local_gpu", "local"), ("ml.p4d.24xlarge", "sagemaker"), ("docker", "docker")],
)
def test_the_instance_type_picks_the_engine(instance_type: str, engine: str) -> None:
    assert registry.engine_for_instance_type(instance_type) == engine


def test_an_unknown_instance_type_says_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"'locla' is unknown; did you mean 'local'\?; expected \"local\""):
        registry.engine_for_instance_type("locla")


def plugin(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name, value, registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])


def test_a_plugin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin("mine", "hdp.estimator.engines.local.engine:LocalEngine", monkeypatch)
    assert isinstance(registry.get_engine("mine"), LocalEngine)
    assert registry.engine_names() == ("docker", "local", "mine", "sagemaker")


def test_a_plugin_that_hides_a_built_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin("local", "evil:Engine", monkeypatch)
    with pytest.raises(EngineError, match="plugin 'evil:Engine' calls its engine 'local', which hides the built-in"):
        registry.get_engine("local")


def test_a_plugin_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin("mine", "no_such_module:Engine", monkeypatch)
    with pytest.raises(EngineError, match="'no_such_module:Engine' of engine 'mine' can't be loaded: No module"):
        registry.get_engine("mine")


def test_the_registry_loads_no_engine() -> None:
    """Import it in a fresh process. Expected: neither the local engine nor boto3 nor pydantic are loaded."""
    code = (
        "import sys, hdp.estimator.engines.registry\n"
        "print([m for m in sys.modules if m.startswith(('hdp.estimator.engines.local', 'boto', 'pydantic', 'torch'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
