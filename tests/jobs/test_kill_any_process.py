"""SIGKILL of any one process of a job at a random moment: it ends in time, names who died, and leaves nothing behind.

Rounds are drawn from a seed that is printed: who is killed, and when, from submission to training. Every rank has
data-loader workers alive, which hold all of its descriptors. $HDP_TEST_KILLS is the number of rounds, and
$HDP_TEST_KILLS_SEED gives the rounds of an earlier run again:

    HDP_TEST_KILLS=200 python -m pytest -s tests/jobs/test_kill_any_process.py
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from kill_round import END_SECONDS, HOSTS, RANKS_PER_HOST, Outcome, Round, be_a_client, play
from victims import PARTS

from hdp.estimator.engines.local import hostns

ROUNDS = int(os.environ.get("HDP_TEST_KILLS", "12"))
SEED = int(os.environ.get("HDP_TEST_KILLS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
#: Jobs at a time: a job waits more than it computes.
CLIENTS = 3
PLACES = {"rank": HOSTS * RANKS_PER_HOST, "agent": HOSTS, "server": HOSTS, "supervisor": 1}
#: From the victim's first instruction to its part in training; in training, any moment is like any other; from a rank's
#: last step to the job's end.
LONGEST_DELAY = {"start": 2.0, "train": 0.5, "end": 0.3}

NUMPY_TRAIN = """
import multiprocessing
import os
import sys
from pathlib import Path

import numpy as np

import hdp.collectives as hc

steps = int(sys.argv[sys.argv.index("--steps") + 1])
comm = hc.init()
named = multiprocessing.get_context("spawn").Lock()  # in /dev/shm, as spawned workers need it; its tracker tidies up
context = multiprocessing.get_context("fork")
todo, samples = context.Queue(), context.Queue()


def load():
    for step in iter(todo.get, None):
        samples.put(np.full(5000, step, np.float32))


for _ in range(2):
    context.Process(target=load, daemon=True).start()
for step in range(steps):
    todo.put(step)
    total = hc.allreduce(samples.get() + comm.rank, comm.world).wait()
    assert np.all(total == 4 * step + 6), total
    if step == 0:
        print("first step", flush=True)
Path(os.environ["SM_MODEL_DIR"], f"{comm.rank}.bin").write_bytes(os.urandom(10_000_000))
print("last step", flush=True)
"""

TORCH_TRAIN = """
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return torch.full((1000,), float(i))


steps = int(sys.argv[sys.argv.index("--steps") + 1])
dist.init_process_group("hdp")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1000, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for step, batch in enumerate(DataLoader(Samples(), batch_size=4, num_workers=2, multiprocessing_context="fork")):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    if step == 0:
        print("first step", flush=True)
    if step == steps:
        break
print("last step", flush=True)
"""


#: Such a rank takes no hint: no SIGTERM, no error.
DEAF_TRAIN = """
import signal
import time

import numpy as np

import hdp.collectives as hc

signal.signal(signal.SIGTERM, signal.SIG_IGN)
comm = hc.init()
try:
    hc.barrier(comm.world).wait()
    print("first step", flush=True)
    while True:
        hc.allreduce(np.ones(1000, np.float32), comm.world).wait()
except Exception:
    time.sleep(1000)
"""


@pytest.fixture
def folder() -> Iterator[str]:
    """A short path: sockets are below it."""
    with tempfile.TemporaryDirectory(prefix="kills-") as path:
        yield path


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(60 + 20 * ROUNDS)
def test_whoever_is_killed_the_job_ends_and_leaves_nothing(folder: str) -> None:
    """2 hosts x 2 ranks, NumPy. Expected: Failed within 10 s, the reason names the victim, all counts as before."""
    _judge(_play_all(_draw(ROUNDS, _script(folder, NUMPY_TRAIN)), folder))


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(120 + 8 * ROUNDS)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch isn't installed")
def test_the_same_with_torchs_data_loader(folder: str) -> None:
    """The same, for a tenth of the rounds, with DistributedDataParallel and DataLoader(num_workers=2)."""
    _judge(_play_all(_draw(max(2, ROUNDS // 10), _script(folder, TORCH_TRAIN)), folder))


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_ranks_that_never_end_by_themselves_do_not_delay_it(folder: str) -> None:
    """Each part is killed once in training; ranks ignore SIGTERM and every error. Expected: 10 s all the same."""
    source_dir = _script(folder, DEAF_TRAIN)
    outcomes = _play_all([Round(i, PARTS[i], 0, "train", 0.1, source_dir) for i in range(len(PARTS))], folder)
    assert [str(o) for o in outcomes if o.faults] == []


def _script(folder: str, text: str) -> str:
    code = Path(folder, "code")
    code.mkdir()
    (code / "train.py").write_text(text)
    return str(code)


def _draw(count: int, source_dir: str) -> list[Round]:
    """Every part in turn, so that a few rounds have each of them; all else at random."""
    print(f"\nHDP_TEST_KILLS={ROUNDS} HDP_TEST_KILLS_SEED={SEED}", flush=True)
    rng = random.Random(SEED)
    return [_draw_one(number, rng, source_dir) for number in range(count)]


def _draw_one(number: int, rng: random.Random, source_dir: str) -> Round:
    part = PARTS[number % len(PARTS)]
    moment = rng.choice(("start", "train") if part == "rank" else ("start", "start", "train", "train", "end"))
    delay = rng.uniform(0.0, LONGEST_DELAY[moment])
    return Round(number, part, rng.randrange(PLACES[part]), moment, delay, source_dir)


def _play_all(rounds: Sequence[Round], folder: str) -> list[Outcome]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(CLIENTS, spawn, initializer=be_a_client, initargs=(folder,)) as clients:
        outcomes = []
        for outcome in clients.map(play, rounds):
            print(outcome, flush=True)
            outcomes.append(outcome)
        return outcomes


def _judge(outcomes: Sequence[Outcome]) -> None:
    counts = Counter(f"{o.killed.split()[0]} at {o.round.moment}" for o in outcomes)
    print(", ".join(f"{count} x {what}" for what, count in sorted(counts.items())))
    print(
        f"slowest end {max(o.seconds for o in outcomes):.1f} s, slowest to be clean "
        f"{max(o.clean_seconds for o in outcomes):.1f} s; limit {END_SECONDS:g} s"
    )
    print("most that a job had at its kill:", _most(outcomes))
    assert [str(o) for o in outcomes if o.faults] == []
    _assert_counted(_most([o for o in outcomes if o.round.moment == "train"]))


def _most(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return {kind: max(o.had.get(kind, 0) for o in outcomes) for kind in (outcomes[0].had if outcomes else ())}


def _assert_counted(most: dict[str, int]) -> None:
    """The counters do count: a job in training has so much, at least, or none is in training."""
    if not most:
        return
    isolated = hostns.probe().means != "none"
    parts = 1 + 2 * HOSTS + 3 * HOSTS * RANKS_PER_HOST  # supervisor; agents, servers; ranks with two workers each
    expected = {"processes": parts, "sockets": 10, "memfds": HOSTS, "folders": 1, "mounts": 2 * HOSTS * isolated}
    expected["namespaces"] = 2 * HOSTS * isolated
    assert {kind: most[kind] for kind in expected if most[kind] < expected[kind]} == {}
