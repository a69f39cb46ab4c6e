"""TensorFlow ranks on emulated hosts: a real server a host, and a real process a rank, which runs a script."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "multirank"))
from cluster import Cluster

HERE = Path(__file__).parent


class _Servers(Cluster):
    """The servers of a cluster; ranks are ours to start."""

    def _start_rank(self, host, local):
        pass

    def collect(self, timeout):
        return {}


class _Starter:
    """A process of `rank_starter.py`, with these variables."""

    def __init__(self, python: str, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [python, str(HERE / "rank_starter.py")],
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


_kept: dict[tuple[str, ...], _Starter] = {}


def _end_all() -> None:
    while _kept:
        _kept.popitem()[1].end()


atexit.register(_end_all)


def _starter(python: str, environ: dict[str, str]) -> _Starter:
    """The one of before, unless TensorFlow is imported otherwise for these variables."""
    key = (python, *(f"{k}={v}" for k, v in sorted(environ.items()) if k.startswith(("TF_", "KERAS_", "CUDA_"))))
    if key not in _kept or _kept[key].process.poll() is not None:
        _end_all()
        _kept[key] = _Starter(python, environ)
    return _kept[key]


def run(script, *arguments, sizes=(2, 2), python=sys.executable, environ=None, seconds=240):
    """Run ``script arguments`` as every rank. Returns outputs (stdout and stderr) and exit codes, by rank.

    Ranks that aren't done after `seconds` are killed: exit code -9.
    """
    shared = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
        "HDP_TIMEOUT_SECONDS": "30",
        **(environ or {}),
    }
    with _Servers(list(sizes), start_timeout=60) as servers, tempfile.TemporaryDirectory(prefix="tf-") as folder:
        ranks = []
        for host, count in enumerate(sizes):
            for local in range(count):
                more = {
                    "RANK": len(ranks),
                    "LOCAL_RANK": local,
                    "WORLD_SIZE": sum(sizes),
                    "LOCAL_WORLD_SIZE": count,
                    "HDP_SERVER_SOCKET": servers.socket(host),
                    "HDP_SECRET_FILE": servers.secret,
                }
                output = Path(folder) / f"rank-{len(ranks)}"
                output.touch()
                ranks.append({"environ": {**shared, **{n: str(v) for n, v in more.items()}}, "output": str(output)})
        asked = {"script": str(HERE / script), "arguments": [str(a) for a in arguments], "ranks": ranks}
        codes = _starter(python, shared).codes({**asked, "seconds": seconds})
        return [Path(rank["output"]).read_text() for rank in ranks], codes


def together(*arguments, **options):
    """`run`, of which every rank must succeed. Returns the outputs."""
    outputs, codes = run(*arguments, **options)
    assert not any(codes), f"exit codes {codes}\n" + "\n---- next rank\n".join(outputs)
    return outputs
