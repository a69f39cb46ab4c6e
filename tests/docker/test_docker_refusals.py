"""What the docker engine refuses, and says, without a daemon."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from hdp.contract.errors import EngineError, SpecError
from hdp.estimator import PyTorch, TensorFlow, TrainingInput
from hdp.estimator.cli.app import app
from hdp.estimator.engines.docker import daemon, gpus, images, options
from hdp.estimator.engines.docker.engine import DockerEngine


@pytest.fixture(autouse=True)
def _no_daemon(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "HDP_FASTFILE_FALLBACK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("pass")
    return str(path)


def refusal(script, inputs=None, **more):
    with pytest.raises(SpecError) as caught:
        PyTorch(entry_point=script, instance_type="docker", **more).plan(inputs)
    return str(caught.value)


def image_of(made):
    return made.plan().request.training_job["AlgorithmSpecification"]["TrainingImage"]


def test_a_missing_daemon_is_named_at_fit(script, tmp_path):
    with pytest.raises(EngineError) as caught:
        PyTorch(entry_point=script, instance_type="docker").fit()
    said = str(caught.value)
    assert f"no Docker daemon answers at unix://{tmp_path}/no.sock: start it" in said
    assert 'instance_type="local" runs the same job without Docker' in said
    assert not list((tmp_path / "home/jobs").iterdir())


def test_a_plan_needs_no_daemon(script):
    plan = PyTorch(entry_point=script, instance_type="docker", instance_count=2).plan()
    assert plan.request.training_job["AlgorithmSpecification"]["TrainingImage"] == "hdp-torch"
    assert any("fit() will refuse: no Docker daemon answers" in note for note in plan.notes)


def test_a_daemon_elsewhere_is_refused():
    with pytest.raises(EngineError, match=r"'tcp://far:2375', a daemon of another machine.*expected unix://"):
        daemon.connect("tcp://far:2375")


@pytest.mark.parametrize(
    ("kind", "launcher", "image"),
    [
        (PyTorch, "hdp", "hdp-torch"),
        (TensorFlow, "hdp", "hdp-tensorflow"),
        (PyTorch, "mpi", "hdp-mpi"),
        (TensorFlow, "mpi", "hdp-mpi-tensorflow"),
    ],
)
def test_the_image_follows_from_the_job(kind, launcher, image, script):
    made = kind(entry_point=script, instance_type="docker", distribution={launcher: {"enabled": True}})
    assert image_of(made) == image


def test_an_image_of_the_users_own_stays(script):
    assert image_of(PyTorch(entry_point=script, instance_type="docker", image_uri="mine:3")) == "mine:3"


def test_the_frameworks_version_chooses_no_image(script):
    made = PyTorch(entry_point=script, instance_type="docker", framework_version="2.9", py_version="py311")
    note = "choose no image here: the docker engine runs the image that image_uri names, or that of `hdp build`"
    assert any(note in line for line in made.plan().notes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": "lots"}, '\'lots\' is no amount of memory; expected e.g. "512m" or "4g"'),
        ({"memory": "1k"}, "at least 6m"),
        ({"user": "root"}, "'root' is no user; expected numbers"),
        ({"pull": "always"}, "'always'"),
        ({"memroy": "4g"}, "did you mean 'memory'"),
        ({"gpus": -1}, "gpus"),
    ],
)
def test_a_bad_option_is_named(given, said):
    _, faults = options.parse(given)
    assert len(faults) == 1 and "engine_options" in faults[0] and said in faults[0]


def test_fastfile_without_fuse_says_how_to_allow_it(script):
    said = refusal(script, TrainingInput("s3://bucket/train/", input_mode="FastFile"))
    assert "channel 'training': input_mode='FastFile' needs FUSE" in said
    assert "engine_options={'fuse': True}" in said and "HDP_FASTFILE_FALLBACK=file" in said


def test_an_s3_server_on_loopback_is_out_of_reach(script, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")
    said = refusal(script, "s3://bucket/train/")
    assert (
        "AWS_ENDPOINT_URL_S3 is 'http://127.0.0.1:9000', but in a container 127.0.0.1 is the container itself" in said
    )
    assert "docker0's (172.17.0.1)" in said


def test_a_source_that_would_hide_the_image_is_refused(script):
    said = refusal(script, "file:///usr/share")
    assert "channel 'training': /usr/share can't be mounted into a container" in said and "own /usr" in said


def test_isolation_and_s3_do_not_go_together(script):
    assert "enable_network_isolation" in refusal(script, "s3://bucket/train/", enable_network_isolation=True)


def test_checkpoints_in_s3_are_refused(script):
    said = refusal(script, checkpoint_s3_uri="s3://bucket/kept")
    assert "the docker engine keeps checkpoints in a folder; write file:///absolute/path" in said


def test_gpus_without_nvidias_runtime_are_refused():
    [said] = gpus.faults(2, hosts=2, usable=4, info={"Runtimes": {"runc": {}}})
    assert "engine_options.gpus=2: this Docker daemon has no NVIDIA runtime" in said


def test_more_gpus_than_there_are_is_refused():
    [said] = gpus.faults(4, hosts=2, usable=4, info={"Runtimes": {"nvidia": {}}})
    assert "2 host(s) would need 8, and 4 can be used" in said


def test_gpus_are_divided_among_the_hosts():
    assert gpus.per_host(None, hosts=2, usable=8, info={"Runtimes": {"nvidia": {}}}) == 4
    assert gpus.per_host(None, hosts=2, usable=8, info={"Runtimes": {"runc": {}}}) == 0


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("hdp-mpi-tensorflow:latest", "`hdp build mpi --framework tensorflow` makes it"),
        ("hdp-torch", "`hdp build torch` makes it"),
        ("mine/image:3", "`docker pull mine/image:3` gets it"),
    ],
)
def test_the_remedy_for_a_missing_image(image, said):
    assert said in images.remedy(image)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pytorch"], "'pytorch' is no kind of image; did you mean 'torch'?; expected one of torch, tensorflow, mpi"),
        (["mpi", "--framework", "keras"], "'keras'; expected torch or tensorflow"),
        (["torch", "--build-arg", "HDP"], "'HDP': expected NAME=VALUE"),
    ],
)
def test_a_bad_build_is_refused_before_the_daemon_is_asked(arguments, said):
    done = CliRunner().invoke(app, ["build", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2 and said in done.output


def test_the_engine_has_every_verb():
    engine = DockerEngine()
    assert engine.name == "docker" and engine.capabilities().interface == "eth0"
