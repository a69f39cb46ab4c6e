"""The start script and what it hands over to: what an image lacks is in its failure file before any rank starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from hdp.contract.delivery import ENTRYPOINT, RUNTIME_CHANNEL, SECRET_CHANNEL, START, Platform
from hdp.contract.files import Layout
from hdp.estimator.delivery import runtime_files
from hdp.runtime.carried import lacking_for
from hdp.runtime.pickup import with_secret
from hdp.runtime.settings import load_settings

from .service import make_image


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return runtime_files()


@pytest.fixture
def layout(tmp_path: Path, files: dict[str, bytes]) -> Layout:
    """One host of a job with {"hdp": ...}, as the service lays it."""
    layout = Layout(tmp_path / "ml")
    channel = layout.channel(RUNTIME_CHANNEL)
    for folder in (channel, layout.config, layout.channel(SECRET_CHANNEL), layout.channel("code")):
        folder.mkdir(parents=True)
    for name, content in files.items():
        (channel / name).write_bytes(content)
    (layout.channel(SECRET_CHANNEL) / "secret").write_text("5" * 64)
    (layout.code).mkdir()
    (layout.code / "train.py").write_text("print('ran')\n")
    parameters = {"sagemaker_program": '"train.py"', "sagemaker_hdp_enabled": "true"}
    layout.hyperparameters.write_text(json.dumps(parameters))
    layout.resourceconfig.write_text(json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]}))
    return layout


def start(layout: Layout, python: str = sys.executable, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the entry point's script by `python`, with nothing of hdp in the environment."""
    base = {k: v for k, v in os.environ.items() if not k.startswith(("HDP_", "SM_", "PYTHON"))}
    return subprocess.run(
        [python, "-S", str(layout.channel(RUNTIME_CHANNEL) / START)],
        env={**base, "SAGEMAKER_BASE_DIR": str(layout.root), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_entry_point_is_the_script_in_its_channel() -> None:
    """Where the service puts it."""
    assert ("python3", str(Layout(Path("/opt/ml")).channel(RUNTIME_CHANNEL) / START)) == ENTRYPOINT


def test_a_job_runs_from_the_wheel(layout: Layout, tmp_path: Path) -> None:
    """One host, one rank, a Python without hdp; hdp is the unpacked one."""
    folder = make_image(tmp_path / "image", [Path(numpy.__file__).parents[1]]).partition(":")[0]
    (layout.code / "train.py").write_text("import hdp.collectives as hc; print('from', hc.__file__)\n")
    done = start(layout, f"{folder}/python3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"from {layout.root}/hdp-runtime/hdp/collectives/__init__.py" in done.stdout


def test_it_can_start_twice(layout: Layout) -> None:
    """A restarted container with the same volume: what the first has left is replaced."""
    (layout.root / "hdp-runtime").mkdir()
    (layout.root / "hdp-runtime" / "old.py").touch()
    assert start(layout).returncode == 0
    assert start(layout).returncode == 0
    assert not (layout.root / "hdp-runtime" / "old.py").exists()


def test_an_old_python_is_told(layout: Layout) -> None:
    """3.6 to 3.8: a sentence in the log and in the failure file."""
    old = next(iter(sorted(Path.home().glob(".pyenv/versions/3.[678].*/bin/python"))), None) or shutil.which(
        "python3.8"
    )
    if old is None:
        pytest.skip("no Python older than 3.9 here")
    done = start(layout, str(old))
    assert done.returncode == 1
    assert layout.failure.read_text() == done.stderr.strip()
    assert "hdp can't start in this image: its python3 is 3." in done.stderr
    assert "hdp needs 3.9 or newer; use another image" in done.stderr


def test_a_channel_without_a_wheel_is_told(layout: Layout) -> None:
    """Somebody has removed the object."""
    for wheel in layout.channel(RUNTIME_CHANNEL).glob("*.whl"):
        wheel.unlink()
    done = start(layout)
    assert done.returncode == 1
    assert layout.failure.read_text().startswith("hdp can't start in this image: expected one wheel in ")


def test_a_damaged_wheel_is_told(layout: Layout) -> None:
    """Half of it."""
    [wheel] = layout.channel(RUNTIME_CHANNEL).glob("*.whl")
    wheel.write_bytes(wheel.read_bytes()[:1000])
    assert start(layout).returncode == 1
    assert layout.failure.read_text() == "hdp can't start in this image: File is not a zip file"


def test_an_image_without_numpy_is_told(layout: Layout, tmp_path: Path) -> None:
    """A Python without any package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    done = start(layout, str(tmp_path / "bare" / "bin" / "python"))
    assert done.returncode == 1
    said = layout.failure.read_text()
    assert "algo-1" in said
    assert "this image can't run hdp: NumPy isn't installed for " in said


@pytest.mark.parametrize(
    ("machine", "libc", "said"),
    [
        ("x86_64", ("glibc", "2.31"), ""),
        ("x86_64", ("glibc", "2.28"), ""),
        ("x86_64", ("glibc", "2.27"), "it has glibc 2.27, and the hdp that travels with the job was built for 2.28"),
        ("x86_64", ("", ""), "its C library is not glibc, and hdp needs glibc 2.28 or newer"),
        ("x86_64", ("musl", "1.2"), "its C library is musl, and hdp needs glibc 2.28 or newer"),
        ("aarch64", ("glibc", "2.31"), "its processor is aarch64, and the hdp that travels with the job is for x86_64"),
    ],
)
def test_an_image_is_compared_with_what_the_core_needs(machine: str, libc: tuple[str, str], said: str) -> None:
    """A core for glibc 2.28 on x86_64."""
    found = lacking_for(Platform((2, 28), "x86_64"), machine, libc)
    assert [line.startswith(said) for line in found] == ([True] if said else [])


def test_the_delivered_secret_becomes_private(layout: Layout) -> None:
    """0644 as the service writes it; then 0600, and the agent's."""
    delivered = layout.channel(SECRET_CHANNEL) / "secret"
    delivered.chmod(0o644)
    settings = with_secret(load_settings({"SAGEMAKER_BASE_DIR": str(layout.root)}))
    assert settings.secret_file == delivered
    assert delivered.stat().st_mode & 0o777 == 0o600


def test_a_secret_that_an_engine_names_goes_before_it(layout: Layout, tmp_path: Path) -> None:
    """HDP_SECRET_FILE is taken as it is."""
    environ = {"SAGEMAKER_BASE_DIR": str(layout.root), "HDP_SECRET_FILE": str(tmp_path / "other")}
    assert with_secret(load_settings(environ)).secret_file == tmp_path / "other"
