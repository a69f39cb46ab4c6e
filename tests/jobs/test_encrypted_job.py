"""`encrypt_inter_container_traffic=True` puts TLS between the reduction servers of a job on this machine."""

import pytest

from hdp.estimator import Estimator

SCRIPT = """
import os
import socket
import struct
from pathlib import Path

import numpy as np

import hdp.collectives as hc

comm = hc.init()
total = hc.allreduce(np.full(300_000, comm.rank + 1.0), comm.world).wait()
assert total.min() == total.max() == sum(range(1, comm.world.size + 1))
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(os.environ["HDP_SERVER_SOCKET"])
    server, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
print("server has", "libssl" if "/libssl" in Path(f"/proc/{server}/maps").read_text() else "no TLS", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("encrypt", "expected"), [(True, "server has libssl"), (False, "server has no TLS")])
def test_the_servers_of_an_encrypted_job_use_tls(tmp_path, monkeypatch, capsys, encrypt, expected):
    """Two hosts with a rank each; each looks which libraries its server has mapped."""
    monkeypatch.setenv("HDP_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    job = Estimator(
        entry_point="train.py",
        source_dir=str(tmp_path / "code"),
        instance_type="local",
        instance_count=2,
        distribution={"hdp": {"enabled": True, "processes_per_host": 1}},
        encrypt_inter_container_traffic=encrypt,
    ).fit()
    assert job.describe()["TrainingJobStatus"] == "Completed"
    assert capsys.readouterr().out.count(expected) == 2
