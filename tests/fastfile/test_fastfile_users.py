"""FastFile for a user who isn't root: in a user namespace of the job's own, and, without namespaces, by fusermount3.

Each program gets a /dev/fuse that everybody may open, as it is on most machines, in a mount namespace of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fastfile_support import content, needs_fuse

sys.path.append(str(Path(__file__).parents[1] / "jobs"))
import user_namespace

pytestmark = [pytest.mark.slow, needs_fuse]

#: nobody: fusermount3 wants a user with a name.
UID = 65534
FUSE_NUMBER = os.makedev(10, 229)

TRAIN = """
import os, pathlib
folder = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
print("read", sum(len(p.read_bytes()) for p in folder.iterdir()))
rights = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapAmb"))]
print("rights of the rank:", int(rights[0], 16), int(rights[1], 16))
"""
CLIENT = """
import sys
from hdp.estimator import PyTorch, TrainingInput
estimator = PyTorch("train.py", source_dir="code", instance_count=2, engine_options={"namespaces": sys.argv[2]})
try:
    estimator.fit({"train": TrainingInput(sys.argv[1], input_mode="FastFile")})
except Exception as exc:
    print(exc)
print([line for line in open("/proc/self/mountinfo") if "fuse.hdp-fastfile" in line])
"""


def fit_as_nobody(base: Path, namespaces: str) -> str:
    """Run a job of two hosts. Returns all that it says."""
    for name in ("home", "tmp", "data", "code", "fuse"):
        (base / name).mkdir()
        os.chown(base / name, UID, UID)
    base.chmod(0o755)
    for i in range(20):
        (base / "data" / f"{i:02}").write_bytes(content(50_000, i))
    (base / "code" / "train.py").write_text(TRAIN)

    def prepare() -> None:
        user_namespace._open_the_way(user_namespace.needed())
        user_namespace._mount("tmpfs", str(base / "fuse"), "tmpfs", 0, "mode=755")
        os.mknod(base / "fuse" / "fuse", 0o20666, FUSE_NUMBER)
        (base / "fuse" / "fuse").chmod(0o666)
        user_namespace._mount(str(base / "fuse" / "fuse"), "/dev/fuse", None, user_namespace._MS_BIND)
        user_namespace.become(UID)

    environ = {
        **os.environ, "HOME": str(base / "home"), "HDP_HOME": str(base / "home" / "hdp"), "TMPDIR": str(base / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, (base / "data").as_uri(), namespaces], env=environ, cwd=base,
        capture_output=True, text=True, timeout=100, preexec_fn=prepare,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that nobody may enter, as pytest's own may not be."""
    folder = Path("/var/tmp") / f"hdp-{os.getpid()}-{os.urandom(4).hex()}"
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder)


def test_in_a_user_namespace(base):
    """Expected: both hosts read every byte; the ranks don't get the right by which the agent mounts."""
    said = fit_as_nobody(base, "auto")
    if "no mount and UTS namespaces" in said:
        pytest.skip("this kernel gives users no namespaces")
    assert said.count("read 1000000") == 2, said
    assert said.count("rights of the rank: 0 0") == 2, said
    assert said.rstrip().endswith("[]")


@pytest.mark.skipif(shutil.which("fusermount3") is None, reason="needs fusermount3 (fuse3), by which users mount")
def test_by_fusermount3(base):
    """Without namespaces of the job's own. Expected: every byte; nothing is mounted afterwards."""
    said = fit_as_nobody(base, "off")
    assert said.count("read 1000000") == 2, said
    assert said.rstrip().endswith("[]")
