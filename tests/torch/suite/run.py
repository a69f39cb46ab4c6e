"""Runs PyTorch's suite for backends (see `cases`) and keeps what came out in results.json and RESULTS.md.

    python tests/torch/suite/run.py --backend hdp --seconds 150    # goes on where the last call ended
    python tests/torch/suite/run.py --backend gloo --only '*join*' --again failed

Each test has processes of its own: a crash, a hang and anything left behind is that test's failure, and no other's.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path
from typing import Any, Literal

import cases
import results
from results import Outcome

_PR_SET_CHILD_SUBREAPER = 36
#: Seconds that a test's processes have to end by themselves, once the test is over.
_TO_LEAVE = 10.0
#: Seconds between a test's own time limit, where its ranks say where they are, and its end from outside.
_TO_TELL = 20.0
_LONGEST_REASON = 200


def main() -> int:
    """Run what was asked for; 1: a test failed."""
    arguments = _arguments()
    case = cases.load(arguments.backend, arguments.ranks, arguments.test_seconds)
    chosen = [n for n in cases.names(case) if any(fnmatch.fnmatch(n, p) for p in arguments.only)]
    table = results.of_this_torch(arguments.results)
    known = table.outcomes(arguments.backend)
    todo = [n for n in chosen if n not in known or known[n].status in arguments.again]
    adopt_orphans()
    end, failed = time.monotonic() + arguments.seconds, 0
    for name in todo:
        if time.monotonic() >= end:
            break
        outcome = run_one(case, name, arguments.test_seconds, arguments.logs)
        failed += outcome.status == "failed"
        print(f"{outcome.status:8}{outcome.seconds:6.1f} s  {name}  {outcome.reason}", flush=True)
        table.add(arguments.backend, arguments.ranks, name, outcome)
        results.write(table, arguments.results)
    left = [n for n in chosen if n not in table.outcomes(arguments.backend)]
    print(f"{len(left)} tests left", flush=True)
    return 1 if failed else 0


def adopt_orphans() -> None:
    """Become the parent of what tests leave: a server outlives the rank that started it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="hdp")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", nargs="+", default=["*"], help="names to run, or patterns")
    parser.add_argument("--again", nargs="*", default=[], choices=["passed", "skipped", "failed"], help="known, too")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no test after so long")
    parser.add_argument("--test-seconds", type=int, default=90, help="time limit of a test")
    parser.add_argument("--results", type=Path, default=results.FILE)
    parser.add_argument("--logs", type=Path, default=Path("build/torch_suite"), help="what failed tests wrote")
    return parser.parse_args()


def run_one(case: type[unittest.TestCase], name: str, seconds: int, logs: Path) -> Outcome:
    """Run one test in processes of its own, and see that they end."""
    skip = getattr(getattr(case, name), "__unittest_skip_why__", None)
    if skip is not None:
        return Outcome("skipped", 0.0, _one_line(skip))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ts-", ignore_cleanup_errors=True) as folder:
        child = os.fork()
        if child == 0:
            _child(case, name, Path(folder))
        status, reason = _verdict(child, Path(folder), seconds + _TO_TELL)
        stayed = _end_children()
        if stayed and status == "passed":
            status, reason = "failed", f"left {stayed} processes"
        if status == "failed":
            logs.mkdir(parents=True, exist_ok=True)
            logs.joinpath(f"{os.environ['BACKEND']}-{name}.log").write_bytes(Path(folder, "log").read_bytes())
    return Outcome(status, round(time.monotonic() - began, 1), reason)


def _child(case: type[unittest.TestCase], name: str, folder: Path) -> None:
    """The test's own process: never returns."""
    try:
        os.setsid()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        result = unittest.TestResult()
        case(name).run(result)
        folder.joinpath("result").write_text(json.dumps(_told(result)))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _told(result: unittest.TestResult) -> tuple[Literal["passed", "skipped", "failed"], str]:
    if result.skipped:
        return "skipped", _one_line(result.skipped[0][1])
    faults = [*result.errors, *result.failures]
    if faults:
        print("\n".join(text for _, text in faults), flush=True)
        return "failed", _cause(faults[0][1])
    return "passed", ""


def _verdict(child: int, folder: Path, seconds: float) -> tuple[Any, str]:
    end = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "failed", f"hangs: not over after {seconds:.0f} s"
        time.sleep(0.02)
    try:
        status, reason = json.loads(folder.joinpath("result").read_text())
    except FileNotFoundError:
        return "failed", "its process ended without a result"
    return status, reason


def _end_children() -> int:
    """Wait for what a test started, kill what doesn't end; how many that were."""
    end, killed = time.monotonic() + _TO_LEAVE, set[int]()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return len(killed)
        if pid == 0:
            if time.monotonic() > end:
                for left in _children() - killed:
                    killed.add(left)
                    os.kill(left, signal.SIGKILL)
            time.sleep(0.02)


def _children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def _cause(text: str) -> str:
    """The first exception of a rank, in one line; else the last line."""
    found = re.search(
        r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Lost|Mismatch|Timeout|Collective)\b.*", text, re.MULTILINE
    )
    ranks = re.findall(r"^(?:\w+\.)*\w+: .+", text[text.find("and exception:") :], re.MULTILINE)
    line = ranks[0] if "and exception:" in text and ranks else found[0] if found else text.strip().splitlines()[-1]
    return _one_line(line)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_REASON]


if __name__ == "__main__":
    sys.exit(main())
