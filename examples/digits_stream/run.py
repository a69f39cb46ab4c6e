"""Train on digits that are streamed from S3, on emulated hosts of this machine.

python run.py                        PyTorch, 2 hosts x 2 ranks, from an S3 server in this process (moto)
python run.py --framework tensorflow the same with tf.data
python run.py --local                the same from file://, copied: what happens where there is no FUSE, or no moto
python run.py --bucket NAME          from a bucket of yours, to which the digits are uploaded first

The training channel streams (FastFile), the test channel is copied (File): modes are a matter of each channel.
"""

import argparse
import contextlib
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path

from prepare import prepare

from hdp.estimator import Estimator, PyTorch, TensorFlow

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from s3_in_process import ENVIRONMENT, channels  # noqa: E402  (beside the examples that share it)

# TensorFlow's ranks share the cores.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=["pytorch", "tensorflow"], default="pytorch")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--local", action="store_true", help="read file://, without S3 and FUSE")
    parser.add_argument("--bucket", help="a bucket that you may write to, instead of a server in this process")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="digits-") as data, contextlib.ExitStack() as stack:
        inputs = channels(prepare(Path(data)), stack, bucket=args.bucket, local=args.local)
        estimator = make_estimator(args)
        print(estimator.plan(inputs))
        job = estimator.fit(inputs)
    summary = json.loads(read_member(job.output_data, "summary.json"))
    print(
        f"\ntest accuracy   {summary['accuracy']:.4f} on the held-out fifth, {summary['ranks']} ranks"
        f"\nfirst batch     after {summary['seconds_to_first_batch'] * 1000:.0f} ms, training from "
        f"{inputs['training'].s3_data} in {inputs['training'].input_mode} mode"
        f"\nmodel artifact  {job.model_data}"
    )


def make_estimator(args: argparse.Namespace) -> Estimator:
    """The job; only the script differs between the frameworks."""
    cls, script = (PyTorch, "train_torch.py") if args.framework == "pytorch" else (TensorFlow, "train_tf.py")
    return cls(
        entry_point=script,
        source_dir=str(HERE),
        instance_type="local",
        instance_count=args.hosts,
        distribution={"hdp": {"enabled": True, "processes_per_host": args.ranks}},
        environment={**QUIET, **ENVIRONMENT},
        hyperparameters={"steps": args.steps},
    )


def read_member(uri: str, name: str) -> str:
    """Text of one file in a .tar.gz at a file:// URI."""
    with tarfile.open(fileobj=io.BytesIO(Path(uri.removeprefix("file://")).read_bytes())) as archive:
        member = next(m for m in archive.getmembers() if Path(m.name).name == name)
        handle = archive.extractfile(member)
        assert handle is not None
        return handle.read().decode()


if __name__ == "__main__":
    main()
