"""A real job on the local engine: what the user gave is what the script gets, and what the plan said."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from hdp.estimator import FLAG, Plan, PyTorch

SCRIPT = """
import json, os, sys
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT"]
names += ["HDP_LAUNCHER"]
seen = {
    "hps": json.loads(os.environ["SM_HPS"]),
    "argv": sys.argv[1:],
    "environment": {n: os.environ[n] for n in names},
    "channels": {n: sorted(os.listdir(os.environ["SM_CHANNEL_" + n])) for n in ("TRAINING_DATA",)},
}
with open(os.path.join(os.environ["SM_MODEL_DIR"], "seen-" + os.environ["RANK"] + ".json"), "w") as f:
    json.dump(seen, f)
"""
VALUES: dict[str, Any] = {
    "true": True,
    "none": None,
    "version": "1.10",
    "quote": "it's",
    "n": 3,
    "lr": 1e-3,
    "list": [1, "a b", None],
    "dict": {"a": {"b": [True]}},
    "text": 'é\n"x" $HOME `ls`',
}


@pytest.fixture
def ran(project: Path, home: Path) -> tuple[Plan, list[dict[str, Any]]]:
    """The plan of a job of 2 hosts, and what each of its ranks saw."""
    (project / "train.py").write_text(SCRIPT)
    (project / "data" / "digits.npz").write_text("x")
    estimator = PyTorch("train.py", instance_count=2, hyperparameters={**VALUES, "verbose": FLAG})
    inputs = {"training-data": f"file://{project}/data"}
    plan = estimator.plan(inputs)
    job = estimator.fit(inputs, logs=None)
    archive = unquote((job.model_data or "").removeprefix("file://"))
    with tarfile.open(archive) as tar:
        files = [tar.extractfile(f"seen-{rank}.json") for rank in range(2)]
        return plan, [json.load(f) for f in files if f is not None]


def test_a_job_does_what_the_plan_said(ran: tuple[Plan, list[dict[str, Any]]]) -> None:
    """2 hosts x 1 rank: hyperparameters with their types, argv, rank variables and the channel's files."""
    plan, seen = ran
    assert [s["hps"] for s in seen] == [{**VALUES, "verbose": True}] * 2
    assert [s["argv"] for s in seen] == [list(r.argv[2:]) for r in plan.ranks]
    planned = [{k: v for k, v in r.environment.items() if k != "MASTER_ADDR"} for r in plan.ranks]
    ports = [s["environment"].pop("MASTER_PORT") for s in seen]
    assert [s["environment"] for s in seen] == [{k: v for k, v in p.items() if k != "MASTER_PORT"} for p in planned]
    assert len(set(ports)) == 1
    assert [s["channels"] for s in seen] == [{"TRAINING_DATA": ["digits.npz"]}] * 2
