"""TensorFlow ranks on emulated hosts: a real server a host, and a real process a rank, which runs a script."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    with _Servers(list(sizes), start_timeout=60) as servers, tempfile.TemporaryDirectory(prefix="tf-") as folder:
        files, ranks = [], []
        for host, count in enumerate(sizes):
            for local in range(count):
                rank = len(ranks)
                files.append((Path(folder) / f"rank-{rank}").open("w+"))
                more = {
                    "RANK": rank,
                    "LOCAL_RANK": local,
                    "WORLD_SIZE": sum(sizes),
                    "LOCAL_WORLD_SIZE": count,
                    "HDP_SERVER_SOCKET": servers.socket(host),
                    "HDP_SECRET_FILE": servers.secret,
                }
                ranks.append(
                    subprocess.Popen(
                        [python, str(HERE / script), *map(str, arguments)],
                        stdout=files[-1],
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                        env={
                            **os.environ,
                            "TF_CPP_MIN_LOG_LEVEL": "3",
                            "CUDA_VISIBLE_DEVICES": "",
                            "TF_NUM_INTRAOP_THREADS": "1",
                            "TF_NUM_INTEROP_THREADS": "2",
                            "HDP_TIMEOUT_SECONDS": "30",
                            **(environ or {}),
                            **{name: str(value) for name, value in more.items()},
                        },
                    )
                )
        try:
            deadline = time.monotonic() + seconds
            for process in ranks:
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        outputs = []
        for file in files:
            file.seek(0)
            outputs.append(file.read())
            file.close()
        return outputs, [process.returncode for process in ranks]


def together(*arguments, **options):
    """`run`, of which every rank must succeed. Returns the outputs."""
    outputs, codes = run(*arguments, **options)
    assert not any(codes), f"exit codes {codes}\n" + "\n---- next rank\n".join(outputs)
    return outputs
