"""Images under AWS's own contract: `docker run IMAGE train`, and three files; the same files under AWS's toolkit."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import textwrap
from pathlib import Path

import pytest

from hdp.contract.hyperparameters import encode
from hdp.estimator.engines.local import trees
from hdp.estimator.engines.local.home import JobDir

ROOT = Path(__file__).parents[2]
TOOLKIT = ROOT / "build/peers/sagemaker-training"
BUCKET = "contract"
SCRIPT = """
    import argparse, json, os
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    args = parser.parse_args()
    found = {name: os.environ[name] for name in ("SM_HOSTS", "SM_CURRENT_HOST", "SM_CHANNELS")}
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "found.json"), "w") as file:
        json.dump({**found, "epochs": args.epochs}, file)
    print("trained", args.epochs, flush=True)
"""
FOUND = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SM_CHANNELS": "[]", "epochs": 3}
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def s3(client):
    """An S3 server that containers reach, with the script's archive. Yields the variables that lead to it."""
    from moto.server import ThreadedMotoServer

    gateway = client.inspect_network("bridge")["IPAM"]["Config"][0].get("Gateway", "172.17.0.1")
    server = ThreadedMotoServer(ip_address=gateway, port=0, verbose=False)
    server.start()
    found = {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.items():
            patch.setenv(name, value)
        import boto3

        s3 = boto3.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="sourcedir.tar.gz", Body=_archive())
        yield found
    server.stop()


def _archive():
    raw, text = io.BytesIO(), textwrap.dedent(SCRIPT).encode()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        member = tarfile.TarInfo("train.py")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return raw.getvalue()


@pytest.fixture
def tree(tmp_path):
    """The tree of algo-1, as our engines lay it."""
    values = {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": f"s3://{BUCKET}/sourcedir.tar.gz",
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": "contract",
        "sagemaker_region": "us-east-1",
        "epochs": 3,
    }
    job = JobDir(tmp_path / "contract")
    request = {
        "HyperParameters": {name: encode(value) for name, value in values.items()},
        "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
    }
    trees.lay(job, request, "eth0")
    return job.tree("algo-1")


@pytest.mark.usefixtures("torch_image", "nothing_left")
def test_three_files_are_enough(client, s3, tree, tmp_path):
    """`docker run -v CONFIG:/opt/ml/input/config IMAGE train`. Expected: exit code 0, what the script found."""
    config = tmp_path / "config"
    config.mkdir(mode=0o755)
    for file in (tree.hyperparameters, tree.resourceconfig, tree.inputdataconfig):
        shutil.copy(file, config)
        (config / file.name).chmod(0o644)
    made = client.create_container(
        "hdp-torch",
        command=["train"],
        hostname="algo-1",
        environment=s3,
        host_config=client.create_host_config(binds={str(config): {"bind": "/opt/ml/input/config", "mode": "ro"}}),
    )["Id"]
    try:
        client.start(made)
        code = client.wait(made, timeout=240)["StatusCode"]
        said = client.logs(made).decode()
        assert code == 0, said
        assert "trained 3" in said
        chunks, _ = client.get_archive(made, "/opt/ml/model/found.json")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            assert json.loads(archive.extractfile("found.json").read()) == FOUND
    finally:
        client.remove_container(made, v=True, force=True)


def test_the_toolkit_of_aws_accepts_the_same_tree(s3, tree, tmp_path):
    """sagemaker-training 5.1.4, `train`, where the host's name resolves. Expected: the script finds the same."""
    if not TOOLKIT.exists():
        pytest.skip(f"NO TOOLKIT: sh tools/sagemaker_training.sh makes {TOOLKIT}")
    environment = {**s3, "SAGEMAKER_BASE_DIR": str(tree.root), "PATH": f"{TOOLKIT}/bin:{os.environ['PATH']}"}
    names = tmp_path / "hosts"
    names.write_text("127.0.0.1 localhost algo-1\n")
    inside = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        'mount --bind "$1" /etc/hosts && exec "$2"',
        "sh",
        names,
        TOOLKIT / "bin/train",
    ]
    done = subprocess.run(inside, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tree.model / "found.json").read_text()) == FOUND
