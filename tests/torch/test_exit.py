"""A process ends while a future's callback runs: it waits for the callback, and isn't aborted by torch's C++ code."""

from __future__ import annotations

import forked
import pytest

SCRIPT = """
import sys, time
import torch
import torch.distributed as dist
from hdp.collectives import Communicator

def late(self, next_done=Communicator.next_done):
    time.sleep(0.5)
    return next_done(self)

if sys.argv[4] == "late":
    Communicator.next_done = late

def callback(future):
    for _ in range(20):
        time.sleep(0.05)
    print("called back", flush=True)

dist.init_process_group("hdp", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
opts = dist.AllreduceOptions()
opts.asyncOp = sys.argv[2] == "async"
work = dist.distributed_c10d._get_default_group().allreduce([torch.ones(3)], opts)
work.get_future().then(callback)
work.wait()
if sys.argv[3] == "destroyed":
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("how", "end", "threads"),
    [
        pytest.param("async", "destroyed", "soon", marks=pytest.mark.slow),
        ("async", "destroyed", "late"),
        pytest.param("async", "left", "late", marks=pytest.mark.slow),
        pytest.param("sync", "left", "soon", marks=pytest.mark.slow),
    ],
)
def test_a_callback_that_runs_at_the_end(tmp_path, how, end, threads):
    """It takes a second; "late": no thread has come to it before the end. The process waits for it, then exits 0."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    [output], codes = forked.run(script, [tmp_path / "store", how, end, threads], (1,))
    assert codes == [0] and output == "called back\n", output
