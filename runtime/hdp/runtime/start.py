"""What a container runs whose image may not contain hdp: it unpacks the wheel beside it and becomes the host's agent.

It needs a Python 3.9 or newer, and nothing else: no pip, no network. It is written for Python 3.6 too, which is told
what is wrong.
"""

import os
import shutil
import sys
import zipfile
from pathlib import Path

OLDEST = (3, 9)
BASE = Path(os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")


def main() -> int:
    """Unpack, and start `hdp.runtime.carried` in this process's place. Returns the exit code where that can't be."""
    try:
        target = unpack(Path(__file__).resolve().parent, BASE / "hdp-runtime")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")]))
        os.execv(sys.executable, [sys.executable, "-m", "hdp.runtime.carried"])
    except Exception as exc:
        leave(f"hdp can't start in this image: {exc}")
    return 1


def unpack(here: Path, target: Path) -> Path:
    """Unpack the wheel that lies in `here` to `target`, anew. Returns `target`."""
    if sys.version_info[:2] < OLDEST:
        found, oldest = (".".join(map(str, version)) for version in (sys.version_info[:3], OLDEST))
        raise RuntimeError(
            f"its python3 is {found} ({sys.executable}), and hdp needs {oldest} or newer; use another image"
        )
    wheels = sorted(here.glob("*.whl"))
    if len(wheels) != 1:
        raise RuntimeError(f"expected one wheel in {here}, found {[wheel.name for wheel in wheels]}")
    shutil.rmtree(str(target), ignore_errors=True)
    with zipfile.ZipFile(str(wheels[0])) as archive:
        archive.extractall(str(target))
    return target


def leave(text: str) -> None:
    """Say why, to the log and in the file whose content the service shows as the job's FailureReason."""
    sys.stderr.write(text + "\n")
    try:
        (BASE / "output").mkdir(parents=True, exist_ok=True)
        (BASE / "output" / "failure").write_text(text[:1024])
    except OSError as exc:
        sys.stderr.write(f"the failure file can't be written: {exc}\n")


if __name__ == "__main__":
    sys.exit(main())
