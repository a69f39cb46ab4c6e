"""Training steps with several libraries, all alive at once and measured in turn, in rounds, on emulated hosts.

Beside the steps themselves each round measures their two halves alone: *compute*, the bare model's step on all ranks at
once, and *exchange*, the messages of a step (DDP's buckets, Horovod's gradients, all in flight together) without it.
Of the shorter half, the part that the other one hides is ``(compute + exchange - step) / min(compute, exchange)``: 1,
one half costs nothing; 0, they follow each other; below 0, they are in each other's way.

Before anything is timed, every library trains the same three steps. In each its gradients must be the mean of what the
ranks compute by themselves; the parameters must be the same bits on all ranks, now and after the last round, and alike
for all libraries after the first step. (Later a network at its random start amplifies the rounding of sums in another
order: of two libraries' third steps nothing can be said.)
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import launch
import numpy as np
import peers
from onehost import OneHost
from peers import Peer
from session import PeerFailed, Session

_HERE = Path(__file__).parent

TOLERANCE = 1e-5
"""How far gradients, or what a step changed, may be from what they must be, of its length: sums in another order."""

CURVE_TOLERANCE = 0.1
"""The same of losses, some ten steps on: a network at its start makes much of a rounding."""

ALONE = "alone"
"""One process, with nothing between."""

_PYTHON = peers.ALL["hdp"].python
LIBRARIES: dict[str, Peer] = {
    "hdp": replace(peers.ALL["hdp"], module="hdp"),
    "smddp": replace(peers.ALL["hdp"], name="smddp", module="smddp"),
    "gloo": replace(peers.ALL["gloo"], module="gloo"),
    "horovod-gloo": replace(peers.ALL["horovod-gloo"], module="horovod"),
    "horovod-mpi": replace(peers.ALL["horovod-mpi"], module="horovod"),
    ALONE: Peer(ALONE, ALONE, _PYTHON, launch.torch, "make setup"),
}
"""The libraries of `peers` as `training_rank` knows them."""


Change = np.ndarray[Any, np.dtype[np.float64]]
"""What a step changed in all parameters."""


@dataclass(frozen=True)
class Workload:
    """What every rank trains. batch: images a rank and step."""

    model: str
    batch: int
    device: str = ""
    """What `device_place` calls it; "": the processor, and images as they come."""
    amp: str = "off"
    """``bf16``: mixed precision."""
    curve: int = 0
    """Steps after the checked ones whose losses are compared between the libraries."""

    @property
    def tolerance(self) -> float:
        """How far gradients may be from what they must be, of their length.

        A processor does the same twice. A GPU's libraries may take other algorithms the second time; a message that is
        wrong, or missing, is more than that.
        """
        return 1e-2 if self.device == "cuda" else TOLERANCE


@dataclass(frozen=True)
class Rounds:
    """How often. steps: timed in a round; limit: seconds that one answer of a library may take."""

    rounds: int
    steps: int
    limit: float = 120.0
    halves: bool = True
    """Whether compute and exchange are measured too."""
    together: bool = False
    """Whether all libraries start at once, which needs a processor for each of their ranks."""
    half_steps: int = 1
    """So many of each, a round."""
    checked: int = 3
    """Steps before the rounds; DDP arranges its buckets anew after the first and tells their sizes after the third."""


@dataclass(frozen=True)
class Program:
    """What the ranks run, a script beside this one, and the libraries that it knows."""

    script: str
    libraries: Mapping[str, Peer]


TORCH = Program("training_rank.py", LIBRARIES)


@dataclass
class Sample:
    """One library in one round; seconds."""

    steps: list[float]
    """Of each step: its slowest rank's own."""
    compute: float | None
    exchange: float | None
    sent: list[float]
    """Bytes a step that each host sent, as its interface counts; empty without a network."""
    cpu: float
    """Processor seconds a step, of all ranks and servers."""
    begun: list[float] = field(default_factory=list)
    """Unix seconds at which each step began on rank 0; of programs that tell."""


@dataclass
class Results:
    """Samples by library, one a round; what was found out about each beside them."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    buckets: dict[str, list[int]] = field(default_factory=dict)
    """Bytes of each message of a step."""
    errors: dict[str, float] = field(default_factory=dict)
    """How far gradients were from the mean of the ranks' own, of its length; the most of all checked steps."""
    curves: dict[str, float] = field(default_factory=dict)
    """The most that the ranks' mean loss differed from `reference`'s in any step, of that."""
    differences: dict[str, float] = field(default_factory=dict)
    """Of what the first step changed, to `reference`'s change, of its length."""
    losses: dict[str, list[list[float]]] = field(default_factory=dict)
    """Of each checked step, by rank; of programs that tell."""
    reference: str = ""
    parameters: int = 0


def run(
    network: launch.Hosts,
    per_host: int,
    names: Sequence[str],
    workload: Workload,
    rounds: Rounds,
    say: Callable[[str], None],
    program: Program = TORCH,
) -> Results:
    """Check, then measure. A library that fails, hangs or computes something else is ended and reported."""
    results = Results(samples={name: [] for name in names})
    with tempfile.TemporaryDirectory(prefix="hdp-bench-") as folder, contextlib.ExitStack() as stack:
        sessions: dict[str, Session] = {}
        reference: Change | None = None
        # gloo first: the others are compared with it, where it is measured. One process by itself needs no network.
        order = sorted(names, key=lambda n: (n != "gloo", names.index(n)))

        def start(name: str) -> None:
            place, ranks = (OneHost(), 1) if name == ALONE else (network, per_host)
            session = session_of(program, name, place, ranks, Path(folder), workload.device)
            sessions[name] = stack.enter_context(session)

        for name in order if rounds.together else ():
            with _failures(name, sessions, results, say):
                start(name)
        for name in order:
            if name in results.failed:
                continue
            with _failures(name, sessions, results, say):
                if not rounds.together:
                    start(name)
                session = sessions[name].ready()
                change = prepare(session, workload, rounds, Path(folder), results)
                if name != ALONE:  # it sees the images of one rank only
                    if reference is None:
                        results.reference, reference = name, change
                    _compare(name, change, reference, results, workload.tolerance)
                    if workload.curve:
                        compare_curves(name, results)
                session.pause()
                say(f"{name} is ready")
        for number in range(rounds.rounds):
            living = list(sessions)
            turn = number % max(1, len(living))  # nobody always follows the same one
            for name in living[turn:] + living[:turn]:
                with _failures(name, sessions, results, say):
                    results.samples[name].append(_measure(sessions[name], rounds))
            say(f"round {number + 1} of {rounds.rounds} is done")
        for name, session in list(sessions.items()):
            with _failures(name, sessions, results, say):
                session.resume()
                _agree(session.ask("digest", rounds.limit), "after the last round")
                session.pause()
    return results


def session_of(
    program: Program, name: str, network: launch.Hosts, per_host: int, folder: Path, device: str = ""
) -> Session:
    """The ranks of a library, which run `program` where `session` has its own."""
    peer = program.libraries[name]

    def start(network: launch.Hosts, per_host: int, argv: Sequence[str], env: Mapping[str, str]) -> launch.Job:
        python, _, *arguments = argv
        return peer.start(network, per_host, [python, str(_HERE / program.script), *arguments], env)

    module = f"{peer.module}:{device}" if device else peer.module
    return Session(replace(peer, start=start, module=module), network, per_host, folder / "base")


def prepare(session: Session, workload: Workload, rounds: Rounds, folder: Path, results: Results) -> Change:
    """Have the ranks build the model, and check the first steps. Returns what the first one changed."""
    name, shared = session.peer.name, folder / f"{session.peer.name}-check"
    shared.mkdir()
    asked = {**asdict(workload), "steps": rounds.checked, "folder": str(shared)}
    answers = session.ask("prepare", rounds.limit, **asked)
    change = np.fromfile(shared / "change", np.float32).astype(np.float64)
    shutil.rmtree(shared)
    results.versions[name] = session.versions
    results.buckets[name] = answers[0]["buckets"]
    results.parameters = answers[0]["parameters"]
    results.losses[name] = [a["losses"] for a in sorted(answers, key=lambda a: a.get("rank", 0)) if "losses" in a]
    errors = [max(step) for step in zip(*(a["errors"] for a in answers), strict=True)]
    check_gradients(name, errors, results, workload.tolerance)
    _agree(answers, f"after {rounds.checked} steps")
    return change


def check_gradients(name: str, errors: Sequence[float], results: Results, tolerance: float = TOLERANCE) -> None:
    """Note how far a library's gradients were from the ranks' mean in each step. Raises PeerFailed: too far."""
    results.errors[name] = max(errors)
    for step, error in enumerate(errors):
        if not error <= tolerance:
            raise PeerFailed(
                f"the gradients of step {step + 1} are not the mean of the ranks' own: the difference is {error:.3g} "
                f"of it, and rounding explains {tolerance:g}"
            )


def compare_curves(name: str, results: Results) -> None:
    """Note how far a library's mean losses are from the reference's. Raises PeerFailed: they are other curves."""
    mine, other = (mean_losses(results.losses.get(n, [])) for n in (name, results.reference))
    difference = max(abs(a - b) / abs(b) for a, b in zip(mine, other, strict=True))
    results.curves[name] = difference
    if not difference <= CURVE_TOLERANCE:
        raise PeerFailed(
            f"the losses are not those with {results.reference}: they differ by {difference:.3g} of them, and sums in "
            f"another order explain {CURVE_TOLERANCE:g}"
        )


def mean_losses(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Of each step, the mean over the ranks."""
    return [statistics.fmean(step) for step in zip(*by_rank, strict=True)]


def _compare(name: str, change: Change, reference: Change, results: Results, tolerance: float = TOLERANCE) -> None:
    """Note how far a library's first change is from the reference's. Raises PeerFailed: too far."""
    difference = float(np.linalg.norm(change - reference) / np.linalg.norm(reference))
    results.differences[name] = difference
    if not difference <= tolerance:
        raise PeerFailed(
            f"the first step changed the parameters by something else than with {results.reference}: the difference is "
            f"{difference:.3g} of the change, and rounding explains {tolerance:g}"
        )


def _agree(answers: Sequence[Mapping[str, Any]], when: str) -> None:
    digests = [answer["digest"] for answer in answers]
    if len(set(digests)) > 1:
        raise PeerFailed(f"the ranks' parameters differ {when}: {len(set(digests))} kinds on {len(digests)} ranks")


def _measure(session: Session, rounds: Rounds) -> Sample:
    session.resume()
    before, busy = _sent(session), session.server_seconds()
    answers = session.ask("measure", rounds.limit * rounds.steps, part="train", steps=rounds.steps)
    served, after = session.server_seconds() - busy, _sent(session)
    halves: dict[str, float | None] = {"compute": None, "exchange": None}
    if rounds.halves:
        for half in halves:
            asked = {"part": half, "steps": rounds.half_steps}
            answers_of = session.ask("measure", rounds.limit * rounds.half_steps, **asked)
            halves[half] = statistics.median(_slowest(answers_of))
    session.pause()
    return Sample(
        steps=_slowest(answers),
        sent=[(b - a) / rounds.steps for a, b in zip(before, after, strict=True)],
        cpu=(sum(sum(a["cpu"]) for a in answers) + served) / rounds.steps,
        begun=answers[0].get("begun", []),
        **halves,
    )


def _slowest(answers: Sequence[Mapping[str, Any]]) -> list[float]:
    return [max(times) for times in zip(*(a["times"] for a in answers), strict=True)]


def _sent(session: Session) -> list[int]:
    network: Any = session.network
    if not hasattr(network, "counters"):
        return []
    return [network.counters(host).sent_bytes for host in range(len(network.hosts))]


@contextlib.contextmanager
def _failures(name: str, sessions: dict[str, Session], results: Results, say: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except PeerFailed as exc:
        results.failed[name] = str(exc)
        say(f"{name} failed: {exc}")
        if session := sessions.pop(name, None):
            session.close()


def names_list(text: str) -> tuple[str, ...]:
    """Names of libraries with commas between, for argparse."""
    names = tuple(dict.fromkeys(text.split(",")))
    known = [name for name in LIBRARIES if name != ALONE]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no library {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    return names


def available(
    names: Sequence[str], say: Callable[[str], None], program: Program = TORCH
) -> tuple[list[str], dict[str, str]]:
    """The libraries that can run here, and why the others can't, which is said too."""
    absent = {name: why for name in names if (why := program.libraries[name].missing())}
    for name, why in absent.items():
        say(f"{name} is left out: {why}")
    return [name for name in names if name not in absent], absent
