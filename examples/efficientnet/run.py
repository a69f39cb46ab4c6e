"""The demo: train an EfficientNet on emulated hosts of this machine, or on its GPUs, and say how many images a second.

python run.py                              2 hosts x 1 rank, B0 on random images of 32 x 32, gradients through hdp
python run.py --dist gloo                  the same ranks, gradients through PyTorch's own gloo
python run.py --dist none                  one process
python run.py --dist mpi                   the same ranks, started by mpirun, gradients through hdp
python run.py --dist horovod               the same under mpirun, through Horovod, once `make horovod` has built it
python run.py --gpu --hosts 1 --ranks 4    4 ranks on this machine's GPUs, which they share where there are fewer
python run.py --images digits              the digits that scikit-learn ships
python run.py --images FOLDER              images of yours, a folder for each class

As in the published comparison: --gpu --model b0 (or b4) --pixels 0 --amp fp16 --batch-size 128 --steps 100.
"""

import argparse
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path

import prepare_images

from hdp.estimator import PyTorch, TrainingInput

HERE = Path(__file__).resolve().parent
HOROVOD_PYTHON = HERE.parents[1] / "build/peers/horovod/bin/python"
LAUNCHERS = {
    "hdp": "hdp",
    "smddp": "hdp",
    "torch_distributed": "torch_distributed",
    "gloo": "torch_distributed",
    "nccl": "torch_distributed",
    "mpi": "mpi",
    "horovod": "mpi",
}
BACKENDS = {"torch_distributed": "gloo", "mpi": "hdp"}
"""What the script asks for, where that isn't the way's own name."""


def main() -> None:
    args = parse()
    with tempfile.TemporaryDirectory(prefix="efficientnet-") as folder:
        inputs = channel(args, Path(folder))
        estimator = make_estimator(args)
        print(estimator.plan(inputs))
        job = estimator.fit(inputs)
    summary = json.loads(read_member(job.output_data, "summary.json"))
    first, last = summary["steps"][0]["loss"], summary["steps"][-1]["loss"]
    print(
        f"\nspeed           {summary['images_per_second']:.1f} images/s of {summary['ranks']} rank(s), each with "
        f"{summary['batch_size']} a step, gradients through {summary['backend']}"
        f"\nloss            {first:.3f} at first, {last:.3f} after {len(summary['steps'])} steps, of rank 0"
        f"\nmodel artifact  {job.model_data}"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", choices=[*LAUNCHERS, "none"], default="hdp")
    parser.add_argument("--gpu", action="store_true", help="on this machine's GPUs")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument("--model", default="b0", help="b0 to b4, or tiny")
    parser.add_argument("--amp", choices=["bf16", "fp16", "off"], default="bf16")
    parser.add_argument("--batch-size", type=int, default=8, help="images of one rank")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pixels", type=int, default=32, help="of an image's side; 0: what the network was made for")
    parser.add_argument("--images", default="random", help="random, digits, or a folder with one for each class")
    args = parser.parse_args()
    if args.dist == "nccl" and not args.gpu:
        parser.error("--dist nccl needs --gpu: NCCL has no operations on a processor; take gloo")
    if args.images not in ("random", "digits") and not Path(args.images).is_dir():
        parser.error(f"--images {args.images}: there is no such folder; give random, digits or a folder")
    return args


def channel(args: argparse.Namespace, folder: Path) -> dict[str, TrainingInput] | None:
    """The channel "training"; None: the script makes random images."""
    if args.images == "random":
        return None
    if args.images == "digits":
        prepare_images.digits(folder)
    else:
        prepare_images.folder_of_classes(folder, Path(args.images), args.pixels or 224)
    return {"training": TrainingInput(folder.resolve().as_uri(), input_mode="File")}


def make_estimator(args: argparse.Namespace) -> PyTorch:
    """The job; what differs between the ways is `distribution`, and the name by which the script asks for it."""
    hyperparameters = {
        "model": args.model,
        "amp": args.amp,
        "batch-size": args.batch_size,
        "steps": args.steps,
        "pixels": args.pixels,
        "stem-stride": 1 if 0 < args.pixels < 64 else 2,  # small images have nothing to give away
    }
    where = {"instance_type": "local_gpu" if args.gpu else "local"}
    if args.dist != "none":
        hyperparameters["backend"] = BACKENDS.get(args.dist, args.dist)
        where["instance_count"] = args.hosts
        where["distribution"] = {LAUNCHERS[args.dist]: {"enabled": True, "processes_per_host": args.ranks}}
    return PyTorch(
        entry_point="train.py",
        source_dir=str(HERE),
        hyperparameters=hyperparameters,
        engine_options={"python": python_for(args.dist)},
        **where,
    )


def python_for(dist: str) -> str:
    """This interpreter, but for Horovod the one that has it."""
    if dist != "horovod":
        return sys.executable
    if not HOROVOD_PYTHON.exists():
        raise SystemExit(f"{HOROVOD_PYTHON} is missing: `make horovod` builds Horovod, which takes some minutes")
    return str(HOROVOD_PYTHON)


def read_member(uri: str, name: str) -> str:
    """Text of one file in a .tar.gz at a file:// URI."""
    with tarfile.open(fileobj=io.BytesIO(Path(uri.removeprefix("file://")).read_bytes())) as archive:
        member = next(m for m in archive.getmembers() if Path(m.name).name == name)
        handle = archive.extractfile(member)
        assert handle is not None
        return handle.read().decode()


if __name__ == "__main__":
    main()
