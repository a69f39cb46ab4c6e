"""A `steps.Step` on device memory: the same calls with `Group.start`, whose buffers the host can't touch."""

import numpy as np
import reference
from fake_device import load
from steps import inputs

import hdp.collectives as hc
from hdp.collectives import arrays

KINDS = {"message": None, **{kind.name.lower(): kind for kind in hc.Kind}}


def arguments(step, me, array):
    """(kind, count, lists of counts, elements of the result) of rank `me`; elements None: it gets none."""
    size, elements = len(step.members), int(array.size)
    row = int(np.prod(step.shape)) if step.counts else 1
    times = lambda rows: None if rows is None else [n * row for n in rows]  # noqa: E731
    kind = KINDS[step.kind]
    if step.kind in ("allreduce", "reduce", "broadcast"):
        return kind, elements, {}, None if step.kind == "reduce" and me != step.root else elements
    if step.kind in ("allgather", "gather"):
        whole = sum(times(step.for_rank(0))) if step.counts else elements * size
        wants = step.kind == "allgather" or me == step.root
        return kind, elements, {"recv_counts": times(step.for_rank(0)) if wants else None}, whole if wants else None
    if step.kind == "scatter":
        own = times(step.from_rank(step.root))[me] if step.counts else int(np.prod(step.shape))
        return kind, own, {"send_counts": times(step.from_rank(me)) if me == step.root else None}, own
    if step.kind == "reduce_scatter":
        own = times(step.from_rank(0))[me] if step.counts else elements // size
        return kind, own, {"recv_counts": times(step.from_rank(0))}, own
    if step.kind == "alltoall":
        lists = {"send_counts": times(step.from_rank(me)), "recv_counts": times(step.for_rank(me))}
        return kind, elements // size, lists, sum(lists["recv_counts"]) if step.counts else elements
    if me == step.root:
        return hc.Kind.SEND, elements, {}, None
    return hc.Kind.RECV, elements, {}, elements


class Flight:
    """A step that was started on this rank."""

    def __init__(self, comm, driver, stream, step, number, delay_us):
        group = comm.group(step.members, "of a step")
        me, dtype = group.rank, reference.dtype_of(step.dtype)
        array = inputs(step, me, number)
        kind, count, lists, elements = arguments(step, me, array)
        reads = not (step.kind in ("broadcast", "scatter") and me != step.root) and kind != hc.Kind.RECV
        self.comm, self.driver, self.stream = comm, driver, stream
        self.source = driver.empty(array.shape, dtype) if reads else None
        if self.source:
            driver.write(stream, self.source, array, delay_us)
        in_place = step.in_place and step.kind in ("allreduce", "reduce", "broadcast", "alltoall") and not step.counts
        self.target = None
        if elements is not None:
            self.target = self.source if in_place and self.source else driver.empty((elements,), dtype)
        address = self.target.address if self.target else 0
        if step.in_place and step.kind == "reduce_scatter":  # its own place in the source
            before = lists["recv_counts"][:me] if step.counts else [count] * me
            address = self.source.address + sum(before) * dtype.itemsize
            self.target = self.source
        self.offset = (address - self.target.address) // dtype.itemsize if self.target else 0
        self.elements = elements
        op = hc.ReduceOp[step.op]
        more = {"op": op, "wire": step.wire} if step.kind in ("allreduce", "reduce", "reduce_scatter") else {}
        root = step.root if kind != hc.Kind.SEND else step.peer
        self.ticket = group.start(
            kind,
            arrays.dtype_of(array),
            self.source.address if self.source else 0,
            address,
            count,
            root=root,
            tag=str(number) if step.kind == "message" else f"step {number}",
            timeout=60,
            device=0,
            stream=stream,
            **lists,
            **more,
        )

    def result(self):
        """Bytes of the result once the host has waited for it; None: this rank gets none."""
        self.comm.wait(self.ticket, 60)
        self.comm.release(self.ticket)
        if self.elements is None:
            return None
        flat = self.target.view.reshape(-1)[self.offset : self.offset + self.elements]
        return flat.tobytes()

    def free(self):
        """Give the memory back."""
        self.driver.synchronize(self.stream)
        for buffer in {b.address: b for b in (self.source, self.target) if b}.values():
            for origin in buffer.keep:
                origin.free()
            buffer.free()


def takes_part(step, rank):
    """Whether the global rank calls it."""
    if step.kind == "message":
        return rank in (step.members[step.root], step.members[step.peer])
    return rank in step.members


def run(comm, program, seed, settings, host_ranks=()):
    """Like `steps.run`, on a device, with inputs that are written late; bytes of each result by step."""
    if comm.rank in host_ranks:
        import steps

        return {n: r and r[1] for n, r in steps.run(comm, program, seed).items()}
    driver = load(**settings)
    rng = np.random.default_rng([seed, comm.rank])
    streams = [driver.stream() for _ in range(2)]
    flights = {}
    for number in map(int, rng.permutation(len(program))):
        if takes_part(program[number], comm.rank):
            stream, delay = streams[int(rng.integers(2))], int(rng.integers(3000))
            flights[number] = Flight(comm, driver, stream, program[number], number, delay)
    results = {number: flight.result() for number, flight in flights.items()}
    for flight in flights.values():
        flight.free()
    return results


def check(sizes, program, results):
    """Assert that `results`, of `run` by rank, have the bits of the reference."""
    from steps import expected

    for number, step in enumerate(program):
        for place, value in enumerate(expected(sizes, step, number)):
            got = results[step.members[place]].get(number)
            want = None if value is None else value.tobytes()
            assert got == want, (number, step, place)
