"""What averages the gradients in a rank that trains (`training_rank`): DDP over a backend, Horovod, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

_LEARNING_RATE, _MOMENTUM = 0.001, 0.9


class Library(Protocol):
    """What averages the gradients."""

    rank: int
    size: int
    versions: dict[str, str]

    def train(self, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model to call and the optimizer to step, so that gradients are averaged."""

    def buckets(self) -> list[int]:
        """Bytes of each message of a step, in the order in which they are sent; known after three steps."""

    def exchange(self) -> Callable[[], object]:
        """A call that averages the messages of a step, as the library does in one, without the step."""

    def close(self) -> None:
        """Leave."""


def sgd(model: nn.Module) -> torch.optim.SGD:
    """The optimizer of all of them."""
    return torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM)


class Ddp:
    """DistributedDataParallel, with its defaults, over a backend of torch.distributed."""

    def __init__(self, backend: str) -> None:
        import torch.distributed as dist

        if backend == "smddp":
            import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  (as scripts for SMDDP do)
        if backend == "hdp":
            import hdp.torch  # noqa: F401  (where the tree is only on the path, nothing else tells torch of it)
        dist.init_process_group(backend)
        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.versions = {"torch": str(torch.__version__)}
        self._model: nn.parallel.DistributedDataParallel | None = None

    def train(self, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        self._model = nn.parallel.DistributedDataParallel(model)
        return self._model, sgd(model)

    def buckets(self) -> list[int]:
        assert self._model is not None
        data: dict[str, Any] = self._model._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # it is torch's
        sizes = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
        return [int(size) for size in str(sizes).split(",") if size.strip()]

    def exchange(self) -> Callable[[], object]:
        assert self._model is not None
        device = next(self._model.parameters()).device
        buffers = [torch.zeros(size // 4, device=device) for size in self.buckets()]

        def run() -> None:
            for work in [self._dist.all_reduce(buffer, async_op=True) for buffer in buffers]:
                work.wait()

        return run

    def close(self) -> None:
        time.sleep(0.2)  # gloo's threads may still need the GIL that its end holds
        self._dist.destroy_process_group()


class Horovod:
    """Horovod's DistributedOptimizer; which controller it has says the environment."""

    def __init__(self) -> None:
        import horovod  # type: ignore[import-not-found]  # in an environment of its own
        import horovod.torch as hvd  # type: ignore[import-not-found]  # as above

        hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.versions = {"horovod": horovod.__version__, "torch": str(torch.__version__)}
        self._parameters: list[Tensor] = []

    def train(self, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = self._hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
        return model, optimizer

    def buckets(self) -> list[int]:
        return [p.numel() * p.element_size() for p in reversed(self._parameters)]

    def exchange(self) -> Callable[[], object]:
        buffers = [torch.zeros_like(p, requires_grad=False) for p in reversed(self._parameters)]

        def run() -> None:
            handles = [self._hvd.allreduce_async_(b, name=f"alone.{i}") for i, b in enumerate(buffers)]
            for handle in handles:
                self._hvd.synchronize(handle)

        return run

    def close(self) -> None:
        self._hvd.shutdown()


class Alone:
    """One process that trains by itself."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.versions = {"torch": str(torch.__version__)}

    def train(self, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        return model, sgd(model)

    def buckets(self) -> list[int]:
        return []

    def exchange(self) -> Callable[[], object]:
        return lambda: None

    def close(self) -> None:
        return None


LIBRARIES: dict[str, Callable[[], Library]] = {
    "hdp": lambda: Ddp("hdp"),
    "smddp": lambda: Ddp("smddp"),
    "gloo": lambda: Ddp("gloo"),
    "horovod": Horovod,
    "alone": Alone,
}
