"""TensorFlow's jobs through the client, the local engine and the agents: SMDDP's script on Keras 2, and TF_CONFIG."""

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import unquote

import pytest
from versions import interpreter

from hdp.contract.errors import TrainingJobFailed
from hdp.estimator import TensorFlow, TrainingInput

pytestmark = [
    pytest.mark.timeout(300),  # where much else runs
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None,
        reason="TensorFlow isn't installed: pip install 'hdp-train[tensorflow]'",
    ),
]
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
SMDDP = {"smdistributed": {"dataparallel": {"enabled": True}}}
TWO_A_HOST = {"hdp": {"enabled": True, "processes_per_host": 2}}
#: Four ranks share two cores.
ENVIRONMENT = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "TF_CPP_MIN_LOG_LEVEL": "2"}


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDP_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """TFRecords of scikit-learn's digits: the channel's URI."""
    folder = tmp_path_factory.mktemp("records")
    prepare = [sys.executable, str(ROOT / "examples/cifar10_tf/prepare.py"), str(folder)]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(prepare, check=True, env=environ, capture_output=True, timeout=100)
    return (folder / "training").as_uri()


@pytest.fixture(scope="module")
def keras_2():
    """A Python whose TensorFlow has Keras 2, with its private modules that scripts use."""
    return interpreter("2.12")


def article(**arguments):
    """The article's call, less its instance type."""
    return TensorFlow(
        entry_point=str(HERE / "article/train_tf.py"),
        role="SageMakerRole",
        instance_type="local",
        framework_version="2.9.1",
        py_version="py39",
        environment=ENVIRONMENT,
        **{"distribution": SMDDP, **arguments},
    )


def told(job, ranks):
    """What each rank has left in the job's output."""
    with tarfile.open(unquote(job.output_data.removeprefix("file://"))) as archive:
        files = {Path(m.name).name: archive.extractfile(m).read() for m in archive.getmembers() if m.isfile()}
    return [json.loads(files[f"rank-{rank}.json"]) for rank in range(ranks)]


@pytest.mark.slow
def test_smddps_script_trains_on_tensorflow_2_12(records, keras_2):
    """2 hosts x 2: first weights differ; then all bits are equal, the optimizer's too, and the loss is lower."""
    estimator = article(
        instance_count=2, distribution=TWO_A_HOST, engine_options={"python": keras_2}, model_dir="/opt/ml/model"
    )
    ranks = told(estimator.fit(TrainingInput(records, input_mode="File"), logs=None), 4)
    assert [rank["place"] for rank in ranks] == [[0, 4, 0, 2], [1, 4, 1, 2], [2, 4, 0, 2], [3, 4, 1, 2]]
    assert {version for rank in ranks for version in rank["versions"]} == {"2.12.1", "2.12.0"}
    assert {rank["model_dir"] for rank in ranks} == {"/opt/ml/model"}
    assert len({rank["first"] for rank in ranks}) == 4
    assert len({rank["trained"] for rank in ranks}) == len({rank["optimizer"] for rank in ranks}) == 1
    assert ranks[0]["trained"] != ranks[0]["first"]
    assert sum(rank["losses"][1] for rank in ranks) < sum(rank["losses"][0] for rank in ranks)


@pytest.mark.slow
def test_the_articles_call_runs_on_four_hosts(records, keras_2):
    """The dictionary of SMDDP's: one rank a host, and no --model_dir, so the script's own default."""
    estimator = article(instance_count=4, engine_options={"python": keras_2})
    ranks = told(estimator.fit(TrainingInput(records), logs=None), 4)
    assert [rank["place"] for rank in ranks] == [[i, 4, 0, 1] for i in range(4)]
    assert {rank["model_dir"] for rank in ranks} == {"./model"}
    assert len({rank["trained"] for rank in ranks}) == 1


@pytest.mark.slow
def test_a_rank_that_dies_within_fit_is_the_jobs_failure(records, keras_2):
    """Rank 2 of 2 x 2 is killed in step 3. Expected: its name and its end, not its peers' errors."""
    estimator = article(
        instance_count=2,
        distribution=TWO_A_HOST,
        engine_options={"python": keras_2},
        hyperparameters={"dies": 2},
    )
    with pytest.raises(TrainingJobFailed) as caught:
        estimator.fit(records, logs=None)
    assert caught.value.reason.startswith("rank 2 on algo-2 failed (killed by SIGKILL)")


def test_fast_file_mode_is_planned():
    """What the article's first script asks for, on this machine; nothing starts."""
    plan = article(instance_count=4).plan(TrainingInput("s3://bucket/cifar10-tfrecord/", input_mode="FastFile"))
    assert plan.request.training_job["InputDataConfig"][0]["InputMode"] == "FastFile"
    assert len(plan.ranks) == 4


@pytest.mark.slow
def test_multi_worker_mirrored_strategy_trains():
    """2 hosts, TensorFlow's own collectives. Expected: the same bits on both, of the mean of their functions."""
    estimator = TensorFlow(
        entry_point=str(HERE / "mirrored/train_tf.py"),
        instance_count=2,
        distribution={"multi_worker_mirrored_strategy": {"enabled": True}},
        environment=ENVIRONMENT,
    )
    ranks = told(estimator.fit(logs=None), 2)
    assert [rank["config"]["task"]["index"] for rank in ranks] == [0, 1]
    assert {rank["replicas"] for rank in ranks} == {2}
    assert len({rank["weights"] for rank in ranks}) == 1
    assert ranks[0]["kernel"] == pytest.approx([1.0, -2.0, 3.0, 0.5], abs=0.05)
