"""Runs a script as several ranks: real processes, forked from one that has imported the framework already.

One such process is kept for each framework, and reused by the tests of a run.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

#: Variables that these modules read when they are imported begin so.
_READ_AT_IMPORT = ("CUDA_", "KERAS_", "OMP_", "TF_", "TORCH", "LD_", "PYTHON")


class _Starter:
    """A process of `rank_starter.py`, with these variables."""

    def __init__(self, python: str, modules: tuple[str, ...], environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name("rank_starter.py")), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
            start_new_session=True,
        )

    def codes(self, asked: dict[str, Any]) -> list[int]:
        """What it answers."""
        try:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """It and all that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


#: By modules: the process, and what it was made for.
_kept: dict[tuple[str, ...], tuple[_Starter, object]] = {}


def _end_all() -> None:
    while _kept:
        _kept.popitem()[1][0].end()


atexit.register(_end_all)


def _starter(python: str, modules: tuple[str, ...], environ: dict[str, str]) -> _Starter:
    """The one of before, unless these variables make its imports other ones."""
    wanted = (python, {k: v for k, v in environ.items() if k.startswith(_READ_AT_IMPORT)})
    kept, made_for = _kept.get(modules, (None, None))
    if kept is None or made_for != wanted or kept.process.poll() is not None:
        if kept is not None:
            kept.end()
        kept = _Starter(python, modules, environ)
        _kept[modules] = (kept, wanted)
    return kept


def run(
    python: str, modules: tuple[str, ...], command: list[str], environs: list[dict[str, str]], seconds: float
) -> tuple[list[str], list[int]]:
    """Run ``command``, a script and its arguments, once with each of `environs`. Returns outputs and exit codes.

    An output is stdout and stderr. Whoever isn't done after `seconds` is killed: exit code -9.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        ranks = []
        for number, environ in enumerate(environs):
            output = Path(folder) / f"rank-{number}"
            output.touch()
            ranks.append({"environ": environ, "output": str(output)})
        asked = {"script": command[0], "arguments": command[1:], "ranks": ranks, "seconds": seconds}
        codes = _starter(python, modules, environs[0]).codes(asked)
        return [Path(rank["output"]).read_text(errors="replace") for rank in ranks], codes


def failure(outputs: list[str], codes: list[int], lines: int = 60) -> str:
    """What a test says of ranks that failed: codes, and the last lines of each output."""
    tails = ["\n".join(output.splitlines()[-lines:]) for output in outputs]
    return f"exit codes {codes}\n" + "\n---- next rank\n".join(tails)
