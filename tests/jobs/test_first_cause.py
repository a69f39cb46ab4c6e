"""A rank that dies without a word in the middle of DDP training is the job's failure, not the peers that it takes down.

The peers find out in a callback of DDP's, which turns our PeerLost into a RuntimeError of torch's and keeps only text.
"""

from dataclasses import dataclass

import pytest

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")

from hdp.contract.errors import TrainingJobFailed
from hdp.estimator import PyTorch

TRAIN = """
import atexit
import os
import signal
import sys
import time

# Registered first, so it comes last: the others lose a rank that calls sys.exit long before it has ended.
atexit.register(time.sleep, 9 if "sys.exit" in sys.argv else 0)

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DIE = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "os._exit": lambda: os._exit(7),
    "sys.exit": lambda: sys.exit(3),
}
culprit, how = int(sys.argv[sys.argv.index("--culprit") + 1]), sys.argv[sys.argv.index("--how") + 1]
dist.init_process_group("hdp")
rank = dist.get_rank()
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 64) for _ in range(8)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64)).square().mean()
    if step == 5 and rank == culprit:
        DIE[how]()
    loss.backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Death:
    how: str
    culprit: int
    expected: str


KILLED = Death("SIGKILL", 0, "rank 0 on algo-1 failed (killed by SIGKILL)")
FAULT = Death("SIGSEGV", 3, "rank 3 on algo-2 failed (killed by SIGSEGV)")
ENDED = Death("os._exit", 0, "rank 0 on algo-1 failed (exit code 7)")
LEFT = Death("sys.exit", 3, "rank 3 on algo-2 failed (exit code 3)")


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair",
    [(KILLED, LEFT), pytest.param((FAULT, ENDED), marks=pytest.mark.exhaustive)],
    ids=["SIGKILL, sys.exit", "SIGSEGV, os._exit"],
)
def test_the_rank_that_died_is_named(tmp_path, monkeypatch, pair):
    """Two jobs at a time, each 2x2, DDP with 8 buckets; one rank dies in step 5.

    Expected: its name and its end, not its peers' RuntimeError.
    """
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    jobs = [_start(str(tmp_path / "code"), death) for death in pair]
    assert [_reason(job)[: len(death.expected)] for job, death in zip(jobs, pair, strict=True)] == [
        death.expected for death in pair
    ]


def _start(source_dir, death):
    estimator = PyTorch(
        entry_point="train.py",
        source_dir=source_dir,
        hyperparameters={"culprit": death.culprit, "how": death.how},
        instance_count=2,
        distribution={"hdp": {"enabled": True, "processes_per_host": 2}},
    )
    estimator.fit(wait=False, logs=None)
    return estimator.latest_training_job


def _reason(job):
    with pytest.raises(TrainingJobFailed) as caught:
        job.wait(logs=None)
    return caught.value.reason
