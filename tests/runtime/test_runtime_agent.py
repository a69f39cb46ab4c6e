"""Real agents, real ranks, on loopback addresses: start, logs, code, the world that ranks see."""

from __future__ import annotations

import io
import json
import re
import signal
import tarfile
import time
import zipfile
from pathlib import Path

import psutil
import pytest
from runtime_cluster import Cluster, MakeCluster

from hdp.contract import hyperparameters as hp
from hdp.contract.files import write_json

DUMP = """
import json, os, sys
with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], os.environ["RANK"] + ".json"), "w") as f:
    json.dump({"env": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv, "path": sys.path}, f)
"""


def dumped(cluster: Cluster, host: int, rank: int) -> dict:
    return json.loads((cluster.hosts[host].layout.output_data / f"{rank}.json").read_text())


def test_ranks_get_the_world(make_cluster: MakeCluster) -> None:
    """2 hosts x 2 ranks: RANK 0..3, LOCAL_RANK, WORLD_SIZE 4, GROUP_RANK, and one master for all."""
    cluster = make_cluster(DUMP, hosts=2, ranks=2)
    assert cluster.run() == [0, 0], cluster.log()
    for rank in range(4):
        host = cluster.hosts[rank // 2]
        got = dumped(cluster, rank // 2, rank)
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank // 2),
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.9.1",
            "MASTER_PORT": host.environ["HDP_MASTER_PORT"],
            "SM_CURRENT_HOST": host.name,
            "GLOO_SOCKET_IFNAME": "lo",
        }
        assert {k: got["env"].get(k) for k in expected} == expected
        assert (got["cwd"], got["argv"], got["path"][0]) == (str(host.layout.code), ["train.py"], str(host.layout.code))


@pytest.mark.parametrize(
    ("ports", "second"), [({}, "127.0.9.2:8890"), ({"HDP_TENSORFLOW_PORTS": "7,8"}, "127.0.9.2:8")]
)
def test_workers_of_tensorflow_get_their_cluster(make_cluster: MakeCluster, ports: dict, second: str) -> None:
    """2 hosts: one rank each, TF_CONFIG with both workers in order, no server of ours; ports as the engine says."""
    parameters = {"sagemaker_multi_worker_mirrored_strategy_enabled": True}
    cluster = make_cluster(DUMP, hosts=2, parameters=parameters, environ=ports)
    assert cluster.run() == [0, 0], cluster.log()
    for rank in range(2):
        got = dumped(cluster, rank, rank)["env"]
        config = json.loads(got["TF_CONFIG"])
        assert config["cluster"]["worker"][1] == second and config["cluster"]["worker"][0].startswith("127.0.9.1:")
        assert config["task"] == {"type": "worker", "index": rank}
        assert got["WORLD_SIZE"] == "2" and "HDP_SERVER_SOCKET" not in got


def test_other_ranks_get_no_cluster_of_tensorflows(make_cluster: MakeCluster) -> None:
    """With TF_CONFIG, a script's own strategies would look for workers that nobody started."""
    cluster = make_cluster(DUMP, hosts=2, ranks=1)
    assert cluster.run() == [0, 0], cluster.log()
    assert "TF_CONFIG" not in dumped(cluster, 0, 0)["env"]


def test_numbers_of_ranks_may_differ_by_host(make_cluster: MakeCluster) -> None:
    """1 rank on algo-1, 3 on algo-2: algo-2 has ranks 1, 2, 3 of 4."""
    cluster = make_cluster(DUMP, hosts=2, ranks=1)
    path = cluster.hosts[1].layout.hyperparameters
    write_json(path, {**json.loads(path.read_text()), "sagemaker_hdp_processes_per_host": "3"})
    assert cluster.run() == [0, 0], cluster.log()
    got = [dumped(cluster, 1, rank)["env"] for rank in (1, 2, 3)]
    assert [(e["LOCAL_RANK"], e["LOCAL_WORLD_SIZE"], e["WORLD_SIZE"]) for e in got] == [
        ("0", "3", "4"), ("1", "3", "4"), ("2", "3", "4"),
    ]  # fmt: skip


def test_hyperparameters_keep_their_types(make_cluster: MakeCluster) -> None:
    """True, None, "1.10", "it's", lists, dicts reach SM_HPS as they were given, and argv as documented."""
    values = {"flag": True, "none": None, "version": "1.10", "note": "it's $HOME `x`", "l": [1, "a"], "d": {"k": 1.5}}
    cluster = make_cluster(DUMP, parameters={**values, "quiet": hp.FLAG})
    assert cluster.run() == [0], cluster.log()
    got = dumped(cluster, 0, 0)
    assert json.loads(got["env"]["SM_HPS"]) == {**values, "quiet": True}
    assert got["argv"][1:] == [
        "-d", '{"k": 1.5}', "--flag", "True", "-l", '[1, "a"]', "--none", "", "--note", "it's $HOME `x`",
        "--quiet", "--version", "1.10",
    ]  # fmt: skip
    assert json.loads(got["env"]["SM_USER_ARGS"]) == got["argv"][1:]


def test_a_script_in_a_subfolder_imports_its_neighbour(make_cluster: MakeCluster) -> None:
    """src/train.py imports src/helper.py and, from the root of the code, common.py."""
    cluster = make_cluster(
        parameters={"sagemaker_program": "src/train.py"},
        files={"src/train.py": "import helper, common\nprint(helper.X + common.Y)", "src/helper.py": "X = 40",
               "common.py": "Y = 2"},
    )  # fmt: skip
    assert cluster.run() == [0], cluster.log()
    assert "[algo-1:0] 42\n" in cluster.log()


def test_a_shell_script_gets_arguments_unparsed(make_cluster: MakeCluster) -> None:
    """train.sh with note="a; b $HOME": "$2" is that text, not what a shell makes of it."""
    cluster = make_cluster(
        parameters={"sagemaker_program": "train.sh", "note": "a; b $HOME"},
        files={"train.sh": 'echo "<$1> <$2> $SM_HP_NOTE"\n'},
    )
    assert cluster.run() == [0], cluster.log()
    assert "[algo-1:0] <--note> <a; b $HOME> a; b $HOME\n" in cluster.log()


def test_log_lines_have_time_host_and_rank(make_cluster: MakeCluster) -> None:
    """Every line has `<seconds> [algo-1]` or `<seconds> [algo-1:0]`, in order of time."""
    cluster = make_cluster("import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('no end', end='')")
    assert cluster.run() == [0], cluster.log()
    heads = [re.match(r"(\d+\.\d{6}) \[algo-1(:0)?\] ", line) for line in cluster.log().splitlines()]
    assert all(heads), cluster.log()
    times = [float(h.group(1)) for h in heads if h]
    assert times == sorted(times)
    assert {"out", "err", "no end"} <= {line.partition("[algo-1:0] ")[2] for line in cluster.log().splitlines()}


def test_the_agent_as_main_program_logs_what_it_does(make_cluster: MakeCluster) -> None:
    """python -m hdp.runtime.launch.agent: its own lines come without a rank."""
    cluster = make_cluster("print('x')", parameters={"lr": 0.1, "hf_token": "hunter2"})
    cluster.module = "hdp.runtime.launch.agent"
    assert cluster.run() == [0], cluster.log()
    assert "[algo-1] starting 1 of 1 ranks: train.py --hf_token *** --lr 0.1\n" in cluster.log()
    assert "hunter2" not in cluster.log()


def test_spawned_workers_find_the_script(make_cluster: MakeCluster) -> None:
    """multiprocessing's spawn from the user's script: the worker unpickles a function of __main__."""
    cluster = make_cluster(
        """
        import multiprocessing as mp
        def square(x):
            return x * x
        if __name__ == "__main__":
            with mp.get_context("spawn").Pool(1) as pool:
                print("squares", pool.map(square, [3, 4]))
        """
    )
    assert cluster.run() == [0], cluster.log()
    assert "[algo-1:0] squares [9, 16]\n" in cluster.log()


def test_code_comes_from_an_archive(make_cluster: MakeCluster) -> None:
    """sagemaker_submit_directory=file:///...tar.gz with main.py: it is unpacked and run."""
    cluster = make_cluster(parameters={"sagemaker_program": "main.py"})
    archive = cluster.base / "code dir.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("main.py")
        info.size = len(text := b"print('from the archive')")
        tar.addfile(info, io.BytesIO(text))
    path = cluster.hosts[0].layout.hyperparameters
    write_json(path, {**json.loads(path.read_text()), "sagemaker_submit_directory": hp.encode(f"file://{archive}")})
    assert cluster.run() == [0], cluster.log()
    assert "[algo-1:0] from the archive\n" in cluster.log()


def wheel(folder: Path, name: str, version: str, extra: str = "") -> Path:
    """A wheel of one module `name` with VERSION in it."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    meta = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        z.writestr(f"{meta}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extra}")
        z.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{meta}/RECORD", "")
    return path


def test_requirements_go_to_an_overlay(make_cluster: MakeCluster) -> None:
    """A wheel in requirements.txt, which itself needs numpy: importable by the rank, and not in this environment."""
    cluster = make_cluster("import numpy, hdp_test_tiny\nprint('tiny', hdp_test_tiny.VERSION, hdp_test_tiny.__file__)")
    host = cluster.hosts[0]
    made = wheel(host.layout.code, "hdp_test_tiny", "1.0", "Requires-Dist: numpy\n")
    (host.layout.code / "requirements.txt").write_text(f"./{made.name}\n")
    host.environ |= {"PIP_NO_INDEX": "1"}
    assert cluster.run(90) == [0], cluster.log()
    assert f"[algo-1:0] tiny 1.0 {host.layout.root}/overlay/" in cluster.log()
    with pytest.raises(ImportError):
        __import__("hdp_test_tiny")


def test_failed_requirements_show_pips_last_lines(make_cluster: MakeCluster) -> None:
    """A package that no index has: the failure file says so in pip's words, and no rank is started."""
    cluster = make_cluster("print('never')", files={"requirements.txt": "hdp-test-no-such-package==9\n"})
    cluster.hosts[0].environ |= {"PIP_NO_INDEX": "1"}
    assert cluster.run() == [1]
    assert "No matching distribution found for hdp-test-no-such-package==9" in cluster.hosts[0].failure()
    assert "never" not in cluster.log()


def test_pips_attempts_do_not_hide_its_error(make_cluster: MakeCluster) -> None:
    """An index that nobody serves, tried thrice: the failure file has the error, not the attempts."""
    cluster = make_cluster("print('never')", files={"requirements.txt": "some @ http://127.0.0.1:1/some.tar.gz\n"})
    cluster.hosts[0].environ |= {"PIP_RETRIES": "2"}
    assert cluster.run() == [1]
    assert "Connection refused" in cluster.hosts[0].failure()
    assert "Retrying" not in cluster.hosts[0].failure()


def test_a_forked_child_that_holds_the_pipes_delays_nothing(make_cluster: MakeCluster) -> None:
    """Rank 0 forks a child that sleeps for a minute with the pipes open and exits 0: the host ends, the child too."""
    cluster = make_cluster(
        """
        import os, time
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        print("child", pid, flush=True)
        os._exit(0)
        """
    )
    start = time.monotonic()
    assert cluster.run() == [0], cluster.log()
    assert time.monotonic() - start < 10
    found = re.search(r"child (\d+)", cluster.log())
    assert found
    cluster.wait_for(lambda: not psutil.pid_exists(int(found.group(1))), 5)  # killed, and then reaped


def test_ranks_end_with_the_agent(make_cluster: MakeCluster) -> None:
    """SIGKILL to the agent: the kernel ends its rank."""
    cluster = make_cluster("import os, time\nprint('pid', os.getpid())\ntime.sleep(60)")
    cluster.start()
    cluster.wait_for(lambda: "pid " in cluster.log())
    found = re.search(r"pid (\d+)", cluster.log())
    assert found
    cluster.signal(signal.SIGKILL)
    cluster.wait_for(lambda: not psutil.pid_exists(int(found.group(1))), 5)


def test_the_agent_ends_with_its_parent_if_told_so(make_cluster: MakeCluster) -> None:
    """HDP_DIE_WITH_PARENT=1 and a parent that is killed: the agent and its rank are gone."""
    cluster = make_cluster("import os, time\nprint('pid', os.getpid(), os.getppid())\ntime.sleep(60)")
    host = cluster.hosts[0]
    host.environ["HDP_DIE_WITH_PARENT"] = "1"
    parent = "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'hdp.runtime.launch.agent'])"
    (cluster.base / "parent.py").write_text(parent)
    host.environ["PYTHONPATH"] = str(cluster.base)
    cluster.module = "parent"
    cluster.start()
    cluster.wait_for(lambda: "pid " in cluster.log())
    found = re.search(r"pid (\d+) (\d+)", cluster.log())
    assert found
    cluster.signal(signal.SIGKILL)
    cluster.wait_for(lambda: not any(psutil.pid_exists(int(p)) for p in found.groups()), 5)


def test_nothing_is_left_in_the_temporary_folder(make_cluster: MakeCluster) -> None:
    """The parent of HDP_RUN_DIR, which has the socket, is empty again when the host has ended."""
    cluster = make_cluster("import os\nprint('socket', os.environ['HDP_SERVER_SOCKET'])", ranks=1)
    assert cluster.run() == [0], cluster.log()
    assert f"socket {cluster.run_dir}/" in cluster.log()
    assert list(cluster.run_dir.iterdir()) == []
