"""`environment={"HDP_TIMELINE": "1"}` reaches ranks and servers; `hdp timeline` merges what they leave."""

import json
import subprocess
import sys
from collections import Counter

from hdp.estimator import Estimator

SCRIPT = """
import numpy as np

import hdp.collectives as hc

comm = hc.init()
for count in (10, 1_000_000):
    hc.allreduce(np.ones(count, np.float32), comm.world).wait()
"""


def test_a_jobs_timeline_has_all_ranks_and_servers(tmp_path, monkeypatch):
    """Two hosts with a rank each; the small operation goes by cells, the large one through both servers."""
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    job = Estimator(
        entry_point="train.py",
        source_dir=str(tmp_path / "code"),
        instance_type="local",
        instance_count=2,
        distribution={"hdp": {"enabled": True, "processes_per_host": 1}},
        environment={"HDP_TIMELINE": "1"},
    ).fit(logs=False)
    command = [sys.executable, "-m", "hdp.estimator.cli", "timeline", job.name, "-o", str(tmp_path / "trace.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "4 operations, of 2 ranks on 2 hosts" in done.stdout
    assert done.stderr == ""  # all files are whole
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    seen = Counter(
        (e["pid"], rows[e["pid"], e["tid"]], e["name"], e["args"].get("by"))
        for e in events
        if e.get("args", {}).get("status")
    )
    assert seen == Counter(
        {
            **{(n, f"rank {n - 1}", "allreduce #1", "cells"): 1 for n in (1, 2)},
            **{(n, f"rank {n - 1}", "allreduce #2", "slots"): 1 for n in (1, 2)},
            **{(n, "server", "allreduce #2", None): 1 for n in (1, 2)},
        }
    )
