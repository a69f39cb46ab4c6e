"""An AWS account that is none: S3, STS and IAM by moto in this process, SageMaker and its logs by `hdp serve`."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

from s3_in_process import s3_server

ROLE = "Trainer"
_TRUST = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", '
    '"Principal": {"Service": "sagemaker.amazonaws.com"}}]}'
)


@contextlib.contextmanager
def stand_in() -> Iterator[str]:
    """An account with a bucket and the role `ROLE`, to which the standard variables lead boto3. Gives the address of
    its SageMaker; ended at the end, but for its jobs."""
    import boto3

    with s3_server():
        boto3.client("iam").create_role(RoleName=ROLE, AssumeRolePolicyDocument=_TRUST)
        command = [sys.executable, "-m", "hdp.estimator.cli", "serve", "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                address = _address(process)
                os.environ.update(AWS_ENDPOINT_URL_SAGEMAKER=address, AWS_ENDPOINT_URL_CLOUDWATCH_LOGS=address)
                yield address
            finally:
                process.send_signal(signal.SIGINT)


def _address(process: "subprocess.Popen[str]") -> str:
    """What `hdp serve` says that clients should use."""
    for line in process.stdout or ():
        if found := re.search(r"AWS_ENDPOINT_URL_CLOUDWATCH_LOGS=(\S+)", line):
            return found[1]
    raise SystemExit(f"hdp serve ended with {process.wait()} before it was ready; run it by itself to see why")
