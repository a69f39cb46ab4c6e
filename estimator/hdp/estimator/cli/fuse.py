"""Whether FastFile channels can be mounted here: found out by mounting an empty one, as the local engine's hosts do."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hdp.estimator.engines.local import hostns
from hdp.estimator.engines.local.hostns import HostNamespace, Means

_TRIAL = "hdp.runtime.channels.fastfile.trial"
#: It takes half a second; the rest is for a busy machine.
_SECONDS = 60.0


@dataclass(frozen=True)
class Trial:
    """What a mount came to."""

    means: Means
    """Of the host's namespaces in which it was tried."""
    by: str = ""
    """``mount``, the system call, or ``fusermount3``; empty: it failed."""
    why: str = ""
    """Why it failed."""


def try_mount(means: Means) -> Trial:
    """Mount an empty channel for a moment, in namespaces such as a job's hosts have. Nothing stays."""
    with tempfile.TemporaryDirectory(prefix="hdp-probe-") as folder:
        tree, hosts, spec_file = Path(folder, "tree"), Path(folder, "hosts"), Path(folder, "spec.json")
        tree.mkdir()
        hosts.touch()
        hostns.save(HostNamespace("algo-1", str(tree), str(hosts), means), spec_file)
        command = hostns.argv(sys.executable, spec_file, [sys.executable, "-m", _TRIAL])
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Trial(means, why=f"the mount didn't end within {_SECONDS:g} s")
        return _understood(means, done)


def _understood(means: Means, done: subprocess.CompletedProcess[str]) -> Trial:
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}, and no message"])[-1]
        return Trial(means, why=f"the runtime can't try it: {said}")
    return Trial(means, answer.get("by", ""), answer.get("why", ""))
