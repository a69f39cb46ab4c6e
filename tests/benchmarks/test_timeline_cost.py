"""benchmarks/timeline.py as a user runs it, with a tiny model; and what it computes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hdp.runtime.emulation import EmulationError, Network

pytest.importorskip("torch", reason="the training step needs torch")
pytestmark = pytest.mark.timeout(300)  # where much else runs
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import timeline  # noqa: E402  (where it is has to be said first)


def test_a_ratio_is_of_rounds_and_not_of_all_there_is():
    """Four rounds, of which the machine was slow in two, for both; with a timeline each takes 1 % more, in one 5 %."""
    plain = [(1.0, 2.0), (1.0, 2.0), (9.0, 2.0), (9.0, 2.0)]
    traced = [(1.01, 3.0), (1.05, 3.0), (9.09, 3.0), (9.09, 3.0)]
    found = timeline.ratio_of("x", plain, traced)
    assert found.median == pytest.approx(1.01) and found.lower == pytest.approx(1.01)
    assert found.upper == pytest.approx(1.02) and found.rounds == 4
    assert (found.seconds, found.cpu) == (5.0, 1.5)


def test_one_round_is_its_own_quartiles():
    found = timeline.ratio_of("x", [(2.0, 1.0)], [(3.0, 1.0)])
    assert (found.lower, found.median, found.upper) == (1.5, 1.5, 1.5)


@pytest.mark.slow
@pytest.mark.alone
def test_both_are_measured(tmp_path):
    """One round at two sizes, and a step of a tiny model; every ratio is near one, or at least not ten."""
    try:
        Network(hosts=2, rate="1gbit").close()
    except EmulationError as exc:
        pytest.skip(f"this machine gives hosts no network: {exc}")
    command = [
        sys.executable, str(BENCHMARKS / "timeline.py"), "--sizes", "8,64KiB", "--rounds", "1", "--seconds", "0.1",
        "--model", "resnet_tiny", "--batch", "2", "--steps", "1", "--json", str(tmp_path / "out.json"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    ratios = json.loads((tmp_path / "out.json").read_text())["ratios"]
    assert [r["what"] for r in ratios] == [
        "allreduce of 8 bytes", "allreduce of 65,536 bytes", "training step, DDP",
    ]  # fmt: skip
    assert all(0.1 < r["median"] < 10 for r in ratios)
