"""CUDA tensors: which device, which stream.

The library copies between a device and the host itself, on streams of its own: a call hands it addresses, the device
and the stream that was current in the caller's thread. What was in that stream before the call is done before the
operation begins, so a tensor may still be in the making, as with every operation of torch's. ``Work.wait()`` makes the
*waiter's* current stream wait, and no thread (`hdp.torch.work`); where the driver can't do that, it blocks the thread.

How torch uses that, and what it asks of us:

- `torch.distributed` calls wait on whatever stream is current: FSDP2 has streams of its own for gathering and for
  reducing, records an event after the wait and orders the rest by it.
- Functional collectives call ``work.wait()`` where the result is first used, maybe in another stream or thread.
- DDP waits for futures at the end of a backward. A future with devices makes the streams that are current where it is
  waited for wait for events; its callbacks (the compression hooks are such) run with a stream of torch's pool as the
  current one, and what they return is ordered by events that torch records after them. Our futures complete when the
  operation has: its error must come out of the backward that it belongs to, and torch has no way to tell one later.
- The caching allocator hands out freed memory at once to whoever allocates in the same stream. The library's copies
  are in no stream that it knows, so each work keeps its tensors until it is complete. Temporaries are made in the
  caller's stream; work in another one is told to the allocator (``record_stream``).
- A CUDA graph can't hold an operation: the host takes part in each. A call while a stream is captured is refused.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch

from hdp.collectives import library
from hdp.contract.errors import CollectiveError, InvalidCollective

logger = logging.getLogger(__name__)


class Cuda:
    """What this package asks of `torch.cuda`; a test has another one. Devices are ordinals in this process."""

    def __init__(self) -> None:
        self._sides: dict[int, Any] = {}

    def ordinal(self, tensor: torch.Tensor) -> int | None:
        """The CUDA device that `tensor` is on."""
        return tensor.get_device() if tensor.is_cuda else None

    def count(self) -> int:
        """Devices that this process sees."""
        return torch.cuda.device_count()

    def identity(self, device: int) -> str:
        """Names a device among all of its host, whatever CUDA_VISIBLE_DEVICES lets a process see."""
        properties: Any = torch.cuda.get_device_properties(device)
        return str(properties.uuid)

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""
        return torch.cuda.is_current_stream_capturing()

    def current(self, device: int) -> Any:
        """The current stream of this thread."""
        return torch.cuda.current_stream(device)

    def side(self, device: int) -> Any:
        """A stream for what is left to do where nobody waits."""
        if device not in self._sides:
            self._sides[device] = self.stream(device)
        return self._sides[device]

    def stream(self, device: int) -> Any:
        """A new stream."""
        made: Any = torch.cuda.Stream  # its constructor has no types
        return made(device)

    def finish(self, stream: Any) -> None:
        """Block until `stream` is empty."""
        stream.synchronize()

    def handle(self, stream: Any) -> int:
        """The ``CUstream``; 0 is the legacy default stream."""
        return int(stream.cuda_stream)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Inside, `stream` is the current one."""
        return torch.cuda.stream(stream)

    def record(self, stream: Any) -> Any:
        """An event after all that is in `stream` now."""
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        """What comes in `stream` waits for `event`."""
        stream.wait_event(event)

    def used(self, tensors: Sequence[torch.Tensor], stream: Any) -> None:
        """`stream` uses these tensors: their memory isn't anybody else's before it is through with them."""
        for t in tensors:
            t.record_stream(stream)

    def future(self, device: int) -> torch.futures.Future[Any]:
        """A future whose value may hold tensors of `device`."""
        return torch.futures.Future(devices=[torch.device("cuda", device)])


class Origin(NamedTuple):
    """Where a call's tensors are: a device, and the stream that was the caller's current one."""

    cuda: Cuda
    device: int
    stream: Any

    @property
    def handle(self) -> int:
        """The stream's ``CUstream``."""
        return self.cuda.handle(self.stream)

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Work inside goes on in the caller's stream; what then comes in the current one is ordered after it."""
        outside = self.cuda.current(self.device)
        try:
            with self.cuda.on(self.stream):
                yield
        finally:
            self.cuda.wait(outside, self.cuda.record(self.stream))


def origin(cuda: Cuda, name: str, tensors: Sequence[torch.Tensor]) -> Origin | None:
    """Where all tensors of the call `name` are; None: in host memory.

    Raises InvalidCollective: they are in several places, have no memory, or a graph is being captured;
    CollectiveError: there is no driver for them.
    """
    places = {cuda.ordinal(t) if t.is_cpu or t.is_cuda else _refuse(name, t) for t in tensors}
    if len(places) > 1:
        told = " and ".join(dict.fromkeys(str(t.device) for t in tensors))
        raise InvalidCollective(f"{name} of tensors on {told}: expected one device; move them (Tensor.to) before")
    for t in tensors:
        if t.layout == torch.strided and t.numel() and not t.untyped_storage().nbytes():
            raise InvalidCollective(
                f"{name} of a tensor of {t.numel()} elements whose memory was freed (storage resized to 0)"
            )
    device = places.pop() if places else None
    return None if device is None else _on(cuda, name, device)


def _refuse(name: str, tensor: torch.Tensor) -> int:
    raise InvalidCollective(f"{name} of a tensor on {tensor.device}: backend hdp takes tensors on cpu and cuda")


def _on(cuda: Cuda, name: str, device: int) -> Origin:
    if cuda.capturing():
        raise InvalidCollective(
            f"{name} while the current stream is captured into a CUDA graph, which can't hold what the host does: "
            "leave backend hdp's operations out of the graph, or use backend nccl in it"
        )
    known = _devices()
    if device >= known:
        raise CollectiveError(f"{name} of a tensor on cuda:{device}, but the CUDA driver has {known} devices")
    return Origin(cuda, device, cuda.current(device))


@functools.cache
def _devices() -> int:
    """How many devices the library's driver has."""
    try:
        return library.device_count()
    except CollectiveError as exc:
        raise CollectiveError(
            f"backend hdp can't serve CUDA tensors: {exc}. It needs NVIDIA's driver, which $HDP_CUDA_DRIVER may name; "
            "CPU tensors, and backend nccl or gloo, don't"
        ) from exc


@functools.cache
def advise(cuda: Cuda, device: int, local_rank: int) -> None:
    """Warn, once in a process, where a rank seems to have forgotten to choose its device."""
    count = cuda.count()
    if device == 0 and 0 < local_rank < count:
        logger.warning(
            "backend hdp: local rank %d of this host uses cuda:0, as local rank 0 does, though there are %d devices; "
            "call torch.cuda.set_device(%d) before the model is made",
            local_rank,
            count,
            local_rank,
        )


@functools.cache
def tell_of_others(config: str) -> None:
    """Warn, once in a process, of other backends that were asked for: ``"cpu:gloo,cuda:hdp"``.

    torch leaves a process group that is written in Python alone with all devices.
    """
    others = [pair for pair in config.split(",") if pair.partition(":")[0] in ("cpu", "cuda") and "hdp" not in pair]
    if others and "hdp" in config:
        logger.warning("backend hdp: torch drops %s beside it, so hdp serves CPU and CUDA tensors", ",".join(others))
