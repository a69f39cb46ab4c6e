"""An interpreter without hdp runs a job's hosts, where it has NumPy."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hdp.contract.errors import SpecError
from hdp.estimator import Estimator
from hdp.estimator.engines.local import lending

SCRIPT = """
import numpy as np
import hdp.collectives as hc
import sys

comm = hc.init()
print("sum", hc.allreduce(np.ones(2), comm.world).wait().tolist(), "in", sys.prefix)
"""


@pytest.fixture
def bare(tmp_path):
    """A virtual environment with nothing in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    return tmp_path / "bare" / "bin" / "python"


def give_packages(python):
    """Those of this environment, but for what is installed in editable form: hdp."""
    query = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    folder = Path(subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip())
    (folder / "shared.pth").write_text(sysconfig.get_path("purelib"))
    missing = subprocess.run([str(python), "-c", "import hdp.runtime"], capture_output=True)
    assert missing.returncode == 1


@pytest.mark.slow
def test_a_job_runs_on_it(bare, tmp_path, monkeypatch, capfd):
    give_packages(bare)
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "script.py").write_text(SCRIPT)
    job = Estimator(
        entry_point="script.py",
        source_dir=str(tmp_path / "code"),
        instance_type="local",
        instance_count=2,
        distribution={"hdp": {"enabled": True, "processes_per_host": 1}},
        engine_options={"python": str(bare)},
    ).fit()
    assert job.describe()["TrainingJobStatus"] == "Completed"
    assert capfd.readouterr().out.count(f"sum [2.0, 2.0] in {bare.parents[1]}") == 2


def test_one_that_lacks_numpy_is_refused_before_anything_starts(bare, tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("HDP_HOME", str(home))
    (tmp_path / "script.py").touch()
    options = {"instance_type": "local", "engine_options": {"python": str(bare)}}
    with pytest.raises(SpecError, match=r"engine_options\.python: .* needs Python 3\.10 or newer with NumPy"):
        Estimator(entry_point=str(tmp_path / "script.py"), **options).fit()
    assert not list(home.glob("jobs/*"))


def test_the_interpreter_of_the_client_needs_nothing(tmp_path):
    environ = {"PYTHONPATH": "x"}
    assert lending.lend(sys.executable, tmp_path / "lent", environ) == environ
    assert not (tmp_path / "lent").exists()


def test_a_script_in_its_place_is_left_alone(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\ntouch ran\n")
    script.chmod(0o755)
    assert lending.lend(str(script), tmp_path / "lent", {"A": "1"}) == {"A": "1"}
    assert not (tmp_path / "lent").exists()
    assert not Path("ran").exists()
