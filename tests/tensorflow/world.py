"""TensorFlow ranks on emulated hosts: a real server a host, and a real process a rank, which runs a script."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import forked_ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "multirank"))
from cluster import Cluster

HERE = Path(__file__).parent


class _Servers(Cluster):
    """The servers of a cluster; ranks are ours to start."""

    def _start_rank(self, host, local):
        pass

    def collect(self, timeout):
        return {}


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
    with _Servers(list(sizes), start_timeout=60) as servers:
        ranks: list[dict[str, str]] = []
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
                ranks.append({**shared, **{name: str(value) for name, value in more.items()}})
        command = [str(HERE / script), *(str(a) for a in arguments)]
        return forked_ranks.run(python, ("tensorflow",), command, ranks, seconds)


def together(*arguments, **options):
    """`run`, of which every rank must succeed. Returns the outputs."""
    outputs, codes = run(*arguments, **options)
    assert not any(codes), forked_ranks.failure(outputs, codes)
    return outputs
