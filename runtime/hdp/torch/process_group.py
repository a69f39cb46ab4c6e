"""The process group: torch's calls, served by the collective library.

All collectives on CPU and CUDA tensors go to it (`hdp.torch.requests` says how; `hdp.torch.bitwise` and
`hdp.torch.sparse` what it takes several steps for; `hdp.torch.devices` what is different on a device). Messages go
through an inner gloo process group, each kind logged once with its reason: nothing falls back silently. What neither
serves is refused by name.
"""

# torch's stubs describe overloads that its own callers don't use, and leave out what they do.
# mypy: disable-error-code="override, attr-defined, call-arg, assignment"

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from hdp.collectives import Group
from hdp.contract.errors import InvalidCollective
from hdp.torch import bitwise, devices, functions, requests, sparse
from hdp.torch.bootstrap import Process
from hdp.torch.call import Call
from hdp.torch.checks import Place
from hdp.torch.devices import Cuda, Origin
from hdp.torch.gloo import Gloo
from hdp.torch.local_tier import LocalTier
from hdp.torch.options import options
from hdp.torch.runner import Runner
from hdp.torch.staged import StagedWork
from hdp.torch.tensors import lists_of, tensors_in, tensors_of
from hdp.torch.work import HdpWork, JoinedWork

_process = Process()
_cuda = Cuda()


class Tier(Protocol):
    """What may take some calls on a device's tensors before they come to the library."""

    def serve(self, name: str, opts: Any, arguments: Sequence[Any], origin: Origin) -> dist.Work | None:
        """The work of the call `name` with torch's `opts` and these arguments; None: the library is to serve it.

        Every rank of the group must decide alike, from what is the same on all of them.
        """

    def close(self) -> None:
        """Before the group is destroyed: nothing is in flight after it, but what hangs."""


def create(options: Any, pg_options: Any) -> HdpProcessGroup:
    """What torch calls for ``init_process_group`` and ``new_group``. Every rank of the group must come here."""
    if pg_options is not None:
        raise InvalidCollective(f"backend hdp takes no pg_options, got {pg_options!r}")
    functions.install(HdpProcessGroup)
    timeout = options.timeout
    group, owns = _process.group(
        options.store,
        options.group_rank,
        options.group_size,
        list(options.global_ranks_in_group or ()),
        timeout.total_seconds(),
    )
    store = dist.PrefixStore(f"gloo/{_process.generation}", options.store)
    made = HdpProcessGroup(group, owns, store, options.group_rank, options.group_size, timeout, _cuda)
    if not options.global_ranks_in_group:
        store = dist.PrefixStore(f"tier/{_process.generation}", options.store)
        made.tier = LocalTier(made._runner, store, made.seconds)
    return made


class HdpProcessGroup(dist.ProcessGroup):
    """A process group over a `hdp.collectives.Group`.

    Every call takes torch's options object, or its fields one by one (`hdp.torch.options`).
    """

    def __init__(
        self, group: Group, owns: bool, store: Any, rank: int, size: int, timeout: timedelta, cuda: Cuda
    ) -> None:
        super().__init__(rank, size)
        self._owns, self._cuda = owns, cuda
        self._place = Place(rank, size)
        self._runner = Runner(group)
        self._together: list[Any] | None = None
        self._told = False  # of what `init_process_group` asked for beside this backend
        self.tier: Tier | None = None
        """Asked first about calls on a device's tensors."""
        self._gloo = Gloo(group, store, rank, size, timeout, cuda)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, self._gloo.backend)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        """Name of the backend."""
        return "hdp"

    # ---- collectives

    def allreduce(self, tensors: Any, *how: Any, **named: Any) -> Any:
        """Combine each tensor over the group, in place."""
        opts = options(c10d.AllreduceOptions, how, named)
        return self._serve("allreduce", requests.allreduce, opts, tensors_of(tensors))

    def allreduce_coalesced(self, tensors: Any, *how: Any, **named: Any) -> Any:
        """Several `allreduce`, complete together."""
        opts = options(c10d.AllreduceCoalescedOptions, how, named)
        return self._serve("allreduce_coalesced", requests.allreduce, opts, tensors_of(tensors))

    def broadcast(self, tensors: Any, *how: Any, **named: Any) -> Any:
        """Overwrite each tensor with that of the root."""
        opts = options(c10d.BroadcastOptions, how, named)
        return self._serve("broadcast", requests.broadcast, opts, tensors_of(tensors))

    def reduce(self, tensors: Any, *how: Any, **named: Any) -> Any:
        """Combine each tensor over the group, in place on the root alone."""
        opts = options(c10d.ReduceOptions, how, named)
        return self._serve("reduce", requests.reduce, opts, tensors_of(tensors))

    def allgather(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Any:
        """Gather each input tensor of every rank into a list of tensors, one a rank."""
        opts = options(c10d.AllgatherOptions, how, named)
        return self._serve("allgather", requests.allgather, opts, lists_of(outputs), tensors_of(inputs))

    def allgather_coalesced(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Any:
        """Gather all input tensors of every rank into lists of tensors, one list a rank."""
        opts = options(c10d.AllgatherOptions, how, named)
        places, own = [tensors_of(row) for row in outputs], tensors_of(inputs)
        return self._serve("allgather_coalesced", requests.allgather_coalesced, opts, places, own)

    def all_gather_single(self, output: Any, input: Any, *how: Any, **named: Any) -> Any:  # noqa: A002
        """Gather `input` of every rank into `output`, one rank's after the other's."""
        opts = options(c10d.AllgatherOptions, how, named)
        return self._serve("all_gather_single", requests.allgather_single, opts, output, input)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Any:
        """Several `all_gather_single`, complete together."""
        opts = options(c10d.AllgatherOptions, how, named)
        name = "all_gather_single_coalesced"
        return self._serve(name, requests.allgather_single, opts, tensors_of(outputs), tensors_of(inputs))

    def gather(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Any:
        """Gather the input tensor of every rank into a list of tensors on the root."""
        opts = options(c10d.GatherOptions, how, named)
        return self._serve("gather", requests.gather, opts, lists_of(outputs), tensors_of(inputs))

    def scatter(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Any:
        """Give each rank its tensor of the root's list."""
        opts = options(c10d.ScatterOptions, how, named)
        return self._serve("scatter", requests.scatter, opts, tensors_of(outputs), lists_of(inputs))

    def reduce_scatter(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Any:
        """Combine lists of tensors, one a rank, over the group; each rank keeps its own."""
        opts = options(c10d.ReduceScatterOptions, how, named)
        return self._serve("reduce_scatter", requests.reduce_scatter, opts, tensors_of(outputs), lists_of(inputs))

    def reduce_scatter_single(self, output: Any, input: Any, *how: Any, **named: Any) -> Any:  # noqa: A002
        """Combine `input` over the group; each rank keeps its part, in `output`."""
        opts = options(c10d.ReduceScatterOptions, how, named)
        return self._serve("reduce_scatter_single", requests.reduce_scatter_single, opts, output, input)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Any:
        """Several `reduce_scatter_single`, complete together."""
        opts = options(c10d.ReduceScatterOptions, how, named)
        name = "reduce_scatter_single_coalesced"
        return self._serve(name, requests.reduce_scatter_single, opts, tensors_of(outputs), tensors_of(inputs))

    def alltoall(self, outputs: Any, inputs: Any, *how: Any, **named: Any) -> Any:
        """Send a tensor to each rank, and get one from each."""
        opts = options(c10d.AllToAllOptions, how, named)
        return self._serve("alltoall", requests.alltoall, opts, tensors_of(outputs), tensors_of(inputs))

    def all_to_all_single(
        self,
        output: Any,
        input: Any,  # noqa: A002
        output_split_sizes: Any = (),
        input_split_sizes: Any = (),
        *how: Any,
        **named: Any,
    ) -> Any:
        """Send rows of `input` to each rank, and get rows of `output` from each."""
        opts = options(c10d.AllToAllOptions, how, named)
        splits = [list(output_split_sizes or ()), list(input_split_sizes or ())]
        return self._serve("all_to_all_single", requests.alltoall_single, opts, output, input, *splits)

    def barrier(self, *how: Any, **named: Any) -> Any:
        """Complete once every rank has called it."""
        return self._serve("barrier", requests.barrier, options(c10d.BarrierOptions, how, named))

    # Their names before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ---- what a `_coalescing_manager` with a device calls; gloo can't, and torch would then drop what follows

    def _start_coalescing(self, _: torch.device) -> None:
        """Collect the works of what is started from now on."""
        self._together = []

    def _end_coalescing(self, _: torch.device) -> JoinedWork:
        """One work for all that were collected."""
        works, self._together = self._together or [], None
        return JoinedWork(works)

    # ---- what gloo does

    def send(self, tensors: Any, *arguments: Any) -> Any:
        """Send tensors to a rank, by gloo."""
        return self._message("send", tensors, arguments)

    def recv(self, tensors: Any, *arguments: Any) -> Any:
        """Receive tensors from a rank, by gloo."""
        return self._message("recv", tensors, arguments)

    def recv_anysource(self, tensors: Any, *arguments: Any) -> Any:
        """Receive tensors from whoever sends first, by gloo."""
        return self._message("recv_anysource", tensors, arguments)

    def monitored_barrier(self, *arguments: Any, **named: Any) -> Any:
        """Complete once every rank has called it, or say who hasn't; by gloo."""
        return self._gloo.call("monitored_barrier", "it is gloo's own", *arguments, **named)

    # ---- life cycle

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long operations may take from now on."""
        self._gloo.timeout = timeout

    def shutdown(self) -> None:
        """Leave; ``destroy_process_group`` calls it. What is in flight, and nobody has waited for, fails.

        Raises the error of an operation on a device's tensors that came after its ``wait()`` and nothing has told yet.
        """
        self._gloo.let_go()
        if self.tier is not None:
            self.tier.close()
        if self._owns:
            self._runner.completions.drain()
            self._runner.completions.close()
        self._runner.end()

    def abort(self) -> None:
        """Leave at once."""
        self._gloo.let_go()
        if self._owns:
            self._runner.completions.close()

    # ---- how they are started

    def _serve(self, name: str, build: Callable[..., Call], opts: Any, *arguments: Any) -> Any:
        """Start what `build` makes of the arguments."""
        self._runner.check()
        tensors = tensors_in(arguments)
        origin = self._origin(name, tensors)
        work = None if self.tier is None or origin is None else self.tier.serve(name, opts, arguments, origin)
        if work is None:
            is_sparse = sparse.check_layout(name, tensors)
            work = self._by_library(sparse.allreduce if is_sparse else build, opts, origin, arguments)
        if self._together is not None:
            self._together.append(work)
        return work

    def _by_library(
        self, build: Callable[..., Any], opts: Any, origin: Origin | None, arguments: Sequence[Any]
    ) -> HdpWork | StagedWork:
        def start(call: Call, asynchronous: bool) -> HdpWork:
            return self._runner.start(call, origin, self.seconds(opts), asynchronous)

        steps = build if build is sparse.allreduce else _BITWISE[build] if bitwise.is_bitwise(opts) else None
        if steps is None:
            return start(build(self._place, opts, *arguments), getattr(opts, "asyncOp", True))
        return StagedWork(start, steps(self._place, opts, *arguments), tensors_of(arguments[0]), origin)

    def _origin(self, name: str, tensors: Sequence[torch.Tensor]) -> Origin | None:
        if not self._told:
            self._told = True
            devices.tell_of_others(str(distributed_c10d._world.pg_backend_config.get(self, "")))
        origin = devices.origin(self._cuda, name, tensors)
        if origin is not None:
            devices.advise(self._cuda, origin.device, self._runner.group.comm.local_rank)
        return origin

    def _message(self, name: str, tensors: Any, arguments: Sequence[Any]) -> Any:
        self._runner.check()
        self._origin(name, tensors)
        return self._gloo.message(name, tensors, *arguments)

    def seconds(self, opts: Any) -> float:
        """How long all ranks have to come to a call with these options of torch's."""
        given = opts.timeout.total_seconds()
        return float(given if given > 0 else self._gloo.timeout.total_seconds())


#: What serves bitwise reductions instead.
_BITWISE: dict[Any, Callable[..., Iterator[Call]]] = {
    requests.allreduce: bitwise.allreduce,
    requests.reduce: bitwise.reduce,
    requests.reduce_scatter: bitwise.reduce_scatter,
    requests.reduce_scatter_single: bitwise.reduce_scatter_single,
}
