"""Jobs with hosts of several kinds: ranks in the distribution's groups, the script alone on every other host."""

import json
import time
from pathlib import Path

import pytest

from hdp.contract.errors import TrainingJobFailed
from hdp.estimator import FLAG, Estimator, InstanceGroup, TrainingInput

PEERS = Path(__file__).parents[2] / "build/peers"
VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
    "HDP_LAUNCHER", "SM_CURRENT_INSTANCE_GROUP", "SM_CURRENT_HOST", "SM_TRAINING_ENV",
)  # fmt: skip
#: A rank sums rank + 1 over all; a host without ranks only reports, or does what it is told to.
SCRIPT = f"""
import json, os, signal, sys, time
from pathlib import Path


def total(kind, mine):
    if kind == "hdp":
        import numpy as np
        import hdp.collectives as hc
        comm = hc.init()
        return hc.allreduce(np.full(4, mine), comm.world).wait()[3]
    if kind == "mpi":
        from mpi4py import MPI
        return MPI.COMM_WORLD.allreduce(mine)
    import torch
    if kind == "horovod":
        import horovod.torch as hvd
        hvd.init()
        return hvd.allreduce(torch.tensor([mine]), op=hvd.Sum).item()
    import torch.distributed as dist
    dist.init_process_group("gloo")
    tensor = torch.tensor([mine])
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor.item()


seen = {{name: os.environ.get(name) for name in {VARIABLES}}}
rank = seen["RANK"]
checkpoints = Path(os.environ["SM_CHECKPOINT_DIR"])
if rank is None and "--fail" in sys.argv:
    while len(list(checkpoints.glob("waiting-*"))) < 5:
        time.sleep(0.05)
    raise ValueError("nothing to feed")
if "--wait" in sys.argv:
    def save(*_):
        checkpoints.joinpath("feeder" if rank is None else rank).write_text("state")
        sys.exit()
    signal.signal(signal.SIGTERM, save)
    checkpoints.joinpath(f"waiting-{{rank}}").touch()
    print("waiting", flush=True)
    time.sleep(600)
if rank is not None:
    seen["total"] = float(total(seen["HDP_LAUNCHER"], int(rank) + 1.0))
channels = {{name: sorted(os.listdir(os.environ["SM_CHANNEL_" + name.upper()])) for name in
            json.loads(os.environ["SM_CHANNELS"])}}
seen["channels"] = channels
Path(os.environ["SM_OUTPUT_DATA_DIR"], f"{{rank or seen['SM_CURRENT_HOST']}}.json").write_text(json.dumps(seen))
"""
GROUPS = [InstanceGroup("feeders", "local", 1), InstanceGroup("large", "local", 2), InstanceGroup("small", "local", 1)]
#: algo-2 and algo-3 have two ranks each, algo-4 has one; algo-1 has none.
UNEQUAL = {"processes_per_host": {"large": 2, "small": 1}}
HOST_OF_RANK = ["algo-2", "algo-2", "algo-3", "algo-3", "algo-4"]


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDP_HOME", str(tmp_path_factory.mktemp("home")))
        yield folder


def _start(code, kind, inputs=None, hyperparameters=None, **arguments):
    strategy = {"enabled": True, **arguments.pop("strategy", UNEQUAL)}
    distribution = {kind: strategy, "instance_groups": arguments.pop("ranked", ["large", "small"])}
    estimator = Estimator(
        entry_point="train.py", source_dir=str(code), instance_groups=GROUPS, distribution=distribution,
        hyperparameters=hyperparameters, **arguments,
    )  # fmt: skip
    return estimator.fit(inputs, wait=False)


def _seen(job):
    """What the processes have left: ranks by their number, others by their host."""
    job.wait(logs=None)
    hosts = job.describe()["Hdp"]["hosts"]
    files = [file for host in hosts for file in Path(host["tree"], "output/data").glob("*.json")]
    return {file.stem: json.loads(file.read_text()) for file in files}, {h["host"]: h["address"] for h in hosts}


@pytest.fixture(scope="module")
def hdp_job(code, tmp_path_factory):
    """A job under hdp's launcher; the feeders have the channel "raw", the others a share of "labels"."""
    data = tmp_path_factory.mktemp("data")
    for name in "abc":
        (data / name).write_text(name)
    raw = TrainingInput(data.as_uri(), instance_groups=["feeders"])
    labels = TrainingInput(data.as_uri(), "ShardedByS3Key", instance_groups=["large", "small"])
    return _seen(_start(code, "hdp", {"raw": raw, "labels": labels}))


def _check_ranks(seen):
    """5 ranks on 3 hosts, as they see it themselves, and a sum over all of them; a host without ranks beside them."""
    ranks = [seen[str(rank)] for rank in range(5)]
    assert [r["SM_CURRENT_HOST"] for r in ranks] == HOST_OF_RANK
    assert [r["LOCAL_RANK"] for r in ranks] == ["0", "1", "0", "1", "0"]
    assert [r["LOCAL_WORLD_SIZE"] for r in ranks] == ["2", "2", "2", "2", "1"]
    assert [r["GROUP_RANK"] for r in ranks] == ["0", "0", "1", "1", "2"]
    assert {(r["WORLD_SIZE"], r["GROUP_WORLD_SIZE"], r["total"]) for r in ranks} == {("5", "3", 15.0)}
    assert set(seen) == {"algo-1", "0", "1", "2", "3", "4"}


def test_ranks_of_unequal_hosts_work_together(hdp_job):
    """2 + 2 + 1 ranks: each sees its place, and the sum."""
    _check_ranks(hdp_job[0])


def test_ranks_meet_at_the_first_host_of_the_group(hdp_job):
    """algo-2, not algo-1."""
    seen, addresses = hdp_job
    assert {seen[str(rank)]["MASTER_ADDR"] for rank in range(5)} == {addresses["algo-2"]}


def test_a_host_without_ranks_runs_the_script_alone(hdp_job):
    """algo-1: no variable of a rank; which group it is in, and which hosts have ranks."""
    feeder = hdp_job[0]["algo-1"]
    rank_variables = VARIABLES[: VARIABLES.index("HDP_LAUNCHER")]
    assert {name: feeder[name] for name in rank_variables} == dict.fromkeys(rank_variables)
    assert (feeder["HDP_LAUNCHER"], feeder["SM_CURRENT_INSTANCE_GROUP"]) == ("none", "feeders")
    told = json.loads(feeder["SM_TRAINING_ENV"])
    assert told["distribution_hosts"] == ["algo-2", "algo-3", "algo-4"]
    assert (told["master_hostname"], told["distribution_instance_groups"]) == ("algo-2", ["large", "small"])


def test_hosts_get_the_channels_of_their_group(hdp_job):
    """All of raw for the feeders; a third of labels for each of the 3 other hosts."""
    seen, _ = hdp_job
    assert {s["SM_CURRENT_HOST"]: s["channels"] for s in seen.values()} == {
        "algo-1": {"raw": ["a", "b", "c"]},
        "algo-2": {"labels": ["a"]},
        "algo-3": {"labels": ["b"]},
        "algo-4": {"labels": ["c"]},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "peer", "make"),
    [
        ("torch_distributed", None, "make setup"),
        ("horovod", "horovod", "make horovod"),
        ("mpi", "openmpi", "make peers"),
        ("mpi", "mpich", "make peers"),
    ],
)
def test_every_launcher_takes_unequal_hosts(code, kind, peer, make):
    """2 + 2 + 1 ranks under it, and a host without: the same places and the same sum as under hdp."""
    if peer is None:
        pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")
    elif not (PEERS / peer).exists():
        pytest.skip(f"needs build/peers/{peer}: {make}")
    options = {"engine_options": {"python": str(PEERS / peer / "bin/python")}} if peer else {}
    _check_ranks(_seen(_start(code, kind, **options))[0])


@pytest.mark.slow
def test_a_failure_on_a_host_without_ranks_is_named(code, tmp_path):
    """The feeder raises while the ranks wait. Expected: its exception, its host; the ranks are told to stop."""
    job = _start(code, "hdp", hyperparameters={"fail": FLAG, "wait": FLAG}, checkpoint_s3_uri=tmp_path.as_uri())
    with pytest.raises(TrainingJobFailed) as caught:
        job.wait(logs=None)
    assert caught.value.reason.startswith("host algo-1 failed (exit code 1): ValueError: nothing to feed\nTraceback")
    ends = [(r["host"], r["rank"], r["exit_code"]) for r in job.describe()["Hdp"]["ranks"]]
    assert ends == [("algo-1", None, 1), *((host, rank, 0) for rank, host in enumerate(HOST_OF_RANK))]


@pytest.mark.slow
def test_a_stop_reaches_hosts_without_ranks(code):
    """SIGTERM to all: the feeder's checkpoint is listed beside the ranks'."""
    job = _start(code, "hdp", hyperparameters={"wait": FLAG})
    deadline = time.monotonic() + 60
    while sum(line.text == "waiting" for line in job.engine.logs(job.name, {}).lines) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    job.stop()
    while job.describe()["TrainingJobStatus"] != "Stopped":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    saved = [(r["rank"], r["checkpoints"]) for r in job.describe()["Hdp"]["ranks"]]
    assert saved == [(None, ["feeder"]), *((rank, [str(rank)]) for rank in range(5))]
