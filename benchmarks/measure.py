"""The interleaved rounds: every peer is alive throughout; a round takes each size, and there the peers in turn."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import launch
import numpy as np
from peers import Peer
from processes import own_folder
from session import PeerFailed, Session

_SMALL = 1 << 20  # bytes; below it the default gap counts
_GAP = 1.5e-3  # seconds: a shaper's bucket refills in it, so that each operation finds the same link
_WARM_UP = {True: 10, False: 1}  # operations before the clock counts, by whether the size is small
_MOST, _LEAST = 300, 3  # operations a round


@dataclass(frozen=True)
class Options:
    """What is to be measured. sizes: bytes, see `case_bytes`. gap: seconds; None: 1.5 ms below 1 MiB, else none."""

    sizes: tuple[int, ...]
    per_host: int
    collective: str = "allreduce"
    dtype: str = "float32"
    wire: str = ""
    rounds: int = 5
    iterations: int | None = None
    seconds: float = 1.0
    """About how long a peer is measured in a round at one size, where `iterations` doesn't say how often."""
    gap: float | None = None
    together: bool = False
    """Whether all peers start at once, which needs a processor for each of their ranks."""
    limit: float = 60.0
    """Seconds that a peer may take beyond what was expected before it counts as hung."""

    def gap_at(self, size: int) -> float:
        """Seconds between operations."""
        return self.gap if self.gap is not None else (_GAP if size < _SMALL else 0.0)


@dataclass
class Sample:
    """One peer at one size in one round."""

    times: list[float]
    """Seconds of each operation: its slowest rank's own."""
    spans: list[float]
    """Seconds of each operation, from the first rank's start to the last one's end."""
    cpu: float
    """Processor seconds an operation, of all ranks and servers."""
    sent: list[float]
    """Bytes an operation that each host sent, as its interface counts; empty without a network."""
    packets: list[float] = field(default_factory=list)


@dataclass
class Results:
    """Samples by peer and size, one a round; why peers failed; versions by peer."""

    samples: dict[str, dict[int, list[Sample]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    between: list[Any] = field(default_factory=list)
    """What `between_rounds` gave."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def run(
    network: launch.Hosts,
    peers: Sequence[Peer],
    options: Options,
    say: Callable[[str], None],
    between_rounds: Callable[[], Any] | None = None,
) -> Results:
    """Measure. A peer that fails or hangs is ended and reported; the others go on."""
    results = Results()
    with tempfile.TemporaryDirectory(dir=own_folder()) as folder, contextlib.ExitStack() as stack:
        base = Path(folder) / "base"
        itemsize = np.dtype(options.dtype).itemsize
        np.resize(np.arange(97).astype(options.dtype), max(options.sizes) // itemsize).tofile(base)
        sessions: dict[str, Session] = {}
        for peer in peers:
            with _failures(peer.name, sessions, results, say):
                session = stack.enter_context(Session(peer, network, options.per_host, base, options.wire))
                sessions[peer.name] = session
                if not options.together:
                    session.ready().pause()
        for name in list(sessions):
            with _failures(name, sessions, results, say):
                if options.together:
                    sessions[name].ready().pause()
                results.versions[name] = sessions[name].versions
        base.unlink()  # every rank has it open; whoever is killed from now on leaves no large file
        for number in range(options.rounds):
            if between_rounds:
                results.between.append(between_rounds())
            names = list(sessions)
            turn = number % max(1, len(names))  # nobody always follows the same peer
            for size in options.sizes:
                for name in (n for n in names[turn:] + names[:turn] if n in sessions):
                    with _failures(name, sessions, results, say):
                        _measure(sessions[name], size, options, results)
            say(f"round {number + 1} of {options.rounds} is done")
    return results


@contextlib.contextmanager
def _failures(name: str, sessions: dict[str, Session], results: Results, say: Callable[[str], None]) -> Any:
    try:
        yield
    except PeerFailed as exc:
        results.failed[name] = str(exc)
        say(f"{name} failed: {exc}")
        if session := sessions.pop(name, None):
            session.close()


def _measure(session: Session, size: int, options: Options, results: Results) -> None:
    asked = {"bytes": size, "collective": options.collective, "dtype": options.dtype, "gap": options.gap_at(size)}
    session.resume()
    warm = session.ask("prepare", options.limit, iterations=_WARM_UP[size < _SMALL], **asked)
    expected = max(_times(warm)[-3:]) + options.gap_at(size)
    count = options.iterations or round(min(_MOST, max(_LEAST, options.seconds / expected)))
    before, busy = _counters(session), session.server_seconds()
    answers = session.ask("measure", options.limit + 4 * count * expected, iterations=count, **asked)
    served, after = session.server_seconds() - busy, _counters(session)
    session.ask("drop", options.limit)
    session.pause()
    sample = Sample(
        times=_times(answers),
        spans=[
            max(stops) - min(starts)
            for starts, stops in zip(_by_operation(answers, "started"), _by_operation(answers, "stopped"), strict=True)
        ],
        cpu=(sum(sum(a["cpu"]) for a in answers) + served) / count,
        sent=[(b[0] - a[0]) / count for a, b in zip(before, after, strict=True)],
        packets=[(b[1] - a[1]) / count for a, b in zip(before, after, strict=True)],
    )
    results.samples.setdefault(session.peer.name, {}).setdefault(size, []).append(sample)


def _by_operation(answers: list[dict[str, Any]], key: str) -> list[tuple[float, ...]]:
    return list(zip(*(a[key] for a in answers), strict=True))


def _times(answers: list[dict[str, Any]]) -> list[float]:
    started, stopped = _by_operation(answers, "started"), _by_operation(answers, "stopped")
    return [max(b - a for a, b in zip(*pair, strict=True)) for pair in zip(started, stopped, strict=True)]


def _counters(session: Session) -> list[tuple[int, int]]:
    network: Any = session.network
    if not hasattr(network, "counters"):
        return []
    counted = [network.counters(i) for i in range(len(network.hosts))]
    return [(c.sent_bytes, getattr(c, "sent_packets", 0)) for c in counted]
