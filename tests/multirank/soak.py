"""Rounds of random programs on random clusters behind the fault proxy, and the rule that they are judged by.

The rule: each operation gives the exact result or raises, in time; nothing raises without a fault that breaks or
corrupts; once a group has failed on a rank, whatever that rank starts in it raises at once, and on all other ranks as
well; no process crashes, and nothing is left behind. `play(seed)` is one round; `soak` plays many.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import random
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

import faults
import programs
from cluster import Cluster
from fault_proxy import FaultProxy
from faults import Kind

from hdp.contract.errors import CollectiveError

#: Seconds that an operation may take, and that ranks and servers may take to join: few where a fault may break things,
#: so that rounds are short; many where none may, so that a busy machine is no reason to fail.
TIMEOUT, PATIENT_TIMEOUT = 4.0, 60.0
#: Pauses of all slow faults of a round together.
SLOW_SECONDS = 2.0
#: Three steps of the handshake wait 10 s each beyond the limit, and then the ranks are told.
JOIN_SECONDS = 40.0
#: The default, and two in which most operations don't fit.
ARENAS = [{}, {"slots": 2, "slot_bytes": 16 << 10}, {"slots": 4, "slot_bytes": 128 << 10}]
#: An operation on a group that has raised on this rank waits for nobody.
AT_ONCE_SECONDS = 5.0
#: The ranks' calls are right and the same, so no error may blame them.
WRONG_ERRORS = {"CollectiveMismatch", "InvalidCollective"}
OWN_FILES = {"secret", *(f"server-{i}.log" for i in range(8))}


@dataclass
class Round:
    """What happened in a round."""

    seed: int
    sizes: tuple[int, ...]
    drawn: list = field(default_factory=list)  # faults
    fired: list = field(default_factory=list)  # those that happened: (fault, position, time)
    records: dict[int, list[programs.Record]] = field(default_factory=dict)  # by rank
    unjoined: dict[int, str] = field(default_factory=dict)  # rank -> error's class
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def hard(self):
        """Whether it has a fault that operations may fail of."""
        return any(not fault.kind.harmless for fault in self.drawn)

    @property
    def reaction(self):
        """Seconds from the first hard fault to the last error."""
        ends = [r.ended for records in self.records.values() for r in records if r.raised]
        starts = [when for fault, _, when in self.fired if not fault.kind.harmless]
        return max(ends) - min(starts) if ends and starts else 0.0


def play(seed, kinds=frozenset(Kind)):
    """One round; returns its Round. What is wrong is in `violations`."""
    rng, start = random.Random(seed), time.monotonic()
    sizes = tuple(rng.randint(1, 3) for _ in range(rng.randint(2, 4)))
    result = Round(seed, sizes, faults.draw(rng, len(sizes), kinds, SLOW_SECONDS))
    timeout = TIMEOUT if result.hard else PATIENT_TIMEOUT
    program = programs.draw(seed, sizes, timeout)
    with FaultProxy(result.drawn) as proxy:
        config = {**rng.choice(ARENAS), "encrypt": rng.random() < 0.25, "start_timeout_seconds": timeout}
        cluster = Cluster(list(sizes), None, proxy.route, **config)
        try:
            _play(cluster, proxy, program, result)
        except TimeoutError as exc:
            result.violations.append(f"hang: {exc}")
        finally:
            cluster.stop()
            result.violations += _remains(cluster)
            cluster.close()
    result.fired = proxy.fired
    result.violations += judge(program, result)
    result.seconds = time.monotonic() - start
    return result


def _play(cluster, proxy, program, result):
    joined = cluster.collect(program.timeout + JOIN_SECONDS)
    for rank, answer in joined.items():
        if isinstance(answer, CollectiveError):
            result.unjoined[rank] = type(answer).__name__
        elif answer != "joined":
            result.violations.append(f"rank {rank} did not join: {answer!r}")
    ranks = [rank for rank in joined if rank not in result.unjoined]
    proxy.start_clock()
    for rank in ranks:
        cluster.call(rank, programs.run, program)
    # At worst every group waits until its operations give up, one after the other.
    limit = len(program.groups) * (program.timeout + programs.MARGIN) + 30
    for rank, answer in cluster.collect(limit, ranks).items():
        if isinstance(answer, Exception):
            result.violations.append(f"rank {rank}: {answer!r}")
        else:
            result.records[rank] = answer


def _remains(cluster):
    """What a cluster that was stopped shows of crashes, and left behind."""
    for rank, process in enumerate(cluster.ranks):
        if process.exitcode != 0:
            yield f"rank {rank} ended with {process.exitcode}"
    for index, server in enumerate(cluster.servers):
        if server.returncode != 0:
            yield f"server {index} ended with {server.returncode}: {cluster.log(index)[-2000:]}"
        if "Traceback" in cluster.log(index):
            yield f"server {index}: {cluster.log(index)[-2000:]}"
    for name in sorted(cluster.files - OWN_FILES):
        yield f"{name} was left behind"


# ---- the rule --------------------------------------------------------------------------------------------------------


def judge(program, result):
    """Violations of the rule by the records of a round, as lines of text."""
    found = []
    for rank, error in result.unjoined.items():
        if error in WRONG_ERRORS or not result.hard:
            found.append(f"rank {rank} did not join: {error}")
    for rank, records in result.records.items():
        for record in records:
            found += [f"rank {rank}, {_text(record)}: {fault}" for fault in _faults_of(record, result.hard)]
    for group in program.groups:
        found += _judge_group(program, group, result)
    return found


def _faults_of(record, hard):
    if record.outcome in ("wrong", "hang"):
        yield record.outcome
    if record.raised and not hard:
        yield "raised without a fault"
    if record.outcome in WRONG_ERRORS:
        yield "raised an error of the wrong kind"


def _judge_group(program, group, result):
    """What a member starts after its first error raises at once, and is exact on no other rank either."""
    by_rank = {rank: [r for r in result.records.get(rank, []) if r.op.group == group] for rank in program.groups[group]}
    failed = {rank: min((r.ended for r in records if r.raised), default=math.inf) for rank, records in by_rank.items()}
    late = [(rank, r) for rank, records in by_rank.items() for r in records if r.started > failed[rank]]
    too_late = {record.op.index for _, record in late}
    for rank, record in late:
        if record.ended - record.started > AT_ONCE_SECONDS:
            yield f"rank {rank}, {_text(record)}: took {record.ended - record.started:.1f} s on a failed group"
    for rank, records in by_rank.items():
        for record in records:
            doomed = record.op.index in too_late or set(record.op.callers) & set(result.unjoined)
            if doomed and record.outcome == "exact":
                yield f"rank {rank}, {_text(record)}: exact, though the group had failed on another rank before"


def _text(record):
    return f"{record.op}: {record.outcome} {record.text} after {record.ended - record.started:.2f} s"


# ---- many rounds -----------------------------------------------------------------------------------------------------


def soak(seconds, seed, kinds, workers=3):
    """Rounds with seeds `seed`, `seed` + 1, ... for `seconds` (0: one round). Returns their Summary.

    Some rounds mostly wait for time limits, so a few are played at once.
    """
    summary, seeds, deadline = Summary(), itertools.count(seed), time.monotonic() + seconds
    # Processes and not threads: two threads that poll the children of one process take each other's exit codes.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(play, next(seeds), kinds) for _ in range(workers if seconds else 1)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                summary.add(future.result())
                if time.monotonic() < deadline:
                    running.add(pool.submit(play, next(seeds), kinds))
    return summary


@dataclass
class Summary:
    """Totals over rounds."""

    rounds: int = 0
    exact: int = 0
    faults: Counter = field(default_factory=Counter)
    errors: Counter = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, 0)  # reaction, seed
    bad: list[Round] = field(default_factory=list)

    def add(self, result):
        self.rounds += 1
        records = [r for rs in result.records.values() for r in rs]
        self.exact += sum(r.outcome == "exact" for r in records)
        self.faults.update(f.kind.value for f, _, _ in result.fired)
        self.errors.update(r.outcome for r in records if r.outcome != "exact")
        self.errors.update(f"{error} in joining" for error in result.unjoined.values())
        self.slowest = max(self.slowest, (result.reaction, result.seed))
        if result.violations:
            self.bad.append(result)

    def __str__(self):
        lines = [
            f"{self.rounds} rounds, {self.exact + sum(self.errors.values())} operations, {self.exact} of them exact",
            "faults: " + ", ".join(f"{n} {kind}" for kind, n in self.faults.most_common()),
            "errors: " + ", ".join(f"{n} {kind}" for kind, n in self.errors.most_common()),
            f"slowest reaction: {self.slowest[0]:.1f} s (seed {self.slowest[1]})",
        ]
        for result in self.bad:
            lines.append(f"VIOLATIONS with seed {result.seed}, hosts {list(result.sizes)}, {result.fired}:")
            lines += [f"    {violation[:500]}" for violation in result.violations[:10]]
        return "\n".join(lines)
