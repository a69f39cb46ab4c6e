"""HDP_TIMELINE=1: what each rank and server writes of every operation."""

import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import cluster as clusters
import numpy as np
import pytest

import hdp.collectives as hc
from hdp.collectives.timeline import folder_of

SMALL, LARGE = 1000, 3_000_000  # float32: through cells; through slots, in many chunks


class Traced(clusters.Cluster):
    """A cluster whose ranks and servers write timelines into `folder`."""

    def __init__(self, sizes, folder, monkeypatch, **config):
        self.timelines = {"HDP_TIMELINE": "1", "HDP_TIMELINE_DIR": str(folder)}
        for name, value in self.timelines.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("SM_OUTPUT_DATA_DIR", raising=False)
        super().__init__(sizes, **config)

    def _start_rank(self, host, local):
        ours, theirs = clusters._context.Pipe()
        place = (self.socket(host), str(self.secret), len(self.ranks), local)
        process = clusters._context.Process(target=_rank, args=(self.timelines, theirs, *place), daemon=True)
        process.start()
        theirs.close()
        self.pipes.append(ours)
        self.ranks.append(process)


def _rank(environ, *place):
    os.environ.update(environ)  # ranks are forked from a server that was started before
    clusters._rank(*place)


def _program(comm):
    """Every kind once, small or large; with a tag that needs quoting; two at once; of some ranks."""
    world, data = comm.world, np.ones(SMALL, np.float32)
    hc.allreduce(data, world).wait(30)
    hc.allreduce(np.ones(LARGE, np.float32), world, hc.ReduceOp.MAX).wait(30)
    hc.allreduce(np.ones(LARGE, np.float32), world, wire="bfloat16", tag='a "tag" \\').wait(30)
    works = [hc.broadcast(np.ones(LARGE, np.float32), world, root=1, tag=f"together {i}") for i in range(3)]
    for work in works:
        work.wait(30)
    hc.allgather(np.ones(SMALL, np.int64), world).wait(30)
    hc.reduce(data, world, 0).wait(30)
    hc.reduce_scatter(np.ones((world.size, 5)), world).wait(30)
    hc.gather(data, world, 2).wait(30)
    hc.scatter(np.ones((world.size, 7)) if comm.rank == 3 else None, world, 3, out=np.empty(7)).wait(30)
    hc.alltoall(np.ones((world.size, 3)), world).wait(30)
    hc.allreduce(np.ones(0, np.float32), world).wait(30)
    hc.barrier(world).wait(30)
    if comm.rank in (0, 3):
        pair = comm.group([0, 3])
        hc.allreduce(np.ones(LARGE, np.float32), pair).wait(30)
        (hc.send(data, pair, 1) if comm.rank == 0 else hc.recv(data, pair, 0)).wait(30)


def _events(path):
    """The events of a file; it is whole, or lacks its bracket."""
    text = path.read_text()
    return json.loads(text if text.endswith("]\n") else text + "]")


def _operations(events):
    """Spans of operations, and those within them."""
    spans = [e for e in events if e["ph"] == "X" and not _row_of_a_phase(events, e)]
    whole = [e for e in spans if "status" in e.get("args", {})]
    parts = [e for e in spans if "status" not in e.get("args", {})]
    return whole, parts


def _phases(events, phase):
    """Spans of one phase, by the operation's name."""
    return {e["name"]: e for e in events if e["ph"] == "X" and _row_of_a_phase(events, e) == phase}


def _row_of_a_phase(events, event):
    """The phase of a row: that of "rank 2, copy out" is "copy out"; None of a row of whole operations."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    found = re.search(r", (copy in and local reduce|exchange|copy out)", names[event["tid"]])
    return found and found[1]


def _inside(part, whole):
    return whole["ts"] <= part["ts"] and part["ts"] + part["dur"] <= whole["ts"] + whole["dur"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Events by file, of `_program` on two hosts of two ranks, and when it ran, in microseconds."""
    folder = tmp_path_factory.mktemp("timelines") / "made"
    before = time.time_ns() // 1000
    with pytest.MonkeyPatch.context() as patch, Traced([2, 2], folder, patch) as made:
        made.run(_program)
    after = time.time_ns() // 1000
    assert all(p.read_text().endswith("]\n") for p in folder.iterdir())  # all have left in order
    return {p.name: _events(p) for p in folder.iterdir()}, before, after


def _of_rank(written, rank):
    return written[0][f"hdp-timeline-rank-{rank}.json"]


def test_a_file_for_each_rank_and_each_server(written):
    ranks = {f"hdp-timeline-rank-{rank}.json" for rank in range(4)}
    assert set(written[0]) == ranks | {"hdp-timeline-host-algo-1.json", "hdp-timeline-host-algo-2.json"}


@pytest.mark.parametrize("rank", range(4))
def test_each_operation_is_there_once_with_what_was_called(written, rank):
    whole, _ = _operations(_of_rank(written, rank))
    pair = 2 if rank in (0, 3) else 0
    assert len(whole) == 14 + pair
    assert len({(e["name"], e["args"]["group"]) for e in whole}) == len(whole)
    kinds = Counter(e["cat"] for e in whole)
    assert (
        kinds
        == Counter(
            {
                "allreduce": 4 + pair // 2,
                "broadcast": 3,
                "send": pair // 2 * (rank == 0),
                "recv": pair // 2 * (rank == 3),
            }
            | dict.fromkeys(["allgather", "reduce", "reduce_scatter", "gather", "scatter", "alltoall", "barrier"], 1)
        )
        - Counter()
    )
    by_name = {(e["name"], e["args"]["group"]): e["args"] for e in whole}
    assert all(0 <= e["args"]["waited_us"] <= e["dur"] + 1 for e in whole)
    small = {k: v for k, v in by_name["allreduce #1", "all 4 ranks"].items() if k != "waited_us"}
    assert small == {"bytes": 4000, "dtype": "float32", "op": "sum", "group": "all 4 ranks", "rank": rank,
                     "chunks": 0, "by": "cells", "status": "OK"}  # fmt: skip
    large = by_name["allreduce #2", "all 4 ranks"]
    assert (large["bytes"], large["op"], large["by"]) == (4 * LARGE, "max", "slots")
    assert large["chunks"] > 1
    assert by_name["allreduce 'a \"tag\" \\' #1", "all 4 ranks"]["wire"] == "bfloat16"
    assert by_name["alltoall #8", "all 4 ranks"]["bytes"] == 4 * 3 * 8
    if pair:
        assert by_name["allreduce #1", "ranks 0, 3"]["by"] == "slots"
    assert {e["args"]["status"] for e in whole} == {"OK"}


@pytest.mark.parametrize("rank", range(4))
def test_spans_nest_and_times_are_those_of_the_run(written, rank):
    events, before, after = _of_rank(written, rank), *written[1:]
    whole, parts = _operations(events)
    for e in whole + parts:
        assert before <= e["ts"] <= e["ts"] + e["dur"] <= after
    for one in whole:  # those of one thread don't overlap
        for other in whole:
            if one is not other and one["tid"] == other["tid"]:
                assert one["ts"] + one["dur"] <= other["ts"] or other["ts"] + other["dur"] <= one["ts"]
    large = next(e for e in whole if e["name"] == "allreduce #2")
    within = [p for p in parts if p["tid"] == large["tid"] and _inside(p, large)]
    assert [p["name"] for p in within] == ["wait for ranks", "transfer", "first chunk"]
    wait, transfer, first = within
    assert wait["ts"] == large["ts"]
    assert wait["ts"] + wait["dur"] == transfer["ts"] == first["ts"]
    assert transfer["ts"] + transfer["dur"] == large["ts"] + large["dur"]
    assert 0 < first["dur"] < transfer["dur"]


@pytest.mark.parametrize("rank", range(4))
def test_phases_of_an_operation_have_rows_of_their_own(written, rank):
    """A sum over all ranks: each adds its own data; who isn't given the result in place copies it out."""
    events = _of_rank(written, rank)
    large = next(e for e in _operations(events)[0] if e["name"] == "allreduce #2")
    took_in = _phases(events, "copy in and local reduce")["allreduce #2"]
    taken_out = _phases(events, "copy out")["allreduce #2"]
    assert _inside(took_in, large) and _inside(taken_out, large)
    assert taken_out["ts"] > took_in["ts"]  # the first chunk's result is not there before its data
    for phase in (took_in, taken_out):
        assert 0 < phase["args"]["busy_us"] <= phase["dur"] + 1


def test_a_servers_exchange_lies_between_what_ranks_take_in_and_out(written):
    exchange = _phases(written[0]["hdp-timeline-host-algo-1.json"], "exchange")["allreduce #2"]
    took_in = _phases(_of_rank(written, 0), "copy in and local reduce")["allreduce #2"]
    taken_out = _phases(_of_rank(written, 0), "copy out")["allreduce #2"]
    assert took_in["ts"] <= exchange["ts"]
    assert exchange["ts"] + exchange["dur"] <= taken_out["ts"] + taken_out["dur"] + 1


def test_operations_at_the_same_time_have_threads_of_their_own(written):
    events = _of_rank(written, 2)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    together = {e["tid"] for e in events if e["name"].startswith("broadcast 'together")}
    assert len(together) > 1
    assert {names[tid] for tid in together} >= {"rank 2", "rank 2, at the same time (2)"}


def test_hosts_are_processes_and_all_clocks_agree(written):
    files = written[0]
    names = {e["pid"]: e["args"]["name"] for f in files.values() for e in f if e["name"] == "process_name"}
    assert names == {1: "algo-1", 2: "algo-2"}
    rows = {(e["pid"], e["args"]["name"]) for f in files.values() for e in f if e["name"] == "thread_name"}
    assert {(1, "rank 1"), (1, "server"), (2, "rank 2"), (2, "server")} <= rows
    ends = []
    for rank in range(4):  # nobody has the sum before everybody has called
        large = next(e for e in _operations(_of_rank(written, rank))[0] if e["name"] == "allreduce #2")
        ends.append((large["ts"], large["ts"] + large["dur"]))
    assert max(begin for begin, _ in ends) <= min(end for _, end in ends)


def test_servers_have_what_went_through_slots_and_the_bytes_sent(written):
    events = written[0]["hdp-timeline-host-algo-1.json"]
    whole, _ = _operations(events)
    names = Counter(e["name"] for e in whole)
    assert names["allreduce #2"] == 1
    large = next(e for e in whole if e["name"] == "allreduce #2")
    assert (large["args"]["ranks here"], large["args"]["hosts"], large["args"]["status"]) == (2, 2, "OK")
    sent = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == "sent to algo-2"]
    assert sent == sorted(sent)
    assert sent[-1] > 4 * LARGE  # half of it as a sum and half as a share, and others


def _wait_late(comm):
    """Work of 0.3 s between the call and the wait; then a wait for the other rank, which works 0.9 s."""
    data = np.ones(LARGE, np.float32)
    work = hc.allreduce(data, comm.world, tag="hidden")
    time.sleep(0.3)
    work.wait(30)
    if comm.rank == 1:
        time.sleep(0.6)
    hc.allreduce(data, comm.world, tag="exposed").wait(30)


def test_what_a_rank_waited_is_what_its_communication_cost(tmp_path, monkeypatch):
    with Traced([1, 1], tmp_path, monkeypatch) as made:
        made.run(_wait_late)
    events = {rank: _operations(_events(tmp_path / f"hdp-timeline-rank-{rank}.json"))[0] for rank in (0, 1)}
    hidden, exposed = (next(e for e in events[0] if tag in e["name"]) for tag in ("hidden", "exposed"))
    assert hidden["args"]["waited_us"] <= hidden["dur"] - 300_000 or hidden["args"]["waited_us"] == 0
    assert exposed["args"]["waited_us"] > 300_000
    late = next(e for e in events[1] if "exposed" in e["name"])
    assert late["args"]["waited_us"] < exposed["args"]["waited_us"]


def _die(comm):
    hc.allreduce(np.ones(LARGE, np.float32), comm.world).wait(30)
    hc.barrier(comm.world).wait(30)


def _wait_in_vain(comm):
    hc.allreduce(np.ones(LARGE, np.float32), comm.world, tag="in vain").wait(30)


def test_a_killed_rank_leaves_a_file_that_lacks_its_bracket(tmp_path, monkeypatch):
    """The others' files say how the operation that it was missing in ended."""
    with Traced([2, 2], tmp_path, monkeypatch) as made:
        made.run(_die)
        for rank in range(3):
            made.call(rank, _wait_in_vain)
        path = tmp_path / "hdp-timeline-rank-3.json"
        deadline = time.monotonic() + 10
        while "barrier" not in path.read_text() and time.monotonic() < deadline:  # it writes some times a second
            time.sleep(0.05)
        os.kill(made.ranks[3].pid, signal.SIGKILL)
        results = made.collect(ranks=range(3))
    assert all(isinstance(r, hc.PeerLost) for r in results.values())
    text = path.read_text()
    assert not text.rstrip().endswith("]")
    assert [e["name"] for e in _operations(json.loads(text + "]"))[0]] == ["allreduce #1", "barrier #2"]
    last = _operations(_events(tmp_path / "hdp-timeline-rank-0.json"))[0][-1]
    assert last["name"] == "allreduce 'in vain' #1"
    assert (last["args"]["status"], last["args"]["by"]) == ("PEER_LOST", "nothing")
    assert "rank 3" in last["args"]["error"]


def _stand_still(comm):
    """Call a large sum and stop; then its transfer can't end."""
    work = hc.allreduce(np.ones(LARGE, np.float32), comm.world)
    os.kill(os.getpid(), signal.SIGSTOP)
    work.wait(30)


def _stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def _join(comm):
    """Call it too, and say so once the call is made."""
    work = hc.allreduce(np.ones(LARGE, np.float32), comm.world)
    Path(os.environ["HDP_TIMELINE_DIR"], f"called-{comm.rank}").touch()
    work.wait(30)


def test_what_was_in_transfer_at_the_end_is_there(tmp_path, monkeypatch):
    """Rank 3 calls the operation and stops; then the others call it, and rank 3 is killed."""
    with Traced([2, 2], tmp_path, monkeypatch) as made:
        made.call(3, _stand_still)
        _wait_until(lambda: _stopped(made.ranks[3].pid))
        for rank in range(3):
            made.call(rank, _join)
        _wait_until(lambda: len(list(tmp_path.glob("called-*"))) == 3)
        time.sleep(1)  # for the servers, which then let it begin
        os.kill(made.ranks[3].pid, signal.SIGKILL)
        made.collect(ranks=range(3))
    (at_server,), _ = _operations(_events(tmp_path / "hdp-timeline-host-algo-2.json"))
    assert (at_server["name"], at_server["args"]["status"]) == ("allreduce #1", "not complete")
    assert "chunk 1 of" in at_server["args"]["waits"]
    assert "waits for rank 3 (algo-2)" in at_server["args"]["waits"]
    whole, parts = _operations(_events(tmp_path / "hdp-timeline-rank-2.json"))
    assert (whole[0]["args"]["status"], whole[0]["args"]["by"]) == ("PEER_LOST", "slots")
    assert [p["name"] for p in parts][:2] == ["wait for ranks", "transfer"]


def test_a_file_that_cannot_be_written_is_said_and_fails_nothing(tmp_path, monkeypatch):
    (tmp_path / "occupied").write_text("")
    with Traced([2], tmp_path / "occupied", monkeypatch) as made:
        made.run(_die)
        assert "there is no timeline of host-algo-1" in made.log(0)
    assert [p.name for p in tmp_path.iterdir()] == ["occupied"]


def test_a_full_disk_ends_the_timeline_and_nothing_else(tmp_path, monkeypatch):
    for name in ["rank-0", "rank-1", "host-algo-1"]:
        Path(tmp_path, f"hdp-timeline-{name}.json").symlink_to("/dev/full")
    with Traced([2], tmp_path, monkeypatch) as made:
        made.run(_die)
        made.stop()
        assert "the timeline of server ends here: writing its file failed: No space left on device" in made.log(0)


def test_a_wrong_value_is_refused():
    with pytest.raises(hc.InvalidCollective, match=r"\$HDP_TIMELINE is 'yes'; expected 0 or 1"):
        folder_of({"HDP_TIMELINE": "yes"})
    assert folder_of({}) is None
    assert folder_of({"HDP_TIMELINE": "0", "HDP_TIMELINE_DIR": "/x"}) is None
    assert folder_of({"HDP_TIMELINE": "1", "HDP_TIMELINE_DIR": "/x"}) == Path("/x")
    assert folder_of({"HDP_TIMELINE": "1", "HDP_TIMELINE_DIR": "/x", "SM_OUTPUT_DATA_DIR": "/y"}) == Path("/y")
    assert folder_of({"HDP_TIMELINE": "1"}) == Path.cwd()
