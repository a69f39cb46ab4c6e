"""The process group: torch's calls, served by the collective library.

Allreduce, broadcast, allgather and barrier on dense CPU tensors go to the library. Everything else is delegated to an
inner gloo process group, each kind logged once with its reason: nothing falls back silently.
"""

# torch's stubs describe overloads that its own callers don't use, and leave out what they do.
# mypy: disable-error-code="override, attr-defined, call-arg, method-assign, assignment"

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from hdp.collectives import DType, Group, Kind, ReduceOp
from hdp.contract.errors import CollectiveError, InvalidCollective
from hdp.torch import callbacks
from hdp.torch.bootstrap import Process
from hdp.torch.completions import Completions
from hdp.torch.work import HdpWork

logger = logging.getLogger(__name__)

_DTYPES = {
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.int8: DType.INT8,
    torch.uint8: DType.UINT8,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.bool: DType.BOOL,
}
_OPS = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.AVG: ReduceOp.AVG,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
    dist.ReduceOp.PRODUCT: ReduceOp.PRODUCT,
}
#: Methods of the inner gloo process group that serve what the library does not have yet.
DELEGATED = (
    "_reduce_scatter_base",
    "allgather_coalesced",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
)
_GLOO_SECONDS = 0.2
_process = Process()
_Start = Callable[[str | None, bool], int]  # (tag, notify) -> ticket


def create(options: Any, pg_options: Any) -> HdpProcessGroup:
    """What torch calls for ``init_process_group`` and ``new_group``. Every rank of the group must come here."""
    if pg_options is not None:
        raise InvalidCollective(f"backend hdp takes no pg_options, got {pg_options!r}")
    timeout = options.timeout
    group, owns = _process.group(
        options.store,
        options.group_rank,
        options.group_size,
        list(options.global_ranks_in_group or ()),
        timeout.total_seconds(),
    )
    store = dist.PrefixStore(f"gloo/{_process.generation}", options.store)
    return HdpProcessGroup(group, owns, store, options.group_rank, options.group_size, timeout)


class HdpProcessGroup(dist.ProcessGroup):
    """A process group over a `hdp.collectives.Group`."""

    def __init__(self, group: Group, owns: bool, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._group, self._owns, self._timeout = group, owns, timeout
        self._completions = Completions.of(group.comm)
        self._told: set[str] = set()
        self._started = 0
        self._gloo = _make_gloo(group, store, rank, size, timeout)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, self._gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        """Name of the backend."""
        return "hdp"

    # ---- served by the library

    def allreduce(self, tensors: Any, opts: Any = None, **_: Any) -> Any:
        """Combine each tensor over the group, in place."""
        tensors, opts = _as_list(tensors), opts or c10d.AllreduceOptions()
        op = _OPS.get(_op_type(opts.reduceOp))
        reason = _unserved(tensors) or (None if op is not None else f"reduction {opts.reduceOp} isn't served")
        if reason:
            return self._delegate("allreduce", reason)(tensors, opts)
        if op == ReduceOp.AVG and not all(t.is_floating_point() for t in tensors):
            raise InvalidCollective(f"AVG of {tensors[0].dtype}: sum integers and divide them yourself")
        flat, finish = _contiguous(tensors)
        starts = [self._starter(Kind.ALLREDUCE, t, t, op=op, timeout=opts.timeout) for t in flat]
        return self._start(list(tensors), flat, finish, starts, opts)

    def broadcast(self, tensors: Any, opts: Any = None, **_: Any) -> Any:
        """Overwrite each tensor with that of the root."""
        tensors, opts = _as_list(tensors), opts or c10d.BroadcastOptions()
        if reason := _unserved(tensors):
            return self._delegate("broadcast", reason)(tensors, opts)
        flat, finish = _contiguous(tensors)
        starts = [self._starter(Kind.BROADCAST, t, t, root=opts.rootRank, timeout=opts.timeout) for t in flat]
        return self._start(list(tensors), flat, finish, starts, opts)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, **_: Any) -> Any:
        """Gather each input tensor of every rank into a list of tensors, one a rank."""
        inputs, opts = _as_list(input_tensors), opts or c10d.AllgatherOptions()
        outputs = [output_tensors] if isinstance(output_tensors[0], torch.Tensor) else list(output_tensors)
        reason = _unserved(inputs) or _uneven(outputs, inputs)
        if reason:
            return self._delegate("allgather", reason)(outputs, inputs, opts)
        sources = [t.contiguous() for t in inputs]
        stacked = [t.new_empty((self.size(), *t.shape)) for t in sources]

        def unstack() -> None:
            for places, whole in zip(outputs, stacked, strict=True):
                for place, part in zip(places, whole.unbind(0), strict=True):
                    place.detach().copy_(part.view(place.shape))

        starts = [
            self._starter(Kind.ALLGATHER, s, w, timeout=opts.timeout) for s, w in zip(sources, stacked, strict=True)
        ]
        return self._start([t for places in outputs for t in places], [*sources, *stacked], [unstack], starts, opts)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:  # noqa: A002
        """Gather `input` of every rank into `output`, one after the other."""
        opts = opts or c10d.AllgatherOptions()
        if reason := _unserved([input, output]):
            return self._delegate("_allgather_base", reason)(output, input, opts)
        if output.numel() != input.numel() * self.size() or output.dtype != input.dtype:
            raise InvalidCollective(
                f"the output has {output.numel()} elements of {output.dtype}; "
                f"expected {self.size()} x {input.numel()} of {input.dtype}"
            )
        source = input.contiguous()
        flat, finish = _contiguous([output])
        starts = [self._starter(Kind.ALLGATHER, source, flat[0], timeout=opts.timeout)]
        return self._start([output], [source, *flat], finish, starts, opts)

    all_gather_single = _allgather_base  # its name from torch 2.13 on

    def barrier(self, opts: Any = None, **_: Any) -> Any:
        """Complete once every rank has called it."""
        opts = opts or c10d.BarrierOptions()
        start = self._starter(Kind.BARRIER, None, None, timeout=opts.timeout)
        return self._start([], [], [], [start], opts)

    # ---- everything else

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Several `all_gather_single`, complete together."""
        works = [self._allgather_base(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return _Joined(works)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:  # noqa: A002
        """Reduce, then each rank keeps its part; by gloo."""
        method = self._delegate("_reduce_scatter_base", "reduce_scatter isn't in this version")
        return method(output, input, opts or c10d.ReduceScatterOptions())

    def all_to_all_single(self, output: Any, input: Any, *args: Any) -> Any:  # noqa: A002
        """Exchange parts with every rank; by gloo."""
        return self._delegate("alltoall_base", "alltoall isn't in this version")(output, input, *args)

    def _delegate(self, method: str, reason: str) -> Callable[..., Any]:
        if method not in self._told:
            self._told.add(method)
            logger.warning("backend hdp: %s goes through gloo: %s", method, reason)
        return getattr(self._gloo, method)  # type: ignore[no-any-return]

    # ---- life cycle

    def shutdown(self) -> None:
        """Leave; ``destroy_process_group`` calls it. What is in flight fails."""
        if self._told:
            # gloo's threads need the GIL to let go of the last operation's tensors, and torch holds it while it
            # waits for them to end: they get a moment before that.
            time.sleep(_GLOO_SECONDS)
        if self._owns:
            self._completions.close()

    def abort(self) -> None:
        """Leave at once."""
        self.shutdown()

    # ---- helpers

    def _starter(
        self,
        kind: Kind,
        source: torch.Tensor | None,
        target: torch.Tensor | None,
        *,
        op: ReduceOp | None = None,
        root: int = 0,
        timeout: timedelta | None = None,
    ) -> _Start:
        seconds = (timeout if timeout is not None and timeout.total_seconds() > 0 else self._timeout).total_seconds()

        def start(tag: str | None, notify: bool) -> int:
            return self._group.start(
                kind,
                _DTYPES[source.dtype] if source is not None else DType.UINT8,
                source.data_ptr() if source is not None else 0,
                target.data_ptr() if target is not None else 0,
                source.numel() if source is not None else 0,
                op=op or ReduceOp.SUM,
                root=root,
                tag=tag,
                timeout=seconds,
                notify=notify,
                once=tag is not None,
            )

        return start

    def _start(
        self,
        outputs: list[torch.Tensor],
        keep: Sequence[torch.Tensor],
        finish: Sequence[Callable[[], None]],
        starts: Sequence[_Start],
        opts: Any,
    ) -> HdpWork:
        work = HdpWork(self._group.comm, outputs, [*outputs, *keep], finish)
        tags = [callbacks.tag() for _ in starts]
        nested = next((t for t in tags if t), None)
        if nested is None:
            self._started += 1  # counts the same on every rank, as the callbacks' operations don't
        work.path = nested or f"{self._group.id:x}.{self._started}"
        tagged = [partial(start, tag) for start, tag in zip(starts, tags, strict=True)]
        return self._completions.start(work, tagged, getattr(opts, "asyncOp", True))


class _Joined(dist.Work):
    """Several works as one."""

    def __init__(self, works: Sequence[HdpWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all are complete."""
        return all(w.is_completed() for w in self._works)

    def get_future(self) -> Any:
        """A future of all output tensors."""
        joined = torch.futures.collect_all([w.get_future() for w in self._works])
        return joined.then(lambda all_: [t for f in all_.value() for t in f.value()])


def _add_delegates() -> None:
    def make(name: str) -> Callable[..., Any]:
        def method(self: HdpProcessGroup, *args: Any, **kwargs: Any) -> Any:
            return self._delegate(name, f"{name} isn't in this version")(*args, **kwargs)

        method.__name__ = name
        method.__doc__ = f"{name}, by gloo."
        return method

    for name in DELEGATED:
        if hasattr(dist.ProcessGroupGloo, name):
            setattr(HdpProcessGroup, name, make(name))
    # torch 2.12 and older use the old names for what 2.13 renamed.
    HdpProcessGroup.reduce_scatter_tensor_coalesced = make("reduce_scatter_tensor_coalesced")


_add_delegates()


def _make_gloo(group: Group, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    layout = group.comm.layout
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    # The address that the servers use; a host's own name may not resolve.
    address = layout.hosts[layout.host_of(group.comm.rank)].address
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    try:
        return dist.ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as exc:
        raise CollectiveError(f"the inner gloo process group could not connect over {address}: {exc}") from exc


def _as_list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _op_type(op: Any) -> Any:
    """The enum value of a ReduceOp; None for those with a factor (PREMUL_SUM)."""
    return next((known for known in _OPS if op == known), None)


def _unserved(tensors: Sequence[torch.Tensor]) -> str | None:
    """Why the library can't take these tensors; None: it can."""
    for t in tensors:
        if t.layout != torch.strided:
            return f"a {t.layout} tensor"
        if t.device.type != "cpu":
            return f"a tensor on {t.device.type}"
        if t.dtype not in _DTYPES:
            return f"dtype {t.dtype}"
    return None


def _uneven(outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]) -> str | None:
    for places, source in zip(outputs, inputs, strict=True):
        if any(p.numel() != source.numel() or p.dtype != source.dtype for p in places):
            return "tensors of different sizes"
    return None


def _contiguous(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[Callable[[], None]]]:
    """Contiguous tensors with the same data, and what copies them back afterwards."""
    flat = [t.detach().contiguous() for t in tensors]
    moved = [(t, f) for t, f in zip(tensors, flat, strict=True) if f.data_ptr() != t.data_ptr()]
    finish: list[Callable[[], None]] = [partial(_copy_back, t, f) for t, f in moved]
    return flat, finish


def _copy_back(target: torch.Tensor, source: torch.Tensor) -> None:
    target.detach().copy_(source)
