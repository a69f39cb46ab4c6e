"""Other versions of TensorFlow than the one that the tests run with."""

from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "build" / "tensorflow"


def interpreter(version):
    """The Python of TensorFlow `version`; skips where it isn't."""
    python = HERE / version / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no TensorFlow {version} in {python.parent}: run `make tensorflows`")
    return str(python)
