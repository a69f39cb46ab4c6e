"""Modules that a pytest process imports by name, from folders on sys.path: two of one name would be one module."""

from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Folders whose scripts run in processes of their own.
PROGRAMS = ("tests/tensorflow/article", "tests/tensorflow/mirrored", "tests/torch/suite")


def test_no_two_modules_share_a_name():
    """Of the tests' folders and of benchmarks."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")} - {ROOT / name for name in PROGRAMS}
    places = defaultdict(list)
    for folder in [*folders, ROOT / "benchmarks"]:
        for path in folder.glob("*.py"):
            if path.stem not in ("conftest", "__init__"):
                places[path.stem].append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}
