"""SIGTERM: every rank on every host gets it, has its deadline, and the report says who has saved what."""

from __future__ import annotations

import time

from runtime_cluster import Cluster, MakeCluster

CHECKPOINT = """
import os, signal, sys, time
rank = os.environ["RANK"]
folder = os.environ["SM_CHECKPOINT_DIR"]
with open(os.path.join(folder, f"before-{rank}"), "w") as f:
    f.write("x")
def save(*_):
    with open(os.path.join(folder, f".part-{rank}"), "w") as f:
        f.write("weights")
    os.replace(os.path.join(folder, f".part-{rank}"), os.path.join(folder, f"rank-{rank}.pt"))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(60)
"""


def up(cluster: Cluster, ranks: int) -> None:
    cluster.wait_for(lambda: cluster.log().count("] up\n") == ranks)
    time.sleep(0.1)  # files written before SIGTERM are told from later ones by the kernel's clock


def saved_after_signal(cluster: Cluster) -> dict[int, tuple[str, ...]]:
    """Start one host with two ranks, stop it once both are up; what the report says that each saved after that."""
    cluster.start()
    up(cluster, 2)
    cluster.signal()
    assert cluster.wait() == [0], cluster.log()
    return {r.rank: r.checkpoints for r in cluster.hosts[0].report().ranks}


def test_every_rank_checkpoints_and_is_reported(make_cluster: MakeCluster) -> None:
    """2x2, SIGTERM to both agents: exit 0, and rank r has written rank-r.pt after SIGTERM, not before-r."""
    cluster = make_cluster(CHECKPOINT, hosts=2, ranks=2)
    cluster.start()
    up(cluster, 4)
    cluster.signal()
    assert cluster.wait() == [0, 0], cluster.log()
    for index, host in enumerate(cluster.hosts):
        report = host.report()
        assert report.stopped
        assert report.first_cause is None
        assert not host.layout.failure.exists()
        ranks = (2 * index, 2 * index + 1)
        assert {r.rank: r.checkpoints for r in report.ranks} == {r: (f"rank-{r}.pt",) for r in ranks}
        assert report.checkpoints == tuple(f"rank-{r}.pt" for r in ranks)
        assert all(r.seconds_after_stop is not None and r.seconds_after_stop < 5 for r in report.ranks)
        assert not any(r.killed_at_deadline for r in report.ranks)


def test_one_host_told_to_stop_stops_all(make_cluster: MakeCluster) -> None:
    """SIGTERM to algo-2's agent alone: the ranks on algo-1 checkpoint too."""
    cluster = make_cluster(CHECKPOINT, hosts=2, ranks=1)
    cluster.start()
    up(cluster, 2)
    process = cluster.hosts[1].process
    assert process is not None
    process.terminate()
    assert cluster.wait() == [0, 0], cluster.log()
    assert [h.report().stopped for h in cluster.hosts] == [True, True]
    assert cluster.hosts[0].report().ranks[0].checkpoints == ("rank-0.pt",)


def test_a_rank_without_a_handler_ends_by_the_signal(make_cluster: MakeCluster) -> None:
    """No handler: the rank ends by SIGTERM, the agent with 143, and it isn't a failure."""
    cluster = make_cluster("import time\nprint('up', flush=True)\ntime.sleep(60)")
    cluster.start()
    up(cluster, 1)
    cluster.signal()
    assert cluster.wait() == [143], cluster.log()
    report = cluster.hosts[0].report()
    assert (report.ranks[0].signal, report.first_cause, report.failures) == ("SIGTERM", None, ())


def test_a_rank_that_ignores_the_signal_is_killed_with_its_children(make_cluster: MakeCluster) -> None:
    """Stop timeout 1 s, rank and its child ignore SIGTERM: both are gone, and the report says killed."""
    cluster = make_cluster(
        """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pid = os.fork()
        if pid:
            print("up", flush=True)
        time.sleep(60)
        """,
        environ={"HDP_STOP_TIMEOUT_SECONDS": "1"},
    )
    cluster.start()
    up(cluster, 1)
    cluster.signal()
    start = time.monotonic()
    assert cluster.wait() == [143], cluster.log()
    assert 0.9 < time.monotonic() - start < 8
    rank = cluster.hosts[0].report().ranks[0]
    assert (rank.signal, rank.killed_at_deadline) == ("SIGKILL", True)


def test_files_opened_by_native_code_are_found_by_their_descriptor(make_cluster: MakeCluster) -> None:
    """Two ranks write through libc's open, which no audit hook sees, for 0.3 s each: each is found all the same."""
    cluster = make_cluster(
        """
        import ctypes, os, signal, sys, time
        rank = os.environ["RANK"]
        libc = ctypes.CDLL(None)
        def save(*_):
            name = os.path.join(os.environ["SM_CHECKPOINT_DIR"], f"native-{rank}").encode()
            fd = libc.open(name, os.O_WRONLY | os.O_CREAT, 0o644)
            os.write(fd, b"weights")
            time.sleep(0.3)
            os.close(fd)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("up", flush=True)
        time.sleep(60)
        """,
        ranks=2,
    )
    assert saved_after_signal(cluster) == {0: ("native-0",), 1: ("native-1",)}


def test_a_shell_ranks_child_gets_the_signal_and_its_time(make_cluster: MakeCluster) -> None:
    """train.sh runs Python as its child: SIGTERM reaches it, and the host waits until it has saved."""
    cluster = make_cluster(
        parameters={"sagemaker_program": "train.sh"},
        files={
            "train.sh": "python3 child.py\n",
            "child.py": """
            import os, signal, sys, time
            def save(*_):
                time.sleep(1)
                open(os.path.join(os.environ["SM_CHECKPOINT_DIR"], "saved"), "w").close()
                sys.exit(0)
            signal.signal(signal.SIGTERM, save)
            print("up", flush=True)
            time.sleep(60)
            """,
        },
    )
    cluster.start()
    up(cluster, 1)
    cluster.signal()
    cluster.wait()
    assert cluster.hosts[0].report().checkpoints == ("saved",), cluster.log()


def test_a_stop_during_a_download_ends_the_host(make_cluster: MakeCluster) -> None:
    """SIGTERM while pip runs: the host ends at once with 143, no rank was started, pip is gone."""
    cluster = make_cluster("print('never')", files={"requirements.txt": "https://192.0.2.1/x.tar.gz\n"})
    cluster.start()
    cluster.wait_for(lambda: "requirements: installing" in cluster.log())
    cluster.signal()
    assert cluster.wait(10) == [143]
    assert "] never" not in cluster.log()
    assert cluster.hosts[0].report().stopped


def test_torch_save_is_attributed_to_its_rank(make_cluster: MakeCluster) -> None:
    """Two ranks torch.save 12 bytes each at the same time, which C++ opens for a millisecond: each is found."""
    cluster = make_cluster(
        """
        import os, signal, sys, time
        from pathlib import Path
        import torch
        rank, folder = int(os.environ["RANK"]), Path(os.environ["SM_CHECKPOINT_DIR"])
        torch.save(torch.zeros(3), folder / f"before-{rank}.pt")
        def save(*_):
            weights = torch.full((3,), float(rank))
            torch.save(weights, folder / f"path-{rank}.pt")
            torch.save(weights, f=str(folder / f"text-{rank}.pt"))
            assert torch.load(folder / f"path-{rank}.pt")[0] == rank
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("up", flush=True)
        time.sleep(60)
        """,
        ranks=2,
    )
    assert saved_after_signal(cluster) == {rank: (f"path-{rank}.pt", f"text-{rank}.pt") for rank in (0, 1)}


def test_a_checkpoint_begun_before_the_signal_is_attributed_too(make_cluster: MakeCluster) -> None:
    """Rank 0 opened late.pt before SIGTERM and closes it after; rank 1 had written it even before: rank 0 did it."""
    cluster = make_cluster(
        """
        import os, signal, sys, time
        from pathlib import Path
        late = Path(os.environ["SM_CHECKPOINT_DIR"], "late.pt")
        if os.environ["RANK"] == "1":
            late.write_text("old")
            late.with_name("go").touch()
        else:
            while not late.with_name("go").exists():
                time.sleep(0.01)
            late = late.open("w")
        def save(*_):
            if os.environ["RANK"] == "0":
                late.write("weights")
                late.close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("up", flush=True)
        time.sleep(60)
        """,
        ranks=2,
    )
    assert saved_after_signal(cluster) == {0: ("late.pt",), 1: ()}


def test_a_program_that_a_rank_starts_is_attributed_where_it_is_seen(make_cluster: MakeCluster) -> None:
    """Each of two ranks has a shell write for 0.3 s; rank 0 another one for a millisecond, which is the host's."""
    cluster = make_cluster(
        """
        import os, signal, subprocess, sys, time
        rank, folder = os.environ["RANK"], os.environ["SM_CHECKPOINT_DIR"]
        def save(*_):
            subprocess.run(["sh", "-c", f"exec 3>{folder}/shell-{rank}; sleep 0.3; echo x >&3"], check=True)
            if rank == "0":
                subprocess.run(["sh", "-c", f"echo > {folder}/quick"], check=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("up", flush=True)
        time.sleep(60)
        """,
        ranks=2,
    )
    found = saved_after_signal(cluster)
    assert {rank: set(files) - {"quick"} for rank, files in found.items()} == {0: {"shell-0"}, 1: {"shell-1"}}
    assert "quick" not in found[1]
    assert cluster.hosts[0].report().checkpoints == ("quick", "shell-0", "shell-1")


def test_a_handler_that_raises_is_in_the_report(make_cluster: MakeCluster) -> None:
    """Rank 1's SIGTERM handler raises: the host was stopped, without a cause, and the report has the exception."""
    cluster = make_cluster(
        """
        import os, signal, time
        def save(*_):
            raise RuntimeError("boom in handler")
        if os.environ["RANK"] == "1":
            signal.signal(signal.SIGTERM, save)
        print("up", flush=True)
        time.sleep(60)
        """,
        ranks=2,
    )
    cluster.start()
    up(cluster, 2)
    cluster.signal()
    assert cluster.wait() == [143], cluster.log()
    report = cluster.hosts[0].report()
    assert [(f.rank, f.exception) for f in report.failures] == [(1, "RuntimeError: boom in handler")]
    assert (report.first_cause, report.stopped) == (None, True)
