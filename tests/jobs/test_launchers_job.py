"""The same script and inputs under the launchers other than hdp's own, on the local engine."""

import json
import os
import shutil
from pathlib import Path

import pytest

from hdp.estimator import Estimator, TrainingJobFailed

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")
ROOT = Path(__file__).parents[2]
PEERS = ROOT / "build/peers"
VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "HDP_LAUNCHER", "TORCHELASTIC_RUN_ID",
    "ROLE_RANK", "SM_MODEL_DIR", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE",
)  # fmt: skip
#: Rank r contributes (r + 1) times 0..999, so that the sum is 10 times 0..999 for four ranks.
SUM = f"""
import json, os, sys
from pathlib import Path
import torch

name = sys.argv[sys.argv.index("--dist") + 1]
rank = int(os.environ["RANK"])
tensor = torch.arange(1000.0) * (rank + 1)
if name == "horovod":
    import horovod.torch as hvd
    hvd.init()
    assert (hvd.rank(), hvd.local_rank()) == (rank, int(os.environ["LOCAL_RANK"]))
    tensor = hvd.allreduce(tensor, op=hvd.Sum)
else:
    import torch.distributed as dist
    dist.init_process_group(name)
    assert dist.is_torchelastic_launched() == (os.environ["HDP_LAUNCHER"] == "torch_distributed")
    dist.all_reduce(tensor)
    dist.destroy_process_group()
seen = {{name: os.environ.get(name) for name in {VARIABLES}}}
seen["right"] = bool((tensor == torch.arange(1000.0) * 10).all())
folder = Path(os.environ["SM_OUTPUT_DATA_DIR"])
folder.mkdir(parents=True, exist_ok=True)
(folder / f"rank-{{rank}}.json").write_text(json.dumps(seen))
"""
KERAS = """
import json, os
from pathlib import Path
import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
total = hvd.allreduce(tf.range(1000.0) * (hvd.rank() + 1.0), op=hvd.Sum)
seen = {"RANK": str(hvd.rank()), "right": bool(tf.reduce_all(total == tf.range(1000.0) * 10.0))}
Path(os.environ["SM_OUTPUT_DATA_DIR"], f"rank-{hvd.rank()}.json").write_text(json.dumps(seen))
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))


def _python(name, make):
    path = PEERS / name / "bin/python"
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is missing: `{make}` installs it")
    return {"python": str(path)}


def _ranks(tmp_path, script, launcher, options=None, **hyperparameters):
    """What the ranks of a job of 2 hosts x 2 saw, in their order."""
    (tmp_path / "train.py").write_text(script)
    job = Estimator(
        entry_point=str(tmp_path / "train.py"),
        instance_count=2,
        distribution={launcher: {"enabled": True, "processes_per_host": 2}},
        hyperparameters=hyperparameters,
        engine_options=options or {},
    ).fit(logs=None)
    shutil.unpack_archive(job.output_data.removeprefix("file://"), tmp_path / "out")
    found = [json.loads(path.read_text()) for path in sorted((tmp_path / "out").rglob("rank-*.json"))]
    return sorted(found, key=lambda seen: int(seen["RANK"]))


@pytest.mark.parametrize("backend", ["gloo", pytest.param("hdp", marks=pytest.mark.slow)])
def test_torchruns_environment(tmp_path, backend):
    """torch_distributed, any backend: torch takes the ranks for torchrun's, and rank 0 has the store."""
    ranks = _ranks(tmp_path, SUM, "torch_distributed", dist=backend)
    assert [(r["RANK"], r["LOCAL_RANK"], r["GROUP_RANK"], r["ROLE_RANK"]) for r in ranks] == [
        ("0", "0", "0", "0"),
        ("1", "1", "0", "1"),
        ("2", "0", "1", "2"),
        ("3", "1", "1", "3"),
    ]
    assert all(r["right"] and r["HDP_LAUNCHER"] == "torch_distributed" for r in ranks)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hdp", "gloo", "horovod"])
def test_mpirun_serves_every_library(tmp_path, backend):
    """mpi: rank variables are mapped, so torch's backends run as well as Horovod over MPI."""
    ranks = _ranks(tmp_path, SUM, "mpi", _python("horovod", "make horovod"), dist=backend)
    assert [(r["RANK"], r["LOCAL_RANK"], r["GROUP_RANK"]) for r in ranks] == [
        ("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1"),
    ]  # fmt: skip
    assert all(r["right"] and r["HDP_LAUNCHER"] == "mpi" for r in ranks)


@pytest.mark.slow
def test_horovod_without_mpi(tmp_path):
    """horovod: our agents start the ranks, and its gloo controller brings them together."""
    ranks = _ranks(tmp_path, SUM, "horovod", _python("horovod", "make horovod"), dist="horovod")
    assert [(r["HOROVOD_CROSS_RANK"], r["HOROVOD_CROSS_SIZE"]) for r in ranks] == [
        ("0", "2"), ("0", "2"), ("1", "2"), ("1", "2"),
    ]  # fmt: skip
    assert all(r["right"] for r in ranks)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpi", "horovod"])
def test_who_leaves_horovods_ranks_is_named(tmp_path, launcher):
    """sys.exit(5) of rank 3 in the middle: the others fail of it, and aren't blamed."""
    script = """
import sys
import horovod.torch as hvd
import torch
hvd.init()
for step in range(10**9):
    hvd.allreduce(torch.ones(1000))
    if hvd.rank() == 3 and step == 20:
        sys.exit(5)
"""
    with pytest.raises(TrainingJobFailed) as raised:
        _ranks(tmp_path, script, launcher, _python("horovod", "make horovod"))
    assert raised.value.reason.startswith("rank 3 on algo-2 failed (exit code 5)")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpi", pytest.param("horovod", marks=pytest.mark.exhaustive)])
def test_horovod_for_tensorflow(tmp_path, launcher):
    options = _python("horovod-tensorflow", "make horovod-tensorflow")
    assert [r["right"] for r in _ranks(tmp_path, KERAS, launcher, options)] == [True] * 4


def test_an_interpreter_without_horovod_is_named(tmp_path):
    (tmp_path / "train.py").write_text("print('never')")
    estimator = Estimator(entry_point=str(tmp_path / "train.py"), distribution={"horovod": {"enabled": True}})
    with pytest.raises(TrainingJobFailed) as raised:
        estimator.fit(logs=None)
    assert "has no Horovod, which distribution={'horovod': ...} needs" in raised.value.reason
    assert "engine_options={'python': ...}" in raised.value.reason


def test_processes_apart_know_nothing_of_each_other(tmp_path):
    """2 hosts x 2: each is rank 0 of 1, with folders of its own, on which the four can't meet."""
    script = """
import json, os
from pathlib import Path
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SM_MODEL_DIR", "HDP_LAUNCHER")
folder = Path(os.environ["SM_OUTPUT_DATA_DIR"])
folder.mkdir(parents=True)
Path(os.environ["SM_MODEL_DIR"]).mkdir(parents=True)
Path(os.environ["SM_MODEL_DIR"], "model").write_text(os.environ["SM_CURRENT_HOST"] + os.environ["LOCAL_RANK"])
(folder / "rank-0.json").write_text(json.dumps({name: os.environ[name] for name in names}))
"""
    (tmp_path / "train.py").write_text(script)
    job = Estimator(
        entry_point=str(tmp_path / "train.py"),
        instance_count=2,
        distribution={"apart": {"enabled": True, "processes_per_host": 2}},
    ).fit(logs=None)
    shutil.unpack_archive(job.output_data.removeprefix("file://"), tmp_path / "out")
    shutil.unpack_archive(job.model_data.removeprefix("file://"), tmp_path / "model")
    seen = [json.loads(path.read_text()) for path in sorted((tmp_path / "out").rglob("rank-0.json"))]
    assert [(s["RANK"], s["WORLD_SIZE"], s["LOCAL_WORLD_SIZE"]) for s in seen] == [("0", "1", "1")] * 4
    assert sorted(s["LOCAL_RANK"] for s in seen) == ["0", "0", "1", "1"]
    assert sorted(path.read_text() for path in (tmp_path / "model").rglob("model") if path.is_file()) == [
        "algo-10", "algo-11", "algo-20", "algo-21",
    ]  # fmt: skip
    assert {s["HDP_LAUNCHER"] for s in seen} == {"apart"}
    assert "WORLD_SIZE" not in os.environ
