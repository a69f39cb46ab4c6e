"""The demo: train the network on emulated hosts of this machine, then say how it went.

python run.py                       2 hosts x 2 ranks, gradients through hdp: digits, about a minute on two cores
python run.py --dist none           one process
python run.py --dist horovod        the same under mpirun, through Horovod, once `make horovod-tensorflow` has built it
python run.py --reduce optimizer    the optimizer reduces the gradients, not the tape
python run.py --cifar10 BINARIES    CIFAR-10, from the folder with its binary files
"""

import argparse
import io
import json
import statistics
import sys
import tarfile
import tempfile
from pathlib import Path

import keras
from model import accuracy
from prepare import prepare

from hdp.estimator import FLAG, TensorFlow

HERE = Path(__file__).resolve().parent
HOROVOD_PYTHON = HERE.parents[1] / "build/peers/horovod-tensorflow/bin/python"
# Ranks share the cores. Without these, each has a thread a core for its operations, and as many for what is in them.
THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
ENVIRONMENT = {**THREADS, "TF_CPP_MIN_LOG_LEVEL": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", choices=["hdp", "horovod", "none"], default="hdp")
    parser.add_argument("--reduce", choices=["tape", "optimizer"], default="tape")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--model", choices=["small", "resnet50"], default="small")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--cifar10", type=Path, metavar="BINARIES")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cifar10-") as data:
        inputs = prepare(Path(data), args.cifar10, shards=max(8, args.hosts * args.ranks))
        estimator = make_estimator(args)
        print(estimator.plan(inputs))
        job = estimator.fit(inputs)
        share = accuracy(load(job.model_data), Path(data) / "test")
    summary = json.loads(member(job.output_data, "summary.json"))
    seconds = statistics.median(step["seconds"] for step in summary["steps"])
    print(
        f"\ntest accuracy   {share:.4f} of the model artifact, on the held-out images"
        f"\ntime of a step  {seconds * 1000:.1f} ms, median of {len(summary['steps'])}, {summary['ranks']} rank(s)"
        f"\nmodel artifact  {job.model_data}"
    )


def make_estimator(args: argparse.Namespace) -> TensorFlow:
    """The job; what differs between the ways is `distribution`, and which library the script imports."""
    hyperparameters = {"dist": args.dist, "reduce": args.reduce, "model": args.model, "epochs": args.epochs}
    if args.dist == "none":
        return TensorFlow(entry_point="train.py", source_dir=str(HERE), hyperparameters=hyperparameters)
    if args.dist == "hdp":
        hyperparameters["check-in-sync"] = FLAG
    kind = {"hdp": "hdp", "horovod": "mpi"}[args.dist]
    return TensorFlow(
        entry_point="train.py",
        source_dir=str(HERE),
        instance_type="local",
        instance_count=args.hosts,
        distribution={kind: {"enabled": True, "processes_per_host": args.ranks}},
        environment=ENVIRONMENT,
        hyperparameters=hyperparameters,
        engine_options={"python": python_for(args.dist)},
    )


def python_for(dist: str) -> str:
    """This interpreter, but for Horovod the one that has it."""
    if dist != "horovod":
        return sys.executable
    if not HOROVOD_PYTHON.exists():
        raise SystemExit(f"{HOROVOD_PYTHON} is missing: `make horovod-tensorflow` builds it, which takes some minutes")
    return str(HOROVOD_PYTHON)


def load(uri: str) -> keras.Model:
    """The model in the artifact at a file:// URI. It needs neither hdp nor the script that trained it."""
    with tempfile.NamedTemporaryFile(suffix=".keras") as file:
        file.write(member(uri, "model.keras"))
        file.flush()
        return keras.models.load_model(file.name)


def member(uri: str, name: str) -> bytes:
    """One file of a .tar.gz at a file:// URI."""
    with tarfile.open(fileobj=io.BytesIO(Path(uri.removeprefix("file://")).read_bytes())) as archive:
        found = next(m for m in archive.getmembers() if Path(m.name).name == name)
        handle = archive.extractfile(found)
        assert handle is not None
        return handle.read()


if __name__ == "__main__":
    main()
