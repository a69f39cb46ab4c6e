"""framework_version and py_version -> image: what is chosen, what is refused, and what the plan says of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hdp.estimator import Estimator, InstanceGroup, PyTorch, SpecError, TensorFlow, images

from .conftest import IMAGE, ROLE

CLOUD: dict[str, Any] = {"entry_point": "train.py", "role": ROLE, "instance_type": "ml.p4d.24xlarge"}
DLC = "763104351884.dkr.ecr.us-west-2.amazonaws.com"


@pytest.fixture
def oregon(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-west-2")


def image(estimator: Estimator) -> str:
    return str(estimator.plan().request.training_job["AlgorithmSpecification"]["TrainingImage"])


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("2.9.1", "2.9.2-gpu-py39"),
        ("2.9.9", "2.9.2-gpu-py39"),
        ("2.9", "2.9-gpu-py39"),
        ("2.6.1", "2.6.2-gpu-py38"),
        ("2.6.0", "2.6.0-gpu-py38"),
    ],
)
def test_an_unknown_version_is_the_nearest_of_its_minor(version: str, tag: str, oregon: None) -> None:
    """Of two that are as near the newer; an alias stays as it is."""
    assert image(TensorFlow(**CLOUD, framework_version=version)) == f"{DLC}/tensorflow-training:{tag}"


def test_the_plan_says_what_was_chosen(oregon: None) -> None:
    """Both that the version is another one, and where the image comes from, with the table's date."""
    notes = TensorFlow(**CLOUD, framework_version="2.9.1", py_version="py39").plan().notes
    assert "there is no tensorflow image of 2.9.1; 2.9.2, the nearest of the same minor, stands for it" in notes
    assert f"image, by hdp's table of 2026-12-01: {DLC}/tensorflow-training:2.9.2-gpu-py39" in notes


def test_a_given_image_wins(oregon: None) -> None:
    """Even beside versions, and on hosts that AWS's images don't run on."""
    assert image(PyTorch(**CLOUD, framework_version="2.8", py_version="py312", image_uri=IMAGE)) == IMAGE
    arm = {**CLOUD, "instance_type": "ml.p6e-gb200.36xlarge"}
    assert image(PyTorch(**arm, image_uri=IMAGE)) == IMAGE


def test_the_instance_type_chooses_cpu_or_gpu(oregon: None) -> None:
    """m5: cpu. Of several groups, the first with GPUs."""
    cpu = {**CLOUD, "instance_type": "ml.m5.xlarge"}
    assert image(PyTorch(**cpu, framework_version="2.8.0")) == f"{DLC}/pytorch-training:2.8.0-cpu-py312"
    groups = [InstanceGroup("data", "ml.c5.xlarge", 1), InstanceGroup("ranks", "ml.g5.xlarge", 1)]
    mixed = PyTorch("train.py", role=ROLE, instance_groups=groups, framework_version="2.8.0")
    assert image(mixed) == f"{DLC}/pytorch-training:2.8.0-gpu-py312"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, "framework_version is missing; give it and py_version, or image_uri"),
        ({"py_version": "py312"}, "framework_version is missing (py_version alone names no image); give it and"),
        (
            {"framework_version": "2.15"},
            "framework_version is '2.15'; pytorch images are known for 2.8, 2.7, 2.6, 2.5, 2.4, 2.3, 2.2, 2.1, 2.0, "
            "1.13, 1.12, 1.11, 1.10, 1.9, 1.8, 1.7 (hdp's table of 2026-12-01): choose one of them, or give image_uri",
        ),
        ({"framework_version": "latest"}, "framework_version is 'latest'; pytorch images are known for 2.8, "),
        (
            {"framework_version": "2.8", "py_version": "py310"},
            "py_version is 'py310'; the pytorch images of 2.8 have 'py312': give that, or image_uri",
        ),
        (
            {"framework_version": "1.8"},
            "py_version is missing; framework_version '1.8' has images with 'py3', 'py36': choose one",
        ),
        (
            {"framework_version": "2.8", "instance_type": "ml.trn1.32xlarge"},
            "instance_type is 'ml.trn1.32xlarge', with Neuron chips, which need images of their own: give image_uri",
        ),
        (
            {"framework_version": "2.8", "instance_type": "ml.p6e-gb200.36xlarge"},
            "instance_type is 'ml.p6e-gb200.36xlarge', with ARM processors; AWS's training images are for x86: choose",
        ),
        (
            {"framework_version": "2.8", "distribution": {"smdistributed": {"dataparallel": {"enabled": True}}}},
            "distribution.smdistributed: Amazon's library isn't in the pytorch images after 2.2, and framework_version "
            "is '2.8'; use {'hdp': {'enabled': True}}, or give image_uri",
        ),
        (
            {
                "framework_version": "2.2",
                "instance_type": "ml.p5.48xlarge",
                "distribution": {"smdistributed": {"dataparallel": {"enabled": True}}},
            },
            "distribution.smdistributed: on ml.p5.48xlarge Amazon's library needs torchrun: add 'torch_distributed': {",
        ),
    ],
)
def test_what_names_no_image_is_refused(arguments: dict[str, Any], fault: str, project: Path) -> None:
    """At the constructor, alone and in words."""
    with pytest.raises(SpecError) as raised:
        PyTorch(**{**CLOUD, **arguments})
    assert len(raised.value.faults) == 1
    assert raised.value.faults[0].startswith(fault)


def test_a_generic_estimator_needs_an_image(project: Path) -> None:
    """It has no framework to look one up by."""
    with pytest.raises(SpecError, match="image_uri is missing; the sagemaker engine runs a container image: give its"):
        Estimator(**CLOUD)


def test_a_region_without_the_image_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the plan is made, since the region isn't an argument; with the name that was meant."""
    monkeypatch.setenv("AWS_REGION", "us-wst-2")
    estimator = PyTorch(**CLOUD, framework_version="2.8.0")
    with pytest.raises(SpecError) as raised:
        estimator.plan()
    assert raised.value.faults == (
        "framework_version '2.8.0': pytorch has no image of it in the region 'us-wst-2'; did you mean 'us-west-2'?; "
        "give image_uri",
    )


@pytest.mark.parametrize("inside", ["image_uri_config", "core/image_uri_config"])
def test_an_installed_sdks_table_goes_first(inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `sagemaker`, v2 or v3, with one more version: found, not imported; ours serves what it lacks."""
    where = tmp_path / "sagemaker" / inside
    where.mkdir(parents=True)
    (tmp_path / "sagemaker" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    row = {"repository": "pytorch-training", "py_versions": ["py313"], "registries": {"us-west-2": "1" * 12}}
    config = {
        "training": {"processors": ["cpu", "gpu"], "versions": {"9.1.0": row}, "version_aliases": {"9.1": "9.1.0"}}
    }
    (where / "pytorch.json").write_text(json.dumps(config))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sagemaker", raising=False)
    images.tables.cache_clear()
    try:
        found = images.find("pytorch", "9.1", None)
        uri = images.uri("pytorch", found, "ml.g5.xlarge", "us-west-2")
        assert uri == "111111111111.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:9.1-gpu-py313"
        assert images.find("pytorch", "2.8.0", None).tag == "2.8.0"
        assert images.tables("pytorch").source == "the installed SDK's table"
    finally:
        images.tables.cache_clear()
