"""Record the requests of SageMaker's SDK v2 as golden files: ``build/sagemaker-v2/bin/python tests/oracle/record.py``.

The SDK runs whole, on real boto3 clients; a hook answers each HTTP request before it is sent, so nothing leaves this
machine. Whoever imports this needs ``sagemaker<3``; `cases.py` and the files written need nothing.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
_ACCOUNT = "123456789012"
_JOB = "oracle-job"
_IDENTITY = (
    "<GetCallerIdentityResponse><GetCallerIdentityResult><Account>{0}</Account><UserId>u</UserId>"
    "<Arn>arn:aws:iam::{0}:user/u</Arn></GetCallerIdentityResult></GetCallerIdentityResponse>"
)
_ROLE = (
    "<GetRoleResponse><GetRoleResult><Role><Path>/</Path><RoleName>{1}</RoleName><RoleId>r</RoleId>"
    "<Arn>arn:aws:iam::{0}:role/{1}</Arn><CreateDate>2024-01-01T00:00:00Z</CreateDate></Role></GetRoleResult>"
    "</GetRoleResponse>"
)


def _text(body: Any) -> str:
    return body.decode() if isinstance(body, bytes) else str(body or "")


class _Raw(io.BytesIO):
    def stream(self, **_: Any) -> Any:
        yield self.read()


class Wire:
    """Answers for AWS; keeps the body of CreateTrainingJob."""

    def __init__(self) -> None:
        self.created: dict[str, Any] = {}

    def answer(self, request: Any, **_: Any) -> Any:
        from botocore.awsrequest import AWSResponse

        target = request.headers.get("X-Amz-Target", b"")
        target = _text(target)
        s3 = "//s3." in request.url or ".s3." in request.url
        body = "" if target or s3 else _text(request.body)
        if target == "SageMaker.CreateTrainingJob":
            self.created = json.loads(request.body)
            arn = f"arn:aws:sagemaker:us-west-2:{_ACCOUNT}:training-job/{self.created['TrainingJobName']}"
            text = json.dumps({"TrainingJobArn": arn})
        elif "Action=GetRole" in body:
            text = _ROLE.format(_ACCOUNT, "Trainer")
        elif "Action=GetCallerIdentity" in body:
            text = _IDENTITY.format(_ACCOUNT)
        elif s3 and request.method in ("PUT", "HEAD"):
            text = ""
        elif s3 and request.method == "GET":
            text = "<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>"
        else:
            raise RuntimeError(f"the SDK asks for something new: {request.method} {request.url} {target} {body}")
        return AWSResponse(request.url, 200, {"x-amz-bucket-region": "us-west-2"}, _Raw(text.encode()))


def namespace(session: Any) -> SimpleNamespace:
    """What a case builds with: v2's classes, on `session`."""
    from functools import partial

    from sagemaker import debugger, inputs
    from sagemaker.estimator import Estimator
    from sagemaker.instance_group import InstanceGroup
    from sagemaker.pytorch import PyTorch, TrainingCompilerConfig
    from sagemaker.tensorflow import TensorFlow

    names = ("CollectionConfig", "DebuggerHookConfig", "ProfilerConfig", "ProfilerRule", "Rule")
    return SimpleNamespace(
        is_v2=True,
        Estimator=partial(Estimator, sagemaker_session=session),
        PyTorch=partial(PyTorch, sagemaker_session=session),
        TensorFlow=partial(TensorFlow, sagemaker_session=session),
        TrainingInput=inputs.TrainingInput,
        FileSystemInput=inputs.FileSystemInput,
        ShuffleConfig=inputs.ShuffleConfig,
        InstanceGroup=InstanceGroup,
        TrainingCompilerConfig=TrainingCompilerConfig,
        TensorBoardOutputConfig=debugger.TensorBoardOutputConfig,
        **{name: getattr(debugger, name) for name in names},
    )


@functools.cache
def session(region: str) -> tuple[Any, Wire]:
    """v2's session, and what answers the requests of its clients."""
    import boto3
    from sagemaker.session import Session

    wire = Wire()
    boto = boto3.Session(aws_access_key_id="key", aws_secret_access_key="secret", region_name=region)
    boto.events.register("before-send", wire.answer)
    return Session(boto_session=boto), wire


def record(case: Any) -> dict[str, Any]:
    """The body of CreateTrainingJob that v2 sends for `case`."""
    boto, wire = session(case.region)
    estimator, inputs = case.make(namespace(boto))
    estimator.fit(inputs, wait=False, job_name=_JOB, **case.fit)
    hook = wire.created.get("DebugHookConfig", {})
    if "CollectionConfigurations" in hook:  # v2 keeps them in a set
        hook["CollectionConfigurations"].sort(key=lambda c: str(c["CollectionName"]))
    return wire.created


def images() -> dict[str, str]:
    """URIs that v2's image_uris.retrieve gives, by the arguments; see `image_grid.py`."""
    from image_grid import GRID
    from sagemaker import image_uris

    found = {}
    for key in GRID:
        framework, version, py_version, kind, region = key.split(" ")
        found[key] = image_uris.retrieve(
            framework, region, version=version, py_version=py_version, instance_type=kind, image_scope="training"
        )
    return found


def _nowhere(host: Any, *_: Any, **__: Any) -> Any:
    """No name is looked up: the SDK's telemetry, which would report each call, finds no network and gives up."""
    raise OSError(f"recording is offline; {host} was wanted")


def main(out: Path) -> None:
    """Write a file for each case, and one for images."""
    from cases import CASES

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "src").mkdir()
        for name in ("train.py", "src/train.py"):
            (Path(folder) / name).write_text("print('hello')\n")
        os.chdir(folder)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for name, case in CASES.items():
            _write(out / f"{name}.json", record(case))
        _write(out / "images.json", images())
        os.chdir("/")


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {"SAGEMAKER_SUPPRESS_V2_WARNING": "1", "AWS_EC2_METADATA_DISABLED": "true"}
    os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    socket.getaddrinfo = _nowhere
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    sys.path.insert(0, str(HERE))
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE / "golden")
