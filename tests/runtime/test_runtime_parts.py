"""The agent's parts by themselves: line splitting, the reactor, the wire, what the coordinator decides, checkpoints."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hdp.contract.outcome import Failure
from hdp.contract.secret import MAGIC, Session
from hdp.runtime.launch import linux, wire
from hdp.runtime.launch.accusation import find_cause
from hdp.runtime.launch.checkpoints import CheckpointWatch
from hdp.runtime.launch.coordination import (
    COLLATERAL_SECONDS,
    COLLECT_SECONDS,
    Coordination,
    failure_message,
    read_cause,
)
from hdp.runtime.launch.coordinator import MAX_STRANGERS, Coordinator
from hdp.runtime.launch.failure import TRACEBACK_CHARS, one_line, rank_failure
from hdp.runtime.launch.logs import MAX_LINE_BYTES, LineSplitter
from hdp.runtime.launch.reactor import Reactor

# -- lines -------------------------------------------------------------------------------------------------------


def split(*chunks: bytes, seconds_apart: float = 0.0) -> list[str]:
    """The lines that the chunks give, fed `seconds_apart`, with the end of the stream."""
    lines: list[str] = []
    splitter = LineSplitter(lines.append, progress_seconds=5.0)
    for index, chunk in enumerate(chunks):
        splitter.feed(chunk, index * seconds_apart)
    splitter.flush()
    return lines


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb\n"], ["a", "b"]),
        ([b"a", b"b\n", b"c"], ["ab", "c"]),
        ([b"a\n\nb\n"], ["a", "", "b"]),
        ([b"a\r\n", b"b\r", b"\nc\n"], ["a", "b", "c"]),
        ([b"\r 10%", b"\r 20%", b"\r100%\n", b"done\n"], ["100%", "done"]),
        ([b" 10%\r", b" 20%\r", b"100%\r\n"], ["100%"]),
        ([b"\r 99%", b"\r     \r", b"done\n"], ["done"]),
        (["é".encode()[:1], "é".encode()[1:] + b"\n"], ["é"]),
        ([b"\xff\n"], ["\ufffd"]),
        ([b"no end"], ["no end"]),
        ([], []),
    ],
)
def test_bytes_become_lines(chunks: list[bytes], expected: list[str]) -> None:
    """Split anywhere, progress bars collapsed to their last state, undecodable bytes replaced."""
    assert split(*chunks) == expected


def test_an_endless_progress_bar_is_shown_now_and_then() -> None:
    """20 states, a second apart, then the line's end: a line every 5 s, and the last state."""
    chunks = [f"\r{i:3}%".encode() for i in range(20)]
    assert split(*chunks, b"\r100%\n", seconds_apart=1.0) == ["  5%", " 10%", " 15%", "100%"]


def test_a_line_without_end_is_cut_between_characters() -> None:
    """200 KB of a two-byte character: pieces of at most 64 KiB, nothing lost or replaced."""
    text = "a" + "é" * 100_000
    lines = split(text.encode())
    assert "".join(lines) == text
    assert all(len(line.encode()) <= MAX_LINE_BYTES for line in lines)


def test_one_line_survives_an_exception_that_cannot_be_shown() -> None:
    """__str__ raises."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert one_line(Odd()).endswith("Odd: (its message can't be shown)")
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"


# -- the reactor -------------------------------------------------------------------------------------------------


def test_one_line_of_what_torch_passes_on_is_the_original() -> None:
    """As torch.utils.data raises it again: the innermost exception and the worker, not "Caught ... Traceback ..."."""
    text = (
        "Caught ValueError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
        '  File "/lib/worker.py", line 5, in loop\n    data = next()\n           ^^^^\n'
        '  File "/opt/ml/code/train.py", line 9, in __getitem__\n    raise ValueError("boom\\nbang")\n'
        "ValueError: boom\nbang\n"
    )
    assert one_line(ValueError(text)) == "ValueError: boom bang (in DataLoader worker process 1)"
    cut = text.partition("ValueError: boom")[0]
    assert one_line(ValueError(cut)).startswith("ValueError: Caught ValueError in DataLoader worker process 1.")


def test_posts_from_another_thread_wake_the_loop() -> None:
    """A thread posts after 50 ms; the loop, which waits 10 s, goes on at once."""
    reactor, seen = Reactor(), []
    threading.Timer(0.05, lambda: reactor.post(lambda: seen.append(1))).start()
    start = time.monotonic()
    assert reactor.run_until(lambda: bool(seen), 10.0)
    assert time.monotonic() - start < 2
    reactor.close()


def test_the_loop_gives_up_in_time_and_timers_run() -> None:
    """0.2 s with a timer every 50 ms: False, and 2 to 4 calls."""
    reactor, calls = Reactor(), []
    reactor.every(0.05, lambda: calls.append(1))
    assert not reactor.run_until(lambda: False, 0.2)
    assert 2 <= len(calls) <= 4
    reactor.close()


# -- the wire ----------------------------------------------------------------------------------------------------


def test_lines_arrive_sealed() -> None:
    """Two messages in three pieces; the same bytes again, or with one changed, are refused."""
    agent, coordinator = Session(b"k" * 32, "client"), Session(b"k" * 32, "server")
    messages = [{"type": "ready"}, {"type": "done", "ok": True}]
    data = b"".join(wire.seal(agent, wire.encode(m)) for m in messages)
    reader = wire.LineReader(coordinator)
    assert [m for piece in (data[:10], data[10:-3], data[-3:]) for m in reader.feed(piece)] == messages
    with pytest.raises(wire.WireError, match="changed on its way"):
        reader.feed(data)
    with pytest.raises(wire.WireError, match="changed on its way"):
        wire.LineReader(Session(b"k" * 32, "server")).feed(data.replace(b"ready", b"reedy"))


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"x" * (wire.MAX_LINE_BYTES + 100), "more than"), (b"hello", "isn't JSON"), (b"{}", "type")],
)
def test_lines_that_are_not_messages_are_refused(text: bytes, message: str) -> None:
    """Too long, not JSON, no type, though sealed."""
    with pytest.raises(wire.WireError, match=message):
        wire.LineReader(Session(b"k" * 32, "server")).feed(wire.seal(Session(b"k" * 32, "client"), text))


@pytest.mark.parametrize("line", [b"{}", b"\xff" * 70, b"0" * 64 + b" {}", b""])
def test_lines_without_a_seal_are_refused(line: bytes) -> None:
    """None, no hexadecimal, a wrong one, nothing at all."""
    with pytest.raises(wire.WireError, match="isn't the other side's"):
        wire.LineReader(Session(b"k" * 32, "server")).feed(line + b"\n")


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    """Of a job with one host, on a port of its own."""
    made = Coordinator(Coordination(["algo-1"], {}, 30.0, time.monotonic()), b"s" * 32, "127.0.9.7", 0)
    yield made
    made.close(0.0)


def is_met(coordinator: Coordinator) -> bool:
    """Whether a real agent gets its world."""
    with socket.create_connection(("127.0.9.7", coordinator.port), 5) as agent:
        session = wire.prove_as_agent(b"s" * 32, lambda n: agent.recv(n, socket.MSG_WAITALL), agent.sendall)
        agent.sendall(wire.seal(session, wire.encode({"type": "hello", "host": "algo-1", "local_size": 2})))
        hosts = [{"name": "algo-1", "address": "algo-1", "local_size": 2}]
        return wire.LineReader(session).feed(agent.recv(1000)) == [{"type": "world", "hosts": hosts}]


def test_strangers_are_dropped_and_the_job_goes_on(coordinator: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
    """Garbage, a wrong proof, a closed connection: hung up on, one of them logged; a real agent gets its world."""
    for data in (b"GET / HTTP/1.1\r\n" + b"x" * 100, MAGIC + os.urandom(64), b""):
        with socket.create_connection(("127.0.9.7", coordinator.port), 5) as stranger:
            stranger.sendall(data)
            with contextlib.suppress(OSError):
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(100):
                    continue
    assert is_met(coordinator)
    assert len([r for r in caplog.records if "control port: dropped a connection" in r.message]) == 1


def test_silent_strangers_keep_no_agent_out(coordinator: Coordinator) -> None:
    """Twice as many idle connections as there are places: an agent is met at once."""
    idle = [socket.create_connection(("127.0.9.7", coordinator.port), 5) for _ in range(2 * MAX_STRANGERS)]
    start = time.monotonic()
    assert is_met(coordinator)
    assert time.monotonic() - start < 5
    for stranger in idle:
        stranger.close()


def test_an_agent_with_another_secret_is_told(coordinator: Coordinator) -> None:
    """The coordinator proves itself first, so the agent knows and needs not guess."""
    with (
        socket.create_connection(("127.0.9.7", coordinator.port), 5) as agent,
        pytest.raises(wire.WireError, match="HDP_SECRET_FILE must be the same"),
    ):
        wire.prove_as_agent(b"t" * 32, lambda n: agent.recv(n, socket.MSG_WAITALL), agent.sendall)


# -- what the coordinator decides --------------------------------------------------------------------------------


def meet(*sizes: int) -> Coordination:
    """A job whose hosts algo-1.. are all present, at time 0."""
    names = [f"algo-{i + 1}" for i in range(len(sizes))]
    coordination = Coordination(names, {}, 60.0, 0.0)
    for name, size in zip(names, sizes, strict=True):
        coordination.hello(name, size)
    return coordination


def kinds(out: list) -> list[str]:
    return [message["type"] for _, message in out]


def test_the_world_comes_with_the_last_host() -> None:
    """2 hosts: nothing after the first, the world after the second, in the order of the hosts."""
    coordination = Coordination(["algo-1", "algo-2"], {"algo-2": "10.0.0.2"}, 60.0, 0.0)
    assert coordination.hello("algo-2", 3) == []
    [(to, world)] = coordination.hello("algo-1", 1)
    assert to is None
    assert world["hosts"] == [
        {"name": "algo-1", "address": "algo-1", "local_size": 1},
        {"name": "algo-2", "address": "10.0.0.2", "local_size": 3},
    ]


@pytest.mark.parametrize("host", ["algo-9", "algo-1"])
def test_who_is_not_expected_is_refused(host: str) -> None:
    """Not of this job; present already."""
    with pytest.raises(wire.WireError, match=host):
        meet(1, 1).hello(host, 1)


def test_go_comes_with_the_last_ready() -> None:
    """2 hosts."""
    coordination = meet(1, 1)
    assert kinds(coordination.message("algo-1", {"type": "ready"}, 1.0)) == []
    assert kinds(coordination.message("algo-2", {"type": "ready"}, 1.0)) == ["go"]


def test_the_earliest_failure_that_is_not_collateral_is_the_cause() -> None:
    """Collateral at 1.0, a real one at 1.2 and at 1.1, told in this order: the one at 1.1, after COLLECT_SECONDS."""
    coordination = meet(1, 1)
    failures = [
        Failure("algo-1", 0, 1.0, 1, exception="PeerLost", collateral=True),
        Failure("algo-1", 1, 1.2, 1, exception="late"),
        Failure("algo-2", 2, 1.1, 1, exception="first"),
    ]
    told = [coordination.message(f.host, failure_message(f), 2.0) for f in failures]
    assert told == [[(None, {"type": "alarm", "collateral": of})] for of in (True, False)] + [[]]
    assert coordination.tick(0.0, 2.0 + COLLECT_SECONDS - 0.1) == []
    [(_, cause)] = coordination.tick(0.0, 2.0 + COLLECT_SECONDS)
    assert read_cause(cause) == failures[2]


LOST = "RuntimeError: in the callback: PeerLost: rank 3 (algo-2), process 7, ended without leaving its groups"


def collateral(rank: int, text: str = LOST) -> Failure:
    """`rank` of two hosts with two ranks each has failed at Unix time 10 + rank because of another one."""
    return Failure(f"algo-{rank // 2 + 1}", rank, 10.0 + rank, 1, exception=text, collateral=True)


def test_the_cause_waits_for_the_culprit_while_all_failures_are_collateral() -> None:
    """Collateral at 1.0; after 20 s rank 3's exit code 3: a second alarm, and the cause names rank 3."""
    coordination = meet(2, 2)
    coordination.message("algo-1", failure_message(collateral(0)), 1.0)
    assert coordination.tick(0.0, 21.0) == []
    culprit = Failure("algo-2", 3, 30.0, 3)
    assert kinds(coordination.message("algo-2", failure_message(culprit), 21.0)) == ["alarm"]
    [(_, cause)] = coordination.tick(0.0, 21.1)
    assert read_cause(cause) == culprit


@pytest.mark.parametrize(
    ("codes", "expected"),
    [({"3": 3}, "rank 3 on algo-2 failed (exit code 3)"), ({"3": None}, "rank 3 on algo-2 failed")],
)
def test_who_is_accused_is_the_cause_where_nothing_else_is_known(codes: dict[str, int], expected: str) -> None:
    """Ranks 0 and 1 lost rank 3, which ended by itself after SIGTERM, or by it: the cause is rank 3, with the words."""
    coordination = meet(2, 2)
    for rank in (1, 0):
        coordination.message("algo-1", failure_message(collateral(rank)), 1.0)
    coordination.message("algo-1", {"type": "done", "ok": False, "exit_codes": {"0": 1, "1": 1}}, 2.0)
    done = {"type": "done", "ok": False, "exit_codes": {"2": None, **codes}}
    [(_, cause), _] = coordination.message("algo-2", done, 9.0)
    assert read_cause(cause).summary() == f"{expected}: as rank 0 on algo-1 says: {LOST}"


def test_who_is_accused_without_an_end_is_named_when_the_time_is_up() -> None:
    """Nobody is done: after COLLATERAL_SECONDS the accused is the cause."""
    coordination = meet(2, 2)
    coordination.message("algo-1", failure_message(collateral(0)), 1.0)
    [(_, cause)] = coordination.tick(0.0, 1.0 + COLLATERAL_SECONDS)
    assert (read_cause(cause).rank, read_cause(cause).host, read_cause(cause).collateral) == (3, "algo-2", False)


@pytest.mark.parametrize(
    ("failures", "codes", "expected"),
    [
        ([collateral(0, "CollectiveTimeout: waited 9 s for rank 2 (algo-2), which did not call it")], {}, 2),
        ([collateral(0), collateral(3, "PeerLost: rank 1 (algo-1), process 5, ended")], {}, 1),
        ([collateral(0, "PeerLost: the server of host algo-1 is gone")], {}, 0),
        ([collateral(1, "PeerLost: rank 3 (algo-2) has left and can't take part any more")], {3: 0}, 1),
        ([collateral(0), Failure("algo-1", 1, 99.0, 1, exception="ValueError: boom")], {}, 1),
    ],
)
def test_whom_words_accuse(failures: list[Failure], codes: dict[int, int], expected: int) -> None:
    """A timeout; rank 3 lost rank 1 itself; nobody named; rank 3 had ended well; a real failure beats all words."""
    cause = find_cause(failures, codes)
    assert cause is not None
    assert cause.rank == expected


def test_the_cause_does_not_wait_once_all_are_done() -> None:
    """Both hosts done: cause and all_done at once."""
    coordination = meet(1, 1)
    coordination.message("algo-1", failure_message(Failure("algo-1", 0, 1.0, 1)), 1.0)
    assert coordination.message("algo-1", {"type": "done", "ok": False}, 1.1) == []
    assert kinds(coordination.message("algo-2", {"type": "done", "ok": False}, 1.2)) == ["cause", "all_done"]


def test_a_host_that_breaks_off_is_the_cause() -> None:
    """algo-2 is lost: alarm, then a cause that names it."""
    coordination = meet(1, 1)
    assert kinds(coordination.lost("algo-2", "reset", 5.0, 1.0)) == ["alarm"]
    [(_, cause), *_] = coordination.message("algo-1", {"type": "done", "ok": False}, 2.0)
    assert read_cause(cause).host == "algo-2"
    assert "lost contact with host algo-2 (reset)" in read_cause(cause).exception


def test_a_host_that_is_done_may_hang_up() -> None:
    """No alarm."""
    coordination = meet(1, 1)
    coordination.message("algo-2", {"type": "done", "ok": True}, 1.0)
    assert coordination.lost("algo-2", "closed", 5.0, 1.1) == []


def test_failures_after_a_stop_are_not_the_cause() -> None:
    """Told to stop, then a rank says PeerLost: no alarm, no cause."""
    coordination = meet(1, 1)
    assert kinds(coordination.message("algo-1", {"type": "stop"}, 1.0)) == ["stop"]
    assert coordination.message("algo-2", failure_message(Failure("algo-2", 1, 1.1, 1)), 1.1) == []
    coordination.message("algo-1", {"type": "done", "ok": False}, 2.0)
    assert kinds(coordination.message("algo-2", {"type": "done", "ok": False}, 2.0)) == ["all_done"]
    assert coordination.cause is None


def test_a_late_host_hears_the_cause() -> None:
    """algo-2 comes after the time was up: it gets the cause, not a world."""
    coordination = Coordination(["algo-1", "algo-2"], {}, 5.0, 0.0)
    coordination.hello("algo-1", 1)
    assert kinds(coordination.tick(0.0, 5.0)) == ["alarm"]
    assert kinds(coordination.tick(0.0, 5.0 + COLLECT_SECONDS)) == ["cause"]
    [(to, message)] = coordination.hello("algo-2", 1)
    assert (to, message["type"]) == ("algo-2", "cause")
    assert "algo-2 did not come within 5 s" in read_cause(message).exception


# -- failures and checkpoints ------------------------------------------------------------------------------------


def test_noise_on_stderr_is_never_an_exception() -> None:
    """Exit code 1, no error file, ConnectionError in the last lines: shown, but not as the exception."""
    failure = rank_failure("algo-1", 0, 1, error=None, stderr=["ConnectionError: harmless"], ended=1.0)
    assert failure.exception == ""
    assert "ConnectionError: harmless" in failure.traceback


def test_a_shells_137_is_explained() -> None:
    """Exit code 137 of a shell is its child's SIGKILL."""
    failure = rank_failure("algo-1", 0, 137, error=None, stderr=[], ended=1.0)
    assert (failure.exit_code, failure.signal) == (137, None)
    assert "out-of-memory killer" in failure.summary()


def test_secrets_stay_out_of_a_failure() -> None:
    """A URL with a password in the exception."""
    error = {"exception": "OSError: s3://me:hunter2@host/x", "traceback": "x", "time": 1.0}
    failure = rank_failure("algo-1", 0, 1, error=error, stderr=[], ended=1.0)
    assert "hunter2" not in failure.summary()


def test_checkpoints_written_since_are_found(tmp_path: Path) -> None:
    """One file before, one after, one renamed after: the last two."""
    (tmp_path / "before").write_text("x")
    (tmp_path / "part").write_text("x")
    time.sleep(0.1)
    since = time.time()
    time.sleep(0.05)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/after").write_text("x")
    (tmp_path / "part").rename(tmp_path / "renamed")
    watch = CheckpointWatch(tmp_path, since)
    assert watch.written() == ("renamed", "sub/after")
    assert watch.by_rank({0: tmp_path / "none"}) == {0: ("renamed", "sub/after")}
    assert watch.by_rank({0: tmp_path / "none", 1: tmp_path / "none"}) == {0: (), 1: ()}


# -- the summary of a failure ------------------------------------------------------------------------------------

STACK = (
    "Traceback (most recent call last):\n"
    '  File "/opt/ml/code/train.py", line 3, in <module>\n    main()\n'
    '  File "/opt/ml/code/train.py", line 7, in main\n    step()\n    ^^^^^^\n'
)


def test_a_long_message_leaves_room_for_the_last_frames() -> None:
    """5,000 characters: the message's first 300 and all frames, in 1,024."""
    message = "RuntimeError: " + "".join(f"{i:05d}" for i in range(1000))
    text = Failure("algo-1", 0, 1.0, 1, exception=message[:600], traceback=f"{STACK}{message}").summary()
    assert len(text) <= 1024
    assert text.startswith(f"rank 0 on algo-1 failed (exit code 1): {message[:297]}...\n")
    assert text.endswith(STACK.split("\n", 1)[1].rstrip())


def test_the_users_last_frame_is_kept_below_a_deep_library() -> None:
    """40 frames of a library below train.py's line 7: that line and the library's last frames."""
    deep = "".join(f'  File "/v/site-packages/t/x.py", line {i}, in f{i}\n    call()\n' for i in range(40))
    text = Failure("algo-1", 0, 1.0, 1, exception="ValueError: x", traceback=f"{STACK}{deep}ValueError: x").summary()
    assert len(text) <= 1024
    frames = [line for line in text.splitlines() if "File" in line]
    assert "line 7, in main" in frames[0]
    assert "line 39, in f39" in frames[-1]
    assert len(frames) > 5


def test_the_frames_survive_a_message_of_any_length() -> None:
    """100,000 characters behind the frames: what travels is bounded and still has both."""
    left = {"exception": "RuntimeError: x", "traceback": f"{STACK}RuntimeError: {'x' * 100_000}", "time": 1.0}
    failure = rank_failure("algo-1", 0, 1, error=left, stderr=[], ended=1.0)
    assert len(failure.traceback) <= TRACEBACK_CHARS
    assert "line 7, in main" in failure.summary()


# -- processes ---------------------------------------------------------------------------------------------------


def test_members_are_the_session_and_what_is_below_it() -> None:
    """A leader whose child has ended after it started a sleeper, and another sleeper in its own session: both."""
    code = (
        "import subprocess, sys\n"
        "orphan = subprocess.run(['sh', '-c', 'sleep 60 >/dev/null 2>&1 & echo $!'], capture_output=True, text=True)\n"
        "other = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "print(orphan.stdout.strip(), other.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "other.kill()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, start_new_session=True) as leader:
        assert leader.stdout is not None
        orphan, other = map(int, leader.stdout.readline().split())
        try:
            assert sorted(linux.members([leader.pid])[leader.pid]) == sorted([leader.pid, orphan, other])
            assert sorted(linux.with_children([leader.pid])) == sorted([leader.pid, other])
        finally:
            os.kill(orphan, signal.SIGKILL)
            os.kill(other, signal.SIGKILL)
            leader.kill()
