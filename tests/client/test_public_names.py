"""The public surface is a list: exported, documented, and cheap to import."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing

import pytest

import hdp.estimator
from hdp.estimator import Estimator, PyTorch, TensorFlow
from hdp.estimator.arguments import EstimatorArguments, FrameworkArguments, TensorFlowArguments
from hdp.estimator.settings import NOT_HERE, Settings

HEAVY = ("boto3", "botocore", "torch", "tensorflow", "docker", "numpy", "pydantic", "rich")


@pytest.mark.parametrize("name", hdp.estimator.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    """It loads, and has a docstring of its own."""
    value = getattr(hdp.estimator, name)
    documented = value if inspect.isclass(value) else type(value)
    assert documented.__doc__
    own = [m for k, m in vars(documented).items() if inspect.isfunction(m) and not k.startswith("_")]
    assert all(m.__doc__ for m in own)


def test_all_is_what_type_checkers_see() -> None:
    """The imports under TYPE_CHECKING and __all__ are the same names."""
    source = inspect.getsource(hdp.estimator)
    block = source.partition("if TYPE_CHECKING:")[2].partition("__all__")[0]
    for name in hdp.estimator.__all__:
        assert f" {name}" in block or f"{name}," in block
    assert set(hdp.estimator.__all__) <= set(dir(hdp.estimator))


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As for any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Estimater'"):
        _ = hdp.estimator.Estimater


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    """A fresh interpreter: none of the heavy modules."""
    code = f"import hdp.estimator, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run_python(code) == "[]"


def test_using_the_client_loads_no_cloud_and_no_framework() -> None:
    """Even with Estimator and TrainingInput loaded."""
    heavy = [m for m in HEAVY if m not in ("pydantic",)]
    code = (
        "import sys; from hdp.estimator import Estimator, PyTorch, TrainingInput, FLAG, SpecError;"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    assert run_python(code) == "[]"


def arguments_of(cls: type[Estimator], typed: type) -> set[str]:
    named = {p for p in inspect.signature(cls).parameters if p not in ("self", "arguments")}
    return named | set(typing.get_type_hints(typed))


@pytest.mark.parametrize(
    ("cls", "typed", "without"),
    [
        (Estimator, EstimatorArguments, {"framework_version", "py_version", "model_dir"}),
        (PyTorch, FrameworkArguments, {"model_dir"}),
        (TensorFlow, TensorFlowArguments, set()),
    ],
)
def test_types_and_settings_list_the_same_arguments(cls: type[Estimator], typed: type, without: set[str]) -> None:
    """What editors offer is what the model takes."""
    assert arguments_of(cls, typed) == set(Settings.model_fields) - without
    assert set(cls._refused) == without


def test_the_docstring_lists_every_argument() -> None:
    """help(Estimator) is the reference."""
    text = Estimator.__doc__ or ""
    missing = [n for n in Settings.model_fields if n not in text and n not in Estimator._refused]
    assert missing == []


def test_what_is_refused_by_name_is_no_argument() -> None:
    """NOT_HERE and the model don't overlap."""
    assert not set(NOT_HERE) & set(Settings.model_fields)
