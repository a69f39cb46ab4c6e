"""The local tier: where every rank of a host has a GPU of its own, NCCL sums inside the host before anything leaves it.

An allreduce is then a reduce-scatter of the host's ranks by NCCL, an exchange of each rank's part with the ranks of
the same place on the other hosts by the library, and an all-gather by NCCL. Of S bytes, S / L go through a rank's host
memory instead of S, and no processor adds what GPUs can. A large tensor goes in pieces, so that one piece is summed
while another travels. On one host NCCL does it all. `reduce_scatter_single` and `all_gather_single` go the same way,
backwards and forwards; every other call, small tensors and groups of some of the ranks stay the library's.

What all ranks say decides (`hdp.torch.tier_choice`), once, with the first such call on a device. From then on:

- A thread issues the calls, in their order. First it waits until every rank has made the same call (an operation
  without data, whose shapes the library compares): a rank that is missing, or calls something else, is an exception
  before NCCL, which can only hang, has begun.
- An exchange is submitted while its data is still in the making; the library announces it, and grants it memory, when
  the data is there. So no exchange holds memory that another one needs whose result NCCL waits for.
- Two streams, and two communicators of NCCL's, so that the next call's reduce-scatter doesn't wait for this call's
  exchange; see `hdp.torch.tier_pieces`.
- A rank that dies between the two leaves NCCL's kernels of its host hanging until NCCL's own timeout, the group's,
  ends the process. Ranks of other hosts are told by the library at once.

NCCL has its own order of sums: results are the same on all ranks, but not the same bits as without it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from hdp.collectives import Kind, operations
from hdp.contract.errors import CollectiveError
from hdp.torch import callbacks, tier_choice
from hdp.torch.devices import Origin
from hdp.torch.dtypes import DTYPES
from hdp.torch.host_group import MakeGroup, by_nccl
from hdp.torch.runner import Runner
from hdp.torch.tensors import tensors_in
from hdp.torch.tier_choice import Choice, Facts
from hdp.torch.tier_pieces import CALLS, LEAST_BYTES, Hosts, Tiered, compared_shape
from hdp.torch.tier_work import TierWork
from hdp.torch.work import HdpWork

logger = logging.getLogger(__name__)

_FACTS_BYTES = 1024
_END_SECONDS = 2.0
_SHM = "backend hdp: a host's ranks are summed in shared memory (%s)"


class LocalTier:
    """Serves what it can of a process group over all ranks of the job. `hdp.torch.process_group.Tier`."""

    def __init__(
        self,
        runner: Runner,
        store: Any,
        seconds: Any,
        make: MakeGroup = by_nccl,
        facts: Any = tier_choice.facts,
    ) -> None:
        """runner, store: the process group's. seconds: how long a call with given options of torch's may take.

        make, facts: what is different in tests. Raises InvalidCollective for a wrong $HDP_LOCAL_TIER.
        """
        tier_choice.setting()
        self._runner, self._store, self._seconds = runner, store, seconds
        self._make, self._facts = make, facts
        self.choice: Choice | None = None
        """What was chosen; None: nobody has used a device yet."""
        self._line: _Line | None = None

    def serve(self, name: str, opts: Any, arguments: Sequence[Any], origin: Origin) -> dist.Work | None:
        """The work of a call; None: the library is to serve it. Raises what `tier_choice.choose` raises."""
        build = CALLS.get(name)
        if build is None or callbacks.running():  # callbacks run in another order on each rank
            return None
        if sum(t.nbytes for t in tensors_in(arguments) if t.layout == torch.strided) < LEAST_BYTES:
            return None  # and before a choice: other ranks' small tensors may be in host memory
        if self.choice is None:
            self._choose(opts, origin)
        if self._line is None or origin.device != self._line.device:
            return None
        call = build(self._line.hosts, opts, *arguments)
        return None if call is None else self._line.add(call, origin, self._seconds(opts))

    def close(self) -> None:
        """Before the group is destroyed. What isn't issued yet fails; what is comes to its end."""
        if self._line is not None:
            self._line.close()

    def _choose(self, opts: Any, origin: Origin) -> None:
        group, seconds = self._runner.group, self._seconds(opts)
        layout = group.comm.layout
        mine = self._facts(layout.host_of(group.comm.rank), origin.cuda.identity(origin.device))
        self.choice = tier_choice.alone(mine)
        if self.choice is not None:
            logger.info(_SHM, self.choice.reason)
            return
        padded = np.frombuffer(mine.encoded().ljust(_FACTS_BYTES)[:_FACTS_BYTES], np.uint8)
        found = operations.allgather(padded, group, tag="hdp.torch local tier", timeout=seconds).wait()
        assert found is not None
        ranks = [Facts.decoded(row.tobytes()) for row in found]
        choice = tier_choice.choose(ranks)
        if choice.nccl:
            self._line = self._open(ranks, origin, seconds)
            logger.warning(
                "backend hdp: a host's ranks are summed by NCCL (%s): in its own order, so the last bits of results "
                "differ from those with $HDP_LOCAL_TIER=shm",
                choice.reason,
            )
        else:
            logger.info(_SHM, choice.reason)
        self.choice = choice

    def _open(self, ranks: Sequence[Facts], origin: Origin, seconds: float) -> _Line:
        group = self._runner.group
        host = ranks[group.rank].host
        here = [rank for rank, one in enumerate(ranks) if one.host == host]
        place, size = here.index(group.rank), len(here)
        timeout = timedelta(seconds=seconds)
        before, after = (
            self._make(PrefixStore(f"{host}/{which}", self._store), place, size, timeout) for which in (0, 1)
        )
        members = [group.ranks[rank] for rank in range(place, len(ranks), size)]
        across = group.comm.group(members, f"torch local tier {place}")
        return _Line(self._runner, Runner(across), Hosts(len(members), before, after), origin)


class _Line:
    """Calls that are issued one after the other, by a thread."""

    def __init__(self, runner: Runner, across: Runner, hosts: Hosts, origin: Origin) -> None:
        self.hosts = hosts
        self.device = origin.device
        self._runner, self._across = runner, across
        self._cuda = origin.cuda
        self._before, self._after = (origin.cuda.stream(origin.device) for _ in range(2))
        self._added = 0
        self._queue: queue.SimpleQueue[tuple[TierWork, float] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="hdp-local-tier", daemon=True)
        self._thread.start()

    def add(self, call: Tiered, origin: Origin, seconds: float) -> TierWork:
        """One more, of which the caller's stream has the data."""
        self._added += 1
        guard = self._guard(call, seconds)
        path = f"{self._runner.group.id:x}.tier{self._added}"
        work = TierWork(call, guard, origin, path, self._runner.fail)
        self._queue.put((work, seconds))
        return work

    def close(self) -> None:
        """Issue nothing more, and let the streams run dry."""
        self._closed = True
        self._queue.put(None)
        self._thread.join(_END_SECONDS)
        if not self._thread.is_alive():
            for stream in (self._before, self._after):
                self._cuda.finish(stream)

    def _guard(self, call: Tiered, seconds: float) -> HdpWork:
        """In the sequence of the group's own operations, so that ranks that call different things are told."""
        group = self._runner.group
        guard = HdpWork(group.comm, [])
        start = partial(
            self._submit_guard, DTYPES[call.outputs[0].dtype], call.op, compared_shape(call.compared), seconds
        )
        return self._runner.completions.start(guard, [start], False)

    def _submit_guard(self, dtype: Any, op: Any, shape: list[int], seconds: float, notify: bool) -> int:
        return self._runner.group.start(Kind.ALLREDUCE, dtype, op=op, shape=shape, timeout=seconds, notify=notify)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            work, seconds = job
            if self._closed:
                work.abandon(CollectiveError("the process group was destroyed before the operation was started"))
            else:
                work.issue(self._across, self._before, self._after, seconds)
