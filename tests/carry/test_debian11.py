"""On an image without hdp, pip or a network: Debian 11 with Python 3.9, glibc 2.31 and NumPy 1.19 (judgement 4)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from own_wheel import linux_wheel

from hdp.estimator import Estimator

from .conftest import IMAGE, ROLE
from .places import ROOT
from .service import deliver, logs, run, write_script

pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(900)]

#: Two hosts of two ranks: rank r gives r + 1 in each of 100,000 elements, and every rank gets 10.
SCRIPT = """
import platform, subprocess, sys
import numpy as np
import hdp.collectives as hc

comm = hc.init()
total = hc.allreduce(np.full(100_000, comm.rank + 1, dtype=np.float32), comm.world).wait()
print("sum", comm.rank, total.min(), total.max())
print("python", platform.python_version(), "glibc", platform.libc_ver()[1], "numpy", np.__version__)
print("from", hc.__file__)
print("pip", subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode)
"""


@pytest.fixture(scope="module")
def root() -> Path:
    """The file system, made once by tools/debian11.sh."""
    if os.geteuid() != 0:
        pytest.skip("a Debian 11 root can be made and entered by root only")
    done = subprocess.run(["sh", "tools/debian11.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"tools/debian11.sh can't make a Debian 11 root: {(done.stderr or done.stdout)[-500:]}")
    return Path(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def wheel() -> Path:
    """A wheel whose core is for glibc 2.28, as `make wheel` builds it from these sources."""
    return linux_wheel()


Submit = Callable[..., SimpleNamespace]


@pytest.fixture(scope="module")
def submit(aws: Any, network: Any, root: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Submit:
    """Has a job submitted by `fit` to moto, and run in two containers with that root. Gives their exit codes and log.

    files: in source_dir, beside ``train.py``.
    """

    def run_job(name: str, script: str, **files: str) -> SimpleNamespace:
        base = tmp_path_factory.mktemp(name)
        source = write_script(base / "source", script)
        for file, text in files.items():
            (source / f"{file}.txt").write_text(text)
        estimator = Estimator(
            IMAGE,
            ROLE,
            2,
            "ml.c5.xlarge",
            entry_point="train.py",
            source_dir=source,
            distribution={"hdp": {"enabled": True, "processes_per_host": 2}},
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HDP_RUNTIME_WHEEL", str(wheel))
            estimator.fit(wait=False, job_name=name)
        described = aws.client("sagemaker").describe_training_job(TrainingJobName=name)
        containers = deliver(aws.client("s3"), described, base)
        codes = run(network, containers, described, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, image=root)
        return SimpleNamespace(codes=codes, hosts=containers, log=logs(containers))

    return run_job


@pytest.fixture(scope="module")
def job(submit: Submit) -> SimpleNamespace:
    """The allreduce."""
    return submit("debian", SCRIPT)


def test_every_rank_gets_the_sum(job: SimpleNamespace) -> None:
    """2 x 2 ranks, 100,000 elements each."""
    assert job.codes == [0, 0], job.log
    for rank in range(4):
        assert f"sum {rank} 10.0 10.0" in job.log, job.log


def test_it_is_the_old_system_indeed(job: SimpleNamespace) -> None:
    """What the ranks say of it: no pip, and hdp from where the start script has put it."""
    assert "python 3.9" in job.log
    assert "glibc 2.31" in job.log
    assert "numpy 1.19" in job.log
    assert "pip 1" in job.log
    assert "from /opt/ml/hdp-runtime/hdp/collectives/__init__.py" in job.log


def test_the_root_is_as_it_was(job: SimpleNamespace, root: Path) -> None:
    """Nothing of a job stays in the image."""
    assert job.codes
    assert list((root / "opt" / "ml").iterdir()) == []
    assert list((root / "tmp").iterdir()) == []


def test_requirements_without_pip_end_in_a_sentence(submit: Submit) -> None:
    """Debian's Python has neither pip nor ensurepip: the failure file says what to do instead."""
    failed = submit("requires", "print('never')", requirements="numpy\n")
    assert failed.codes == [1, 1]
    said = failed.hosts[0].failure
    assert (
        "/opt/ml/code/requirements.txt can't be installed: /usr/bin/python3 has no pip 22.3 or newer, and no ensurepip"
        in said
    )
    assert "install what it lists in the image, or send it with the code (dependencies)" in said


def test_a_core_for_newer_systems_ends_in_a_sentence(network: Any, root: Path, tmp_path: Path) -> None:
    """Refused on the host, with what it has and what was expected, before a rank starts."""
    check = "from hdp.runtime.carried import lacking_for; from hdp.contract.delivery import Platform; import platform; "
    check += "print(lacking_for(Platform((2, 36), platform.machine()), platform.machine(), platform.libc_ver()))"
    command = ["chroot", str(root), "env", "PYTHONPATH=/mnt", "python3", "-c", check]
    script = 'mount --bind "$0" "$1/mnt"; shift; exec "$@"'
    process = network.popen(
        0, ["sh", "-ec", script, str(ROOT / "runtime"), str(root), *command], cwd="/", stdout=subprocess.PIPE, text=True
    )
    said, _ = process.communicate(timeout=60)
    assert "it has glibc 2.31, and the hdp that travels with the job was built for 2.36 or newer" in said
    assert tmp_path.is_dir()
