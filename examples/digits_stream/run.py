"""Train on digits that are streamed from S3, on emulated hosts of this machine.

python run.py                        PyTorch, 2 hosts x 2 ranks, from an S3 server in this process (moto)
python run.py --framework tensorflow the same with tf.data
python run.py --local                the same from file://, copied: what happens where there is no FUSE, or no moto
python run.py --bucket NAME          from a bucket of yours, to which the digits are uploaded first

The training channel streams (FastFile), the test channel is copied (File): modes are a matter of each channel.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import logging
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prepare import prepare

from hdp.estimator import Estimator, PyTorch, TensorFlow, TrainingInput

HERE = Path(__file__).resolve().parent
BUCKET = "digits"
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
        inputs = inputs_of(prepare(Path(data)), args, stack)
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


def inputs_of(
    folders: dict[str, Path], args: argparse.Namespace, stack: contextlib.ExitStack
) -> dict[str, TrainingInput]:
    """The channels: streamed from S3 where that can be, else from the folders."""
    why_not = "--local" if args.local else no_fuse() or (None if args.bucket else no_moto())
    if why_not:
        print(f"not streaming from S3 ({why_not}): the digits are copied from file://\n")
        return {name: TrainingInput(path.resolve().as_uri(), input_mode="File") for name, path in folders.items()}
    if args.bucket is None:
        stack.enter_context(s3_server())
    base = upload(args.bucket or BUCKET, folders)
    modes = {"training": "FastFile", "test": "File"}
    return {name: TrainingInput(f"{base}/{name}/", input_mode=mode) for name, mode in modes.items()}


def no_fuse() -> str | None:
    """Why this machine can't mount; None where it can."""
    from hdp.estimator.cli.doctor import examine

    found = next(finding for finding in examine() if finding.what == "FUSE")
    if importlib.util.find_spec("obstore") is None:
        return "obstore isn't installed: pip install 'hdp-train[fastfile]'"
    return None if found.grade == "yes" else f"{found.detail}; {found.remedy}"


def no_moto() -> str | None:
    """Why there can't be an S3 server in this process."""
    return None if importlib.util.find_spec("moto") else "moto isn't installed: pip install 'moto[s3,server]'"


@contextlib.contextmanager
def s3_server() -> Iterator[None]:
    """An S3 server on this machine, with a bucket; the standard variables lead boto3, and the job, to it."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://{host}:{port}", AWS_ACCESS_KEY_ID="digits", AWS_SECRET_ACCESS_KEY="digits",
        AWS_DEFAULT_REGION="us-east-1",
    )  # fmt: skip
    try:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield
    finally:
        server.stop()


def upload(bucket: str, folders: dict[str, Path]) -> str:
    """Copy the folders to a bucket. Returns the URI below which they are."""
    import boto3

    client = boto3.client("s3")
    for name, folder in folders.items():
        for path in folder.iterdir():
            client.upload_file(str(path), bucket, f"hdp-digits/{name}/{path.name}")
    return f"s3://{bucket}/hdp-digits"


def make_estimator(args: argparse.Namespace) -> Estimator:
    """The job; only the script differs between the frameworks."""
    cls, script = (PyTorch, "train_torch.py") if args.framework == "pytorch" else (TensorFlow, "train_tf.py")
    return cls(
        entry_point=script,
        source_dir=str(HERE),
        instance_type="local",
        instance_count=args.hosts,
        distribution={"hdp": {"enabled": True, "processes_per_host": args.ranks}},
        environment=QUIET,
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
