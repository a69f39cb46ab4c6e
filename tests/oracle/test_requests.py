"""Our requests against those of SageMaker's SDK v2, field by field.

`golden/` holds what v2 sends for each case of `cases.py`. Record again, after a change of cases or of the SDK's
version: ``sh tools/sdk.sh && build/sagemaker-v2/bin/python tests/oracle/record.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hdp.estimator
from hdp.estimator import images

from .cases import CASES, Case
from .differences import DIFFERENCES

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GOLDEN = HERE / "golden"
AGAIN = "record again: sh tools/sdk.sh && build/sagemaker-v2/bin/python tests/oracle/record.py"
OURS = SimpleNamespace(is_v2=False, **{name: getattr(hdp.estimator, name) for name in hdp.estimator.__all__})


def golden(name: str) -> dict[str, Any]:
    path = GOLDEN / f"{name}.json"
    assert path.is_file(), f"{path} is missing; {AGAIN}"
    return dict(json.loads(path.read_text(encoding="utf-8")))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the recorder's folder has, and no configuration of AWS."""
    (tmp_path / "src").mkdir()
    for name in ("train.py", "src/train.py"):
        (tmp_path / name).write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    return tmp_path


def ours(case: Case, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """CreateTrainingJob of our plan."""
    monkeypatch.setenv("AWS_REGION", case.region)
    estimator, inputs = case.make(OURS)
    request = dict(estimator.plan(inputs, job_name="oracle-job", **case.fit).request.training_job)
    hook = request.get("DebugHookConfig", {})
    if "CollectionConfigurations" in hook:  # as the recorder has them, because v2's are in a set
        request["DebugHookConfig"] = {
            **hook,
            "CollectionConfigurations": sorted(hook["CollectionConfigurations"], key=lambda c: c["CollectionName"]),
        }
    return request


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a request with its path; an empty list or map is a value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, (list, tuple)) and value:
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}[{i}]")
    else:
        yield path, value


def differing(v2: dict[str, Any], mine: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Path, v2's value and ours, wherever they aren't the same, types included."""
    left, right = dict(leaves(v2)), dict(leaves(mine))
    pairs = [(path, left.get(path, "absent"), right.get(path, "absent")) for path in sorted({*left, *right})]
    return [(path, a, b) for path, a, b in pairs if (type(a), a) != (type(b), b)]


@pytest.mark.parametrize("name", CASES)
def test_a_request_is_v2s(name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every value is v2's, or the difference is one that the case names; and each that it names is there."""
    case = CASES[name]
    unused, wrong = set(case.differs), []
    for path, v2, mine in differing(golden(name), ours(case, monkeypatch)):
        rows = [row for row in case.differs if DIFFERENCES[row].explains(path, v2, mine)]
        unused -= set(rows)
        wrong += [] if rows else [f"{path}: v2 {v2!r}, ours {mine!r}"]
    assert wrong == [], f"{name}; if v2 has changed, {AGAIN}"
    assert unused == set(), f"{name} names differences that aren't there"


def test_every_difference_is_one_of_some_case() -> None:
    """No row of the table is stale, and no case names one that isn't there."""
    assert {row for case in CASES.values() for row in case.differs} == set(DIFFERENCES)


def test_a_golden_file_belongs_to_a_case() -> None:
    """None is left from a case that has gone."""
    assert {p.stem for p in GOLDEN.glob("*.json")} == {*CASES, "images"}


def test_there_are_enough_cases() -> None:
    """All distributions of v2 and both examples are among them."""
    assert len(CASES) >= 25
    text = (HERE / "cases.py").read_text(encoding="utf-8")
    kinds = "mpi smdistributed modelparallel torch_distributed pytorchddp pytorchxla parameter_server"
    for kind in (*kinds.split(), "multi_worker_mirrored_strategy", "dataparallel"):
        assert f'"{kind}"' in text, kind


@pytest.mark.parametrize("key", golden("images"))
def test_an_image_is_v2s(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By our own table: framework, version, py_version, instance type, region."""
    framework, version, py_version, kind, region = key.split(" ")
    found = images.find(framework, version, py_version)
    assert found.note == ""
    assert images.uri(framework, found, kind, region) == golden("images")[key]


def sdk() -> Path | None:
    """Python of the environment with the SDK, where tools/sdk.sh has made it."""
    path = ROOT / "build" / "sagemaker-v2" / "bin" / "python"
    return path if path.is_file() else None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sdk() is None, reason="no build/sagemaker-v2; make it with: sh tools/sdk.sh")
def test_the_golden_files_are_what_the_sdk_sends(tmp_path: Path) -> None:
    """Record all of them again with the real SDK, offline: the same files, byte for byte."""
    again = tmp_path / "golden"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "AWS_"))}
    subprocess.run([str(sdk()), str(HERE / "record.py"), str(again)], check=True, env={**clean, "HOME": str(tmp_path)})
    names = sorted(p.name for p in again.iterdir())
    assert names == sorted(p.name for p in GOLDEN.iterdir()), AGAIN
    for name in names:
        assert (again / name).read_text() == (GOLDEN / name).read_text(), f"{name} has changed; {AGAIN}"
