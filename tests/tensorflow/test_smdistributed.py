"""SMDDP's import paths: scripts that name nothing of hdp's, and a real SMDDP, which goes first."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from world import together

pytestmark = pytest.mark.timeout(300)  # where much else runs
RUNTIME = Path(__file__).parents[2] / "runtime"


@pytest.mark.slow
def test_the_tensorflow_api():
    """2 hosts x 1: reductions by param_index, every ReduceOp, tape, optimizer, callback, refusals."""
    pytest.importorskip("tensorflow", reason="TensorFlow isn't installed: pip install 'hdp-train[tensorflow]'")
    outputs = together("smdistributed_ranks.py", sizes=(1, 1))
    assert all("all right" in text for text in outputs)


@pytest.mark.slow
def test_the_torch_api():
    """2 hosts x 1: the functions, DistributedDataParallel, and a backend that isn't served."""
    pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    outputs = together("smdistributed_torch_ranks.py", sizes=(1, 1), environ=environ)
    assert all("all right" in text for text in outputs)


FIND = """
import importlib.util, sys
for name in sys.argv[1:]:
    try:
        found = importlib.util.find_spec("smdistributed." + name)
    except ModuleNotFoundError:
        found = None
    print(found and found.origin)
"""


def _origins(*folders, names, options=("-S",)):
    """Where Python finds ``smdistributed.<name>`` with `folders` on its path, and nothing that is installed."""
    done = subprocess.run(
        [sys.executable, *options, "-c", FIND, *names],
        env={"PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def _real(folder, *packages):
    """A library with these packages in `folder`; a package has an __init__.py."""
    for package in packages:
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    return folder


@pytest.mark.parametrize(
    "packages",
    [
        ["smdistributed", "smdistributed/dataparallel", "smdistributed/dataparallel/torch"],
        ["smdistributed/dataparallel", "smdistributed/dataparallel/torch"],
    ],
    ids=["a package from the top", "a package below a namespace"],
)
def test_the_real_one_goes_first(tmp_path, packages):
    """Installed behind hdp on the path. Expected: its modules are found, and none of ours."""
    real = _real(tmp_path, *packages)
    names = ["dataparallel.torch", "dataparallel.tensorflow", "dataparallel.torch.torch_smddp"]
    assert _origins(RUNTIME, real, names=names) == [
        str(real / "smdistributed/dataparallel/torch/__init__.py"),
        "None",
        "None",
    ]


def test_amazons_other_library_stays_reachable(tmp_path):
    """A namespace package with modelparallel alone, on either side of hdp. Expected: both are found."""
    other = _real(tmp_path, "smdistributed/modelparallel")
    names = ["modelparallel", "dataparallel.tensorflow"]
    expected = [str(other / "smdistributed/modelparallel/__init__.py")]
    expected += [str(RUNTIME / "smdistributed/dataparallel/tensorflow/__init__.py")]
    assert _origins(RUNTIME, other, names=names) == _origins(other, RUNTIME, names=names) == expected


def test_it_goes_first_beside_this_very_installation(tmp_path):
    """Found by the path, and not by the finder of an editable install, which would go before all paths."""
    real = _real(tmp_path, "smdistributed", "smdistributed/dataparallel", "smdistributed/dataparallel/torch")
    names = ["dataparallel.torch", "dataparallel.torch.torch_smddp"]
    found = _origins(real, names=names, options=())
    assert found == [str(real / "smdistributed/dataparallel/torch/__init__.py"), "None"], "make setup installs anew"
