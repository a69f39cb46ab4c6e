"""Waiting for agents: real processes, short deadlines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hdp.estimator.engines.local import watch
from hdp.estimator.engines.local.watch import Limits, ProcessAgent, StopReason, Watch

SLEEP = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
OBEDIENT = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print(flush=True); time.sleep(60)"


@contextmanager
def watching(limits: Limits, **programs: str) -> Iterator[tuple[Watch, int, list[StopReason]]]:
    """A watch over programs that have started; a pipe end to write to for a stop; the reasons that were told."""
    readable, writable = os.pipe()
    told: list[StopReason] = []
    agents = {
        host: subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
        for host, code in programs.items()
    }
    for host, agent in agents.items():
        if "print" in programs[host]:
            assert agent.stdout is not None
            agent.stdout.readline()
    try:
        yield (
            Watch({host: ProcessAgent(agent) for host, agent in agents.items()}, limits, readable, told.append),
            writable,
            told,
        )
    finally:
        for agent in agents.values():
            agent.kill()
            agent.communicate()
        os.close(readable)
        os.close(writable)


def test_ends_are_collected_with_their_codes() -> None:
    with watching(Limits(20, None), a="import sys; sys.exit(3)", b="pass") as (watch_, _, told):
        watch_.run()
        assert {end.host: end.exit_code for end in watch_.ends} == {"a": 3, "b": 0}
        assert (watch_.stop, told) == (None, [])


def test_a_stop_reaches_every_agent() -> None:
    """Two agents that end with 7 on SIGTERM; the pipe is written to. Expected: both 7, reason "request", told once."""
    with watching(Limits(20, None), a=OBEDIENT, b=OBEDIENT) as (watch_, writable, told):
        threading.Timer(0.2, os.write, (writable, b"x")).start()
        watch_.run()
        assert [end.exit_code for end in watch_.ends] == [7, 7]
        assert watch_.stop is not None and watch_.stop.reason is StopReason.REQUEST
        assert told == [StopReason.REQUEST]


def test_an_agent_that_ignores_the_stop_is_killed_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "AGENT_MARGIN_SECONDS", 0.2)
    with watching(Limits(0.2, None), a=DEAF) as (watch_, writable, _):
        os.write(writable, b"x")
        watch_.run()
        assert [end.exit_code for end in watch_.ends] == [-signal.SIGKILL]
        assert watch_.stop is not None
        assert 0.4 <= watch_.ends[0].time - watch_.stop.time < 5


def test_time_is_up() -> None:
    with watching(Limits(20, max_runtime=0.3), a=SLEEP) as (watch_, _, told):
        watch_.run()
        assert told == [StopReason.MAX_RUNTIME]
        assert watch_.ends[0].exit_code == -signal.SIGTERM


def test_the_others_are_ended_when_a_host_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PEER_GRACE_SECONDS", 0.2)
    with watching(Limits(20, None), a="import sys; sys.exit(1)", b=SLEEP) as (watch_, _, told):
        watch_.run()
        assert [(end.host, end.exit_code) for end in watch_.ends] == [("a", 1), ("b", -signal.SIGTERM)]
        assert told == [StopReason.PEER_FAILED]


def test_a_host_that_is_done_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """a ends well at once, b a second later. Expected: nobody is told to stop."""
    monkeypatch.setattr(watch, "PEER_GRACE_SECONDS", 0.1)
    with watching(Limits(20, None), a="pass", b="import time; time.sleep(1)") as (watch_, _, told):
        watch_.run()
        assert ([end.exit_code for end in watch_.ends], told) == ([0, 0], [])
