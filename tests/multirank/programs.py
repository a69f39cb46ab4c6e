"""Random programs of collective operations: drawn from a seed, run on a rank, results checked bit for bit.

A program is a list of bursts. A rank starts all its operations of a burst, in an order of its own, and then waits for
them. It goes on after errors, so that every operation leaves a `Record`. What NumPy gives is computed once, and ranks
get a digest of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
import time
from dataclasses import dataclass

import reference
from steps import DTYPES, PIECES, WHOLE, Step, expected, submit

from hdp.contract.errors import HdpError

#: Seconds beyond its timeout after which an operation hangs: a rank asks its server four times in 12 s, and then
#: gives up by itself. The rest is for a busy machine.
MARGIN = 30.0


@dataclass(frozen=True)
class Op:
    """One operation, as all its members see it."""

    index: int
    group: str
    step: Step
    tagged: bool

    @property
    def callers(self):
        """Ranks that call it."""
        step = self.step
        return step.members if step.kind != "message" else [step.members[step.root], step.members[step.peer]]

    def __str__(self):
        step = self.step
        what = f"op {self.index} {step.kind}({step.dtype}{list(step.shape)}, {step.op}, root {step.root})"
        return f"{what} of {self.group} {step.members}"


@dataclass(frozen=True)
class Program:
    """What all ranks of a cluster of `sizes` do."""

    seed: int
    sizes: tuple[int, ...]
    groups: dict[str, tuple[int, ...]]
    bursts: tuple[tuple[Op, ...], ...]
    timeout: float
    digests: dict[int, list[bytes | None]]  # of the results, by operation and place in its group


@dataclass(frozen=True)
class Record:
    """What became of an operation on one rank. Times are of the machine's monotonic clock."""

    op: Op
    started: float
    ended: float
    outcome: str  # "exact", "wrong", "hang", or the exception's class
    text: str = ""

    @property
    def raised(self):
        return self.outcome not in ("exact", "wrong", "hang")


# ---- drawing ---------------------------------------------------------------------------------------------------------


def draw(seed, sizes, timeout):
    """A program of 2 to 15 bursts on the world and up to three random groups."""
    rng = random.Random(seed)
    world = list(range(sum(sizes)))
    groups = {"world": tuple(world)}
    for number in range(rng.randrange(4)):
        groups[f"group {number}"] = tuple(rng.sample(world, rng.randint(1, len(world))))
    indices = iter(range(1000))
    bursts = tuple(
        tuple(_draw_op(rng, next(indices), groups) for _ in range(rng.choice([1, 1, 2, 4, 12])))
        for _ in range(rng.randint(2, 15))
    )
    digests = {op.index: _digests(expected(sizes, op.step, op.index)) for burst in bursts for op in burst}
    return Program(seed, tuple(sizes), groups, bursts, timeout, digests)


def _digests(arrays):
    known = {id(array): _digest(array) for array in arrays}  # often all are the same one
    return [known[id(array)] for array in arrays]


def _digest(array):
    if array is None:
        return None
    return hashlib.blake2b(array.tobytes(), digest_size=16, key=f"{array.shape} {array.dtype}".encode()).digest()


def _draw_op(rng, index, groups):
    group = rng.choice(["world", *groups])
    return Op(index, group, _draw_step(rng, groups[group]), rng.random() < 0.5)


def _draw_step(rng, members):
    size = len(members)
    kind = rng.choice(["allreduce", *WHOLE, *PIECES, *["message"] * (size > 1)])
    dtype = rng.choice(DTYPES)
    op = rng.choice([name for name in reference.BINARY if name != "AVG" or "float" in dtype])
    count = rng.choice([0, 1, 7, rng.randrange(1000), rng.randrange(30_000), rng.randrange(300_000)])
    shape, counts = (count // size if kind in PIECES else count,), None
    if kind in PIECES and rng.random() < 0.5:
        rows = [0, 1, count // size, count // size + 3]
        shape, counts = (), tuple(tuple(rng.choice(rows) for _ in members) for _ in members)
    root = rng.randrange(size)
    peer = (root + rng.randrange(1, size)) % size if size > 1 else 0
    return Step(kind, dtype, op, members, root, peer, shape, counts, rng.random() < 0.5)


# ---- running on a rank -----------------------------------------------------------------------------------------------


def run(comm, program):
    """Do the program; returns Records. After an operation that hangs nothing more is done."""
    comm.defaults = dataclasses.replace(comm.defaults, timeout=program.timeout)
    groups = {n: comm.group(m, n) if n != "world" else comm.world for n, m in program.groups.items() if comm.rank in m}
    records = []
    for number, burst in enumerate(program.bursts):
        rng = random.Random(f"{program.seed} {comm.rank} {number}")
        mine = [op for op in burst if comm.rank in op.callers]
        flights = [_start(op, groups[op.group]) for op in _order(rng, mine)]
        records += _finish(program, comm.rank, flights)
        if any(record.outcome == "hang" for record in records):
            break
    return records


def _order(rng, ops):
    """Any order, but operations of a group without a tag stay in order."""
    untagged = {op.group: iter([o for o in ops if o.group == op.group and not o.tagged]) for op in ops}
    return [op if op.tagged else next(untagged[op.group]) for op in rng.sample(ops, len(ops))]


def _start(op, group):
    started = time.monotonic()
    try:
        return op, started, submit(op.step, op.index, group, f"op {op.index}" if op.tagged else None)
    except HdpError as exc:
        return op, started, exc


def _finish(program, rank, flights):
    """Records in the order in which the operations ended, with times that are right to a few hundredths."""
    flights, records = list(flights), []
    while flights:
        ended = [f for f in flights if isinstance(f[2], HdpError) or f[2].done()]
        now = time.monotonic()
        for op, started, work in ended or [f for f in flights if now > f[1] + program.timeout + MARGIN]:
            flights.remove((op, started, work))
            records.append(Record(op, started, now, *_outcome(program, rank, op, work)))
        if flights and not ended:
            with contextlib.suppress(HdpError, TimeoutError):
                flights[0][2].wait(0.02)
    return records


def _outcome(program, rank, op, work):
    try:
        if isinstance(work, HdpError):
            raise work
        got, place = work.wait(0), op.step.members.index(rank)
        if _digest(got) == program.digests[op.index][place]:
            return "exact", ""
        return "wrong", _difference(got, expected(program.sizes, op.step, op.index)[place])
    except HdpError as exc:
        return type(exc).__name__, str(exc)
    except TimeoutError as exc:
        return "hang", str(exc)


def _difference(got, wanted):
    """How a wrong result differs."""
    views = [array if array is None else (array.shape, array.dtype) for array in (got, wanted)]
    if views[0] != views[1] or got is None:
        return f"{views[0]} in place of {views[1]}"
    bad = [i for i, (a, b) in enumerate(zip(got.tobytes(), wanted.tobytes(), strict=True)) if a != b]
    return f"{len(bad)} of {got.nbytes} bytes, from {bad[0]} to {bad[-1]}" if bad else "it did not when it ended"
