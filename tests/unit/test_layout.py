"""What the source tree promises: one namespace package, light imports."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_hdp_is_a_namespace_package():
    """An hdp/__init__.py in either root would hide the other root."""
    assert not [p for root in ("estimator", "runtime") for p in (ROOT / root).glob("hdp/__init__.py")]


@pytest.mark.parametrize(
    ("package", "heavy"),
    [
        ("hdp.collectives", "torch tensorflow boto3 pydantic hdp.estimator hdp.runtime"),
        ("hdp.contract.files", "torch numpy boto3 pydantic hdp.estimator hdp.runtime hdp.collectives"),
        ("hdp.runtime.launch.agent", "torch numpy boto3 pydantic hdp.estimator"),
        ("hdp.estimator", "torch numpy boto3 botocore docker hdp.runtime hdp.collectives"),
    ],
)
def test_imports_are_light(package, heavy):
    code = f"import sys, {package}; print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_package_is_typed():
    for package in (*ROOT.glob("estimator/hdp/*"), *ROOT.glob("runtime/hdp/*")):
        if package.is_dir() and package.name != "__pycache__":
            assert (package / "py.typed").exists(), package
