"""One rank that trains: ``training_rank.py KIND CONTROL_SOCKET BARRIER_FILE ...``. It does what `training` asks.

KIND says with what: ``hdp``, ``smddp``, ``gloo`` (backends of torch.distributed, under DDP), ``horovod`` (its
DistributedOptimizer), ``alone`` (one process, nothing between).

A timed step is forward, backward, whatever the library sends, and the optimizer's step, on images that are in memory.
All ranks meet at a barrier off the wire before and after; the clock runs between.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import models
import numpy as np
import numpy.typing as npt
import torch
from barrier import Barrier
from control import serve
from torch import Tensor, nn

_BATCHES = 8  # that a rank has in memory, and takes in turn
_SEED = 20_220_901
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
        buffers = [torch.zeros(size // 4) for size in self.buckets()]

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


class Trainer:
    """Answers to the coordinator's requests."""

    def __init__(self, library: Library, barrier_file: str) -> None:
        self._library = library
        self._barrier = Barrier(barrier_file, library.rank, library.size)
        self._steps: dict[str, Callable[[], object]] = {}

    def hello(self) -> dict[str, Any]:
        """Who this is."""
        return {"rank": self._library.rank, "size": self._library.size, "versions": self._library.versions}

    def prepare(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Build the model and train `steps` steps, each checked against the mean of all ranks' own gradients.

        folder: of all ranks; rank 0 leaves there, as ``change``, what the first step changed in the parameters. Every
        library starts with the same parameters and sees the same images, so that the changes must be alike.
        """
        folder, self._model = Path(asked["folder"]), models.build(asked["model"], _SEED)
        # No rank may see the batches of another one, and every library's rank r has the same.
        first = _SEED + 1 + self._library.rank * _BATCHES
        batches = [models.batch(asked["batch"], first + i) for i in range(_BATCHES)]
        bare, before = models.build(asked["model"], _SEED), _parameters(self._model)
        self._steps["train"] = _stepper(*self._library.train(self._model), batches)
        self._steps["compute"] = _stepper(bare, sgd(bare), batches)
        errors = []
        for step in range(asked["steps"]):
            errors.append(self._checked_step(bare, batches[step], first + step, folder))
            if self._library.rank == 0 and not step:
                (_parameters(self._model) - before).tofile(folder / "change")
        sizes = {"parameters": before.size, "buckets": self._library.buckets()}
        return {"errors": errors, **sizes, **self.digest({})}

    def _checked_step(self, bare: nn.Module, batch: tuple[Tensor, Tensor], seed: int, folder: Path) -> float:
        """Train a step. Returns, on rank 0, how far its gradients are from the mean of what the ranks computed.

        Each rank computes its own gradients once more, with a model that no library knows, and leaves them in a file.
        """
        bare.load_state_dict(self._model.state_dict())
        bare.zero_grad()
        torch.manual_seed(seed)  # for dropout: the same again in the step
        _backward(bare, batch)
        _gradients(bare).tofile(folder / f"rank-{self._library.rank}")
        self._barrier.wait()
        torch.manual_seed(seed)
        self._steps["train"]()
        error = 0.0
        if self._library.rank == 0:
            files = (folder / f"rank-{rank}" for rank in range(self._library.size))
            mean = sum(np.fromfile(file, np.float32).astype(np.float64) for file in files) / self._library.size
            error = float(np.linalg.norm(_gradients(self._model) - mean) / np.linalg.norm(mean))
        self._barrier.wait()
        return error

    def digest(self, _: dict[str, Any]) -> dict[str, Any]:
        """What is equal on two ranks exactly when all their parameters are, to the bit."""
        return {"digest": hashlib.sha256(_parameters(self._model).tobytes()).hexdigest()}

    def measure(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Time `steps` of `part`: ``train``, ``compute`` (the bare model) or ``exchange`` (the messages of a step)."""
        if asked["part"] == "exchange":
            operation = self._library.exchange()
            self._barrier.wait()
            operation()  # the first one meets new buffers, and new names in Horovod
        else:
            operation = self._steps[asked["part"]]
        times, cpu = [], []
        with _no_garbage_collection():
            for _ in range(asked["steps"]):
                self._barrier.wait()
                used, start = time.process_time(), time.monotonic()
                operation()
                times.append(time.monotonic() - start)
                self._barrier.wait()
                cpu.append(time.process_time() - used)
        return {"times": times, "cpu": cpu}

    def close(self) -> None:
        """Leave the job."""
        self._library.close()


def _stepper(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]]
) -> Callable[[], object]:
    def steps() -> Iterator[None]:
        while True:
            for images, classes in batches:
                optimizer.zero_grad()
                _backward(model, (images, classes))
                optimizer.step()
                yield

    endless = steps()
    return lambda: next(endless)


def _backward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    images, classes = batch
    torch.autograd.backward(nn.functional.cross_entropy(model(images), classes))


def _parameters(model: nn.Module) -> npt.NDArray[np.float32]:
    flat: npt.NDArray[np.float32] = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    return flat


def _gradients(model: nn.Module) -> npt.NDArray[np.float32]:
    flat: npt.NDArray[np.float32] = torch.cat(
        [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    ).numpy()
    return flat


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def main(kind: str, control: str, barrier_file: str, *_: str) -> int:
    """Join, then answer."""
    torch.set_num_threads(1)
    code = serve(control, lambda: Trainer(LIBRARIES[kind](), barrier_file))
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    os._exit(main(*sys.argv[1:]))  # not through the libraries' exit handlers, which may wait for ranks that are gone
