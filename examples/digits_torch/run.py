"""The demo: train the digit classifier on emulated hosts of this machine, then say how it went.

python run.py                       2 hosts x 2 ranks, gradients through hdp
python run.py --dist none           one process
python run.py --dist gloo           the same ranks, gradients through PyTorch's own gloo
python run.py --dist mpi            the same ranks, started by mpirun, gradients through hdp
python run.py --dist horovod        the same under mpirun, through Horovod, once `make horovod` has built it
python run.py --engine docker       each host is a container, of the image that `hdp build torch` made

The digits stream from an S3 server in this process. Where that can't be, it says so and copies files (--local).
"""

import argparse
import contextlib
import io
import json
import statistics
import sys
import tarfile
import tempfile
from pathlib import Path

from prepare import prepare

from hdp.estimator import PyTorch

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from s3_in_process import ENVIRONMENT, channels  # noqa: E402  (beside the examples that share it)

HOROVOD_PYTHON = HERE.parents[1] / "build/peers/horovod/bin/python"
LAUNCHERS = {"hdp": "hdp", "smddp": "hdp", "gloo": "torch_distributed", "mpi": "mpi", "horovod": "mpi"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", choices=[*LAUNCHERS, "none"], default="hdp")
    parser.add_argument("--engine", choices=["local", "docker"], default="local")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--local", action="store_true", help="read file://, without S3 and FUSE")
    args = parser.parse_args()
    docker = args.engine == "docker"  # whose containers can't reach a server on this machine's loopback
    with tempfile.TemporaryDirectory(prefix="digits-") as data, contextlib.ExitStack() as stack:
        inputs = channels({name: Path(data, name) for name in prepare(Path(data))}, stack, local=args.local or docker)
        estimator = make_estimator(args)
        print(estimator.plan(inputs))
        job = estimator.fit(inputs)
    summary = json.loads(read_member(job.output_data, "summary.json"))
    seconds = statistics.median(step["seconds"] for step in summary["steps"])
    print(
        f"\ntest accuracy   {summary['accuracy']:.4f} on the held-out fifth"
        f"\ntime of a step  {seconds * 1000:.1f} ms, median of {len(summary['steps'])}, {summary['ranks']} rank(s)"
        f"\ntraining data   {inputs['training'].s3_data}, {inputs['training'].input_mode} mode"
        f"\nmodel artifact  {job.model_data}"
        f"\nanother way     {other_way(args)}"
    )


def make_estimator(args: argparse.Namespace) -> PyTorch:
    """The job; what differs between the ways is `distribution`, by which the script knows what to ask for."""
    if args.dist == "none":
        return PyTorch(
            entry_point="train.py",
            source_dir=str(HERE),
            hyperparameters={"epochs": args.epochs},
            environment=ENVIRONMENT,
        )
    return PyTorch(
        entry_point="train.py",
        source_dir=str(HERE),
        instance_type=args.engine,
        instance_count=args.hosts,
        distribution=distribution(args.dist, args.ranks),
        hyperparameters={"epochs": args.epochs, "dist": "hdp" if args.dist == "mpi" else args.dist},
        environment=ENVIRONMENT,
        engine_options={} if args.engine == "docker" else {"python": python_for(args.dist)},
    )


def distribution(dist: str, ranks: int) -> dict:
    return {LAUNCHERS[dist]: {"enabled": True, "processes_per_host": ranks}}


def python_for(dist: str) -> str:
    """This interpreter, but for Horovod the one that has it."""
    if dist != "horovod":
        return sys.executable
    if not HOROVOD_PYTHON.exists():
        raise SystemExit(f"{HOROVOD_PYTHON} is missing: `make horovod` builds Horovod, which takes some minutes")
    return str(HOROVOD_PYTHON)


def other_way(args: argparse.Namespace) -> str:
    """The one line to change in `make_estimator`."""
    if args.dist == "none":
        return f"give distribution={distribution('hdp', args.ranks)}, instance_count={args.hosts}"
    other = "hdp" if args.dist == "gloo" else "gloo"
    return f"run.py --dist {other}: only distribution={distribution(other, args.ranks)} differs"


def read_member(uri: str, name: str) -> str:
    """Text of one file in a .tar.gz at a file:// URI."""
    with tarfile.open(fileobj=io.BytesIO(Path(uri.removeprefix("file://")).read_bytes())) as archive:
        member = next(m for m in archive.getmembers() if Path(m.name).name == name)
        handle = archive.extractfile(member)
        assert handle is not None
        return handle.read().decode()


if __name__ == "__main__":
    main()
