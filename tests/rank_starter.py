"""Starts ranks as forks of a process that has imported what takes each new process seconds of a processor.

    rank_starter.py MODULE...

Of every line of standard input, a JSON object, it runs ``script`` with ``arguments`` once for each of ``ranks``: with
its ``environ``, and its output in the file ``output``. Those that aren't done after ``seconds`` are killed. Their exit
codes are the answer, as JSON on a line of standard output; -9: by signal 9.

Importing TensorFlow or torch starts no operation, so they make their threads in each rank by itself.
"""

import importlib
import json
import os
import random
import runpy
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

_GIVEN = {v.partition(b"=")[0] for v in Path("/proc/self/environ").read_bytes().split(b"\0")}


def main() -> None:
    sys.path.pop(0)  # this file's folder; a rank has its script's
    for name in sys.argv[1:]:
        importlib.import_module(name)
    # What start-up and the imports have set, in every process that goes through them.
    own = {name: value for name, value in os.environ.items() if name.encode() not in _GIVEN}
    while line := sys.stdin.readline():
        asked = json.loads(line)
        children = []
        for rank in asked["ranks"]:
            child = os.fork()
            if child == 0:
                return run(asked["script"], asked["arguments"], own, rank)
            children.append(child)
        print(json.dumps(codes(children, asked["seconds"])), flush=True)


def codes(children: list[int], seconds: float) -> list[int]:
    """Exit codes, once all have ended."""
    deadline, found = time.monotonic() + seconds, {}
    while len(found) < len(children):
        for child in children:
            if child not in found:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    found[child] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return [found[child] for child in children]


def run(script: str, arguments: list[str], own: dict[str, str], rank: dict) -> None:
    """Be the rank. The process ends as one that ran the script would."""
    os.environ.clear()
    os.environ.update({**own, **rank["environ"]})
    for descriptor, file, flags in [(0, os.devnull, os.O_RDONLY), (1, rank["output"], os.O_WRONLY | os.O_APPEND)]:
        opened = os.open(file, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(1, 2)
    tempfile.tempdir = None  # found anew, from this environment
    random.seed()
    np.random.seed()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
