"""What a request on SageMaker says so that hdp's own launchers start on any image, and what is refused for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hdp.contract.delivery import ENTRYPOINT, INSTALLED_ENTRYPOINT
from hdp.contract.errors import SpecError
from hdp.estimator import Estimator

from .conftest import IMAGE, ROLE
from .service import write_script

HDP = {"hdp": {"enabled": True, "processes_per_host": 1}}
AWS_IMAGE = "763104351884.dkr.ecr.us-west-2.amazonaws.com/tensorflow-training:"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    return write_script(tmp_path / "source", "print(1)\n")


def estimator(source: Path, **changes: Any) -> Estimator:
    arguments: dict[str, Any] = {
        "image_uri": IMAGE,
        "role": ROLE,
        "instance_count": 2,
        "instance_type": "ml.c5.xlarge",
        "entry_point": "train.py",
        "source_dir": source,
        "distribution": HDP,
        "output_path": "s3://bucket/out",
    }
    return Estimator(**{**arguments, **changes})


def request(source: Path, **changes: Any) -> dict[str, Any]:
    return dict(estimator(source, **changes).plan(job_name="job").request.training_job)


def channels(job: dict[str, Any]) -> dict[str, str]:
    found = job.get("InputDataConfig", ())
    return {c["ChannelName"]: c["DataSource"]["S3DataSource"]["S3Uri"] for c in found}


def fault(source: Path, inputs: Any = None, **changes: Any) -> str:
    with pytest.raises(SpecError) as raised:
        estimator(source, **changes).plan(inputs, job_name="job")
    return "\n".join(raised.value.faults)


@pytest.mark.parametrize("kind", ["hdp", "horovod", "apart"])
def test_our_launchers_bring_channels_and_entry_point(source: Path, kind: str) -> None:
    """Code, runtime and secret, each below output_path; the code's path in the container is the script's archive."""
    job = request(source, distribution={kind: HDP["hdp"]})
    assert tuple(job["AlgorithmSpecification"]["ContainerEntrypoint"]) == ENTRYPOINT
    found = channels(job)
    assert list(found) == ["code", "hdp_runtime", "hdp_secret"]
    assert found["code"].startswith("s3://bucket/out/hdp-code/")
    assert found["hdp_runtime"].startswith("s3://bucket/out/hdp-runtime/")
    assert found["hdp_runtime"].endswith("/")
    assert found["hdp_secret"] == "s3://bucket/out/hdp-secret/job/"
    directory = job["HyperParameters"]["sagemaker_submit_directory"]
    assert directory == '"/opt/ml/input/data/code/sourcedir.tar.gz"'


@pytest.mark.parametrize("distribution", [None, {"mpi": HDP["hdp"]}, {"torch_distributed": {"enabled": True}}])
def test_what_the_image_s_own_toolkit_serves_is_left_to_it(source: Path, distribution: Any) -> None:
    """No channel and no entry point of ours; the code is fetched as SDK v2 has it."""
    job = request(source, distribution=distribution)
    assert "ContainerEntrypoint" not in job["AlgorithmSpecification"]
    assert channels(job) == {}
    assert job["HyperParameters"]["sagemaker_submit_directory"].startswith('"s3://bucket/out/hdp-code/')


def test_an_image_with_hdp_gets_no_wheel(source: Path) -> None:
    """engine_options={"runtime": "image"}: its own installation is started; code and secret still come."""
    job = request(source, engine_options={"runtime": "image"})
    assert tuple(job["AlgorithmSpecification"]["ContainerEntrypoint"]) == INSTALLED_ENTRYPOINT
    assert list(channels(job)) == ["code", "hdp_secret"]


def test_an_image_with_hdp_may_have_its_own_entry_point(source: Path) -> None:
    """Given, it is sent."""
    job = request(source, engine_options={"runtime": "image"}, container_entry_point=["/start"])
    assert job["AlgorithmSpecification"]["ContainerEntrypoint"] == ["/start"]


def test_the_runtime_s_place_follows_from_its_content(source: Path) -> None:
    """Two plans, one place; another core, another place."""
    assert channels(request(source)) == channels(request(source, hyperparameters={"lr": 0.1}))


def test_an_entry_point_of_the_user_is_refused(source: Path) -> None:
    """Both can't start the container; the message says what to do."""
    said = fault(source, container_entry_point=["/start"], container_arguments=["-v"])
    assert said.count("can't go with the distribution 'hdp', for which hdp's own entry point starts the ranks") == 2
    assert "engine_options={'runtime': 'image'} if the image has hdp" in said


def test_a_channel_with_a_name_of_ours_is_refused(source: Path) -> None:
    """The user's `hdp_secret`."""
    said = fault(source, {"hdp_secret": "s3://bucket/s"})
    assert "inputs: hdp needs the channel 'hdp_secret' for itself; rename yours" in said


def test_twenty_channels_are_counted_with_ours(source: Path) -> None:
    """18 of the user's and 3 of ours."""
    said = fault(source, {f"c{i}": f"s3://bucket/{i}" for i in range(18)})
    assert "inputs has 18 channels, and 3 of hdp's (code, hdp_runtime, hdp_secret) come with them" in said
    assert len(channels(request(source))) == 3
    estimator(source).plan({f"c{i}": f"s3://bucket/{i}" for i in range(17)})


def test_hosts_of_another_processor_are_refused(source: Path) -> None:
    """Grace; the core here is this machine's."""
    import platform

    if platform.machine() != "x86_64":
        pytest.skip("written for x86_64")
    said = fault(source, instance_type="ml.p6e-gb200.36xlarge")
    assert "'ml.p6e-gb200.36xlarge' has aarch64 processors, and the hdp here is for x86_64; name a wheel" in said


def test_an_image_too_old_for_the_core_is_refused_before_anything_is_sent(source: Path, tmp_path: Path) -> None:
    """A core for glibc 2.36 and an image of Ubuntu 20.04, which has 2.31."""
    wheel = fake_wheel(tmp_path, b"GLIBC_2.36")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDP_RUNTIME_WHEEL", str(wheel))
        for tag in ("2.9-gpu-py39", "2.9.2-gpu-py39-cu112-ubuntu20.04-sagemaker"):
            said = fault(source, image_uri=AWS_IMAGE + tag)
            assert "this image has glibc 2.31 at most, and the hdp here was built for 2.36 or newer; install" in said


def test_an_image_that_was_looked_up_is_looked_at_too(source: Path, tmp_path: Path) -> None:
    """PyTorch 2.2 by its version; its image has Ubuntu 22.04."""
    from hdp.estimator import PyTorch

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDP_RUNTIME_WHEEL", str(fake_wheel(tmp_path, b"GLIBC_2.36")))
        patch.setenv("AWS_REGION", "us-east-1")
        with pytest.raises(SpecError) as refused:
            PyTorch(
                entry_point="train.py", source_dir=str(source), role=ROLE, instance_type="ml.p4d.24xlarge",
                framework_version="2.2", py_version="py310", distribution={"hdp": {"enabled": True}},
                output_path="s3://bucket/out",
            ).plan()  # fmt: skip
    assert "framework_version: this image has glibc 2.35 at most, and the hdp here was built for 2.36" in str(
        refused.value
    )


def test_the_plan_says_what_the_image_needs(source: Path) -> None:
    """Python, NumPy, processor and glibc."""
    notes = "\n".join(estimator(source).plan().notes)
    assert "hdp travels with the job (" in notes
    assert "its image needs python3 of 3.9 or newer, NumPy for hdp.collectives, and Linux on" in notes
    assert "with glibc 2." in notes


def test_without_a_core_for_linux_nothing_is_planned(source: Path, tmp_path: Path) -> None:
    """A wheel without one, as a Mac's: the message names the file and what is missing."""
    wheel = fake_wheel(tmp_path, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDP_RUNTIME_WHEEL", str(wheel))
        said = fault(source)
    assert f"HDP_RUNTIME_WHEEL: {wheel} has no hdp/collectives/libhdp_core.so; expected a wheel of hdp" in said


def test_planning_loads_no_runtime(source: Path) -> None:
    """The client reads the runtime's files; it doesn't import them, nor boto3 before it is needed."""
    code = "import hdp.estimator, sys; print([m for m in sys.modules if m.startswith(('hdp.runtime', 'boto3'))])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert source


def fake_wheel(folder: Path, version: bytes | None) -> Path:
    """A wheel of this machine's core, whose newest version of glibc is called `version`; None: without a core."""
    import zipfile

    from hdp.collectives import library
    from hdp.estimator.delivery import elf
    from hdp.estimator.delivery.libraries import CORE

    path = folder / "some.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hdp/__about__", "x")
        if version is not None:
            core = library.library_path().read_bytes()
            newest = "GLIBC_{}.{}\0".format(*elf.platform_of(core).glibc).encode()
            archive.writestr(CORE, core.replace(newest, (version + b"\0").ljust(len(newest), b"\0")[: len(newest)]))
    return path
