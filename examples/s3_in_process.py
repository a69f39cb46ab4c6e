"""Channels that stream from S3 where this machine can: from a server in this process (moto), or a bucket of yours."""

import contextlib
import importlib.util
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hdp.estimator import TrainingInput

BUCKET = "digits"
ENVIRONMENT = {"HDP_FASTFILE_FALLBACK": "file"}
"""For the job: a container may have FUSE and not let anybody mount; then the channel is copied."""


def channels(
    folders: Mapping[str, Path], stack: contextlib.ExitStack, *, bucket: str | None = None, local: bool = False
) -> dict[str, TrainingInput]:
    """The folders as channels: the first one streams from S3 (FastFile), the others are copied from there (File).

    Where there is no FUSE, or no moto, it says so, and all are copied from ``file://``. stack: ends the server.
    """
    why_not = "--local" if local else no_fuse() or (None if bucket else no_moto())
    if why_not:
        print(f"not streaming from S3 ({why_not}): the digits are copied from file://\n")
        return {name: TrainingInput(path.resolve().as_uri(), input_mode="File") for name, path in folders.items()}
    if bucket is None:
        stack.enter_context(s3_server())
    base = upload(bucket or BUCKET, folders)
    modes = dict.fromkeys(folders, "File") | {next(iter(folders)): "FastFile"}
    return {name: TrainingInput(f"{base}/{name}/", input_mode=mode) for name, mode in modes.items()}


def no_fuse() -> str | None:
    """Why this machine can't mount; None where it can."""
    from hdp.estimator.cli.doctor import examine_fuse

    found = examine_fuse()
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
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("AWS_")]:  # yours lead elsewhere
        del os.environ[name]
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://{host}:{port}", AWS_ACCESS_KEY_ID="digits", AWS_SECRET_ACCESS_KEY="digits",
        AWS_DEFAULT_REGION="us-east-1",
    )  # fmt: skip
    try:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield
    finally:
        server.stop()
        os.environ.clear()
        os.environ.update(before)


def upload(bucket: str, folders: Mapping[str, Path]) -> str:
    """Copy the folders to a bucket. Returns the URI below which they are."""
    import boto3

    client = boto3.client("s3")
    for name, folder in folders.items():
        for path in folder.iterdir():
            client.upload_file(str(path), bucket, f"hdp-digits/{name}/{path.name}")
    return f"s3://{bucket}/hdp-digits"
