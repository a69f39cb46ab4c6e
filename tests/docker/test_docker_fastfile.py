"""FastFile in containers, from an S3 server of this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from docker_support import ended, estimator, lines

from hdp.estimator import TrainingInput

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("torch_image", "nothing_left"),
]
FILES = {f"part-{i}.bin": bytes([i]) * (100_000 + i) for i in range(5)}
READS = """
    import hashlib, os, pathlib
    folder = pathlib.Path(os.environ["SM_CHANNEL_TRAINING"])
    [mount] = [line for line in open("/proc/self/mountinfo") if str(folder) + " " in line]
    print("mounted", mount.rpartition(" - ")[2].split()[0], flush=True)
    for file in sorted(folder.iterdir()):
        print("read", file.name, hashlib.sha256(file.read_bytes()).hexdigest(), flush=True)
"""


@pytest.fixture
def s3(client, monkeypatch):
    """An S3 server at an address that containers reach, with `FILES`; the standard variables lead to it."""
    import boto3
    from moto.server import ThreadedMotoServer

    gateway = client.inspect_network("bridge")["IPAM"]["Config"][0].get("Gateway", "172.17.0.1")
    server = ThreadedMotoServer(ip_address=gateway, port=0, verbose=False)
    server.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
    for name, value in {"ACCESS_KEY_ID": "tests", "SECRET_ACCESS_KEY": "tests", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    store = boto3.client("s3")
    store.create_bucket(Bucket="fastfile")
    for name, content in FILES.items():
        store.put_object(Bucket="fastfile", Key=f"train/{name}", Body=content)
    yield "s3://fastfile/train/"
    server.stop()


def test_a_container_mounts_and_reads_what_s3_has(s3, tmp_path):
    """engine_options={"fuse": True}. Expected: each host has a FUSE mount, and reads the very bytes."""
    if not Path("/dev/fuse").exists():
        pytest.skip("NO FUSE on this machine")
    channel = TrainingInput(s3, input_mode="FastFile")
    job = estimator(tmp_path, READS, engine_options={"fuse": True}).fit(channel, wait=False)
    answer = ended(job)
    assert answer["TrainingJobStatus"] == "Completed", answer.get("FailureReason")
    expected = ["mounted fuse.hdp-fastfile"]
    expected += [f"read {name} {hashlib.sha256(content).hexdigest()}" for name, content in FILES.items()]
    for host in ("algo-1", "algo-2"):
        said = [line.text for line in lines(job) if line.host == host and line.text.startswith(("mounted", "read "))]
        assert said == expected
