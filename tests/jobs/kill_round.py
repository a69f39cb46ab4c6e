"""One round: start a job, SIGKILL one of its processes at a chosen moment, and see how the job ends and what it leaves.

A round runs in the process of a client (`be_a_client`) that has a home and folders for temporary files of its own, so
that whatever is in them after the job is the job's.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import belongings
import victims
from victims import Process

from hdp.contract.errors import EngineError, HdpError
from hdp.estimator import Estimator
from hdp.estimator.engines.base import TERMINAL
from hdp.estimator.engines.local import processes, store
from hdp.estimator.engines.local.home import JobDir, home_from
from hdp.estimator.job import TrainingJob

HOSTS, RANKS_PER_HOST = 2, 2
#: From the kill until the job is Failed and nothing of it is left.
END_SECONDS = 10.0
#: Longest wait for the moment: four processes that import a framework, on a machine with two cores.
_MOMENT_SECONDS = 90.0
#: How long a job that has not ended in time is watched further, to say how long it took.
_OVERTIME_SECONDS = 50.0


_Seen = TypeVar("_Seen")
#: "end" comes after a second of training; without it a job trains until somebody dies.
_FEW_STEPS, _MANY_STEPS = 100, 1_000_000


@dataclass(frozen=True)
class Round:
    """What to do. All of it is drawn before, so that a seed gives the same rounds again."""

    number: int
    part: str
    """Who is killed, one of `victims.PARTS`."""
    place: int
    """Which of them; see `Process.place`."""
    moment: str
    """``start``: when the victim has come; ``train``: when all ranks have made their first step; ``end``: when one has
    made its last. Then it may be too late: the job completes."""
    delay: float
    """Seconds from the moment to the kill."""
    source_dir: str
    """Has the training script, ``train.py``."""
    network: str | None = None
    """Rate of the links of the hosts' own network; None: they have none."""


@dataclass
class Outcome:
    """What came of it."""

    round: Round
    killed: str = "nobody"
    at: float = field(default_factory=time.monotonic)
    """When."""
    status: str = "Completed"
    seconds: float = 0.0
    """From the kill until the job had ended."""
    clean_seconds: float = 0.0
    """From the kill until nothing was left of it, too."""
    reason: str = ""
    had: dict[str, int] = field(default_factory=dict)
    """Kind of thing to how many of it the job had at the kill."""
    at_the_end: Mapping[str, list[str]] = field(default_factory=dict)
    """Kind to what was still there when the job's handle said for the first time that it had ended."""
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        plan = f"round {self.round.number}: {self.round.part}, {self.round.moment} + {self.round.delay:.2f} s"
        end = f"killed {self.killed}; {self.status} after {self.seconds:.1f} s, clean after {self.clean_seconds:.1f} s"
        still = [f"for a moment there were still {dict(self.at_the_end)}"] if self.at_the_end else []
        return "\n    ".join([f"{plan}: {end}: {(self.reason.splitlines() or ['-'])[0]}", *still, *self.faults])


def be_a_client(parent: str) -> None:
    """Give this process a home and folders for temporary files of its own, below `parent`."""
    folder = Path(tempfile.mkdtemp(prefix="", dir=parent))
    for name, variable in (("home", "HDP_HOME"), ("t", "TMPDIR"), ("run", "XDG_RUNTIME_DIR")):
        (folder / name).mkdir(mode=0o700)
        os.environ[variable] = str(folder / name)
    tempfile.tempdir = None  # so that TMPDIR is read again


def play(wanted: Round) -> Outcome:
    """Do the round; again, in training, where the job had completed before the kill."""
    outcome = _play(wanted)
    too_late = outcome.killed == "nobody" and not outcome.faults
    return _play(replace(wanted, moment="train")) if too_late else outcome


def _play(wanted: Round) -> Outcome:
    outcome, before = Outcome(wanted), belongings.folders()
    name = f"kill-{os.getpid()}-{wanted.number}-{wanted.moment}"
    client = _Client(name, wanted)
    job = home_from().job(name)
    try:
        victim = _at_the_moment(job, wanted, client)
        had = belongings.of_job(job)
        outcome.had = {kind: len(things) for kind, things in had.kinds().items()}
        outcome.had["folders"] += len(belongings.folders() - before)
        if victim is not None and _kill(victim):
            outcome.killed = str(victim)
            _judge(victim, job, outcome)
        elif wanted.moment != "end" or _await_end(name, time.monotonic() + 3 * END_SECONDS)["status"] != "Completed":
            outcome.faults.append(f"nobody was killed, and the job hasn't completed: {_answer(name)}, {client.error}")
        else:
            outcome.at = time.monotonic()
        _count(job, had, before, outcome)
        client.join(END_SECONDS)
    finally:
        _end(job)
    return outcome


def _kill(victim: Process) -> bool:
    try:
        os.kill(victim.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _judge(victim: Process, job: JobDir, outcome: Outcome) -> None:
    """Wait for the job's end."""
    outcome.at = time.monotonic()
    answer = _await_end(job.name, outcome.at + END_SECONDS + _OVERTIME_SECONDS)
    outcome.seconds = time.monotonic() - outcome.at
    outcome.status, outcome.reason = answer["status"], answer["reason"]
    if not (outcome.round.moment == "end" and outcome.status == "Completed"):
        outcome.faults += _faults(victim, answer)
    if outcome.seconds > END_SECONDS:
        outcome.faults.append(f"it took {outcome.seconds:.1f} s")


def _count(job: JobDir, had: belongings.Belongings, before: frozenset[str], outcome: Outcome) -> None:
    """What the job has left, at once and in the time that it had."""
    outcome.clean_seconds = time.monotonic() - outcome.at
    left = outcome.at_the_end = belongings.left(job, had, before)
    while left and (looked := time.monotonic() - outcome.at) < END_SECONDS:
        outcome.clean_seconds = looked
        left = belongings.left(job, had, before)
    outcome.faults += [f"left {kind}: {things}" for kind, things in left.items()]


def _faults(victim: Process, answer: Mapping[str, str]) -> list[str]:
    """What is wrong with how the job ended, a line each."""
    faults = []
    if answer["status"] != "Failed":
        faults.append(f"the job's status is {answer['status']}")
    if not re.match(victim.expected_reason, answer["reason"], re.DOTALL):
        faults.append(f"the reason isn't that {victim} was killed: {answer['reason']}")
    return faults


class _Client(threading.Thread):
    """Submits the job; a supervisor may be killed before this returns."""

    def __init__(self, name: str, wanted: Round) -> None:
        super().__init__(daemon=True)
        self._job_name, self._wanted = name, wanted
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        estimator = Estimator(
            entry_point="train.py",
            source_dir=self._wanted.source_dir,
            hyperparameters={"steps": _FEW_STEPS if self._wanted.moment == "end" else _MANY_STEPS},
            instance_type="local",
            instance_count=HOSTS,
            distribution={"hdp": {"enabled": True, "processes_per_host": RANKS_PER_HOST}},
            engine_options={"network": self._wanted.network},
        )
        try:
            estimator.fit(wait=False, logs=None, job_name=self._job_name)
        except HdpError as exc:
            self.error = exc


def _at_the_moment(job: JobDir, wanted: Round, client: _Client) -> Process | None:
    """Wait for the moment. Returns the victim as it runs then; None where it doesn't."""

    def victim() -> Process | None:
        return victims.find(job, wanted.part, wanted.place)

    moments = {"start": lambda: victim() is not None, "train": lambda: _all_train(job), "end": lambda: _one_ends(job)}
    has_come = moments[wanted.moment]
    deadline = time.monotonic() + _MOMENT_SECONDS
    while not has_come():
        if time.monotonic() > deadline or client.error is not None or _ended(job):
            return None
        time.sleep(0.02)
    time.sleep(wanted.delay)
    return victim()


def _all_train(job: JobDir) -> bool:
    return _said(job, "first step") == HOSTS * RANKS_PER_HOST


def _one_ends(job: JobDir) -> bool:
    return _said(job, "last step") > 0


def _said(job: JobDir, words: str) -> int:
    return sum(log.read_text(errors="replace").count(words) for log in job.logs.glob("*.log"))


def _await_end(name: str, deadline: float) -> Mapping[str, str]:
    """What the job's handle says once it says that the job has ended, or when time is up."""
    return _poll(lambda: _answer(name), lambda answer: answer["status"] in TERMINAL, deadline)


def _ended(job: JobDir) -> bool:
    """Whether that is on record. Nobody looks whether the supervisor lives."""
    try:
        return store.read(job).stage.terminal
    except HdpError:
        return False


def _answer(name: str) -> Mapping[str, str]:
    try:
        answer = TrainingJob.attach(name).describe()
    except HdpError as exc:
        return {"status": f"unknown ({exc})", "reason": ""}
    return {"status": answer["TrainingJobStatus"], "reason": answer.get("FailureReason", "")}


def _poll(look: Callable[[], _Seen], good: Callable[[_Seen], bool], deadline: float) -> _Seen:
    """What `look` says once it is `good`, or at the deadline."""
    while not good(seen := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return seen


def _end(job: JobDir) -> None:
    """End what a failed round has left, so that the next ones are undisturbed."""
    with contextlib.suppress(HdpError):
        supervisor = store.read(job).supervisor
        if supervisor is not None and processes.send(supervisor, signal.SIGKILL):
            processes.wait(supervisor, 5.0)
    with contextlib.suppress(HdpError, EngineError):
        store.noticed(job)
