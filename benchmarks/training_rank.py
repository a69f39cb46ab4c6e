"""One rank that trains: ``training_rank.py KIND CONTROL_SOCKET BARRIER_FILE ...``. It does what `training` asks.

KIND says with what: ``hdp``, ``smddp``, ``gloo`` (backends of torch.distributed, under DDP), ``horovod`` (its
DistributedOptimizer), ``alone`` (one process, nothing between). ``hdp:cuda``: on the rank's GPU, images channels-last.

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
from typing import Any

import device_place
import models
import numpy as np
import numpy.typing as npt
import torch
from barrier import Barrier
from control import serve
from torch import Tensor, nn
from training_libraries import LIBRARIES, Library, sgd

_BATCHES = 8  # that a rank has in memory, and takes in turn
_SEED = 20_220_901


class Trainer:
    """Answers to the coordinator's requests."""

    def __init__(self, library: Library, barrier_file: str, place: device_place.Place | None) -> None:
        self._library, self._place = library, place
        self._barrier = Barrier(barrier_file, library.rank, library.size)
        self._steps: dict[str, Callable[[], Tensor]] = {}
        self._mixed: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def hello(self) -> dict[str, Any]:
        """Who this is."""
        return {"rank": self._library.rank, "size": self._library.size, "versions": self._library.versions}

    def prepare(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Build the model and train `steps` steps, each checked against the mean of all ranks' own gradients.

        curve: steps that follow, of which nothing is checked; the answer has the losses of all.
        amp: ``bf16``: the forward pass is in that precision, where it can be.
        folder: of all ranks; rank 0 leaves there, as ``change``, what the first step changed in the parameters. Every
        library starts with the same parameters and sees the same images, so that the changes must be alike.
        """
        folder, self._model = Path(asked["folder"]), self._built(asked["model"])
        # No rank may see the batches of another one, and every library's rank r has the same.
        first = _SEED + 1 + self._library.rank * _BATCHES
        batches = [self._batch(asked["model"], asked["batch"], first + i) for i in range(_BATCHES)]
        bare, before = self._built(asked["model"]), _parameters(self._model)
        if asked["amp"] == "bf16":
            self._mixed = torch.autocast(batches[0][0].device.type, torch.bfloat16)
        self._steps["train"] = self._stepper(*self._library.train(self._model), batches)
        self._steps["compute"] = self._stepper(bare, sgd(bare), batches)
        errors, losses = [], []
        with _deterministic():
            for step in range(asked["steps"]):
                error, loss = self._checked_step(bare, batches[step % _BATCHES], first + step, folder)
                errors.append(error)
                losses.append(loss)
                if self._library.rank == 0 and not step:
                    (_parameters(self._model) - before).tofile(folder / "change")
            for step in range(asked["curve"]):
                torch.manual_seed(first + asked["steps"] + step)
                losses.append(float(self._steps["train"]()))
        curve = {"losses": losses, "rank": self._library.rank} if asked["curve"] else {}
        sizes = {"parameters": before.size, "buckets": self._library.buckets()}
        return {"errors": errors, **curve, **sizes, **self.digest({})}

    def _built(self, name: str) -> nn.Module:
        model = models.build(name, _SEED)
        return model.to(self._place.device, memory_format=torch.channels_last) if self._place else model

    def _batch(self, name: str, size: int, seed: int) -> tuple[Tensor, Tensor]:
        images, classes = models.batch(size, seed, models.MODELS[name])
        if self._place is None:
            return images, classes
        return images.to(self._place.device, memory_format=torch.channels_last), classes.to(self._place.device)

    def _checked_step(
        self, bare: nn.Module, batch: tuple[Tensor, Tensor], seed: int, folder: Path
    ) -> tuple[float, float]:
        """Train a step. Returns, on rank 0, how far its gradients are from the mean of the ranks' own; and its loss.

        Each rank computes its own gradients once more, with a model that no library knows, and leaves them in a file.
        """
        bare.load_state_dict(self._model.state_dict())
        bare.zero_grad()
        torch.manual_seed(seed)  # for dropout: the same again in the step
        self._backward(bare, batch)
        _gradients(bare).tofile(folder / f"rank-{self._library.rank}")
        self._barrier.wait()
        torch.manual_seed(seed)
        loss = float(self._steps["train"]())
        error = 0.0
        if self._library.rank == 0:
            files = (folder / f"rank-{rank}" for rank in range(self._library.size))
            mean = sum(np.fromfile(file, np.float32).astype(np.float64) for file in files) / self._library.size
            error = float(np.linalg.norm(_gradients(self._model) - mean) / np.linalg.norm(mean))
        self._barrier.wait()
        return error, loss

    def digest(self, _: dict[str, Any]) -> dict[str, Any]:
        """What is equal on two ranks exactly when all their parameters are, to the bit."""
        return {"digest": hashlib.sha256(_parameters(self._model).tobytes()).hexdigest()}

    def measure(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Time `steps` of `part`: ``train``, ``compute`` (the bare model) or ``exchange`` (the messages of a step)."""
        operation: Callable[[], object]
        if asked["part"] == "exchange":
            operation = self._library.exchange()
            self._barrier.wait()
            operation()  # the first one meets new buffers, and new names in Horovod
            self._settle()
        else:
            operation = self._steps[asked["part"]]
        times, cpu, begun = [], [], []
        with _no_garbage_collection():
            for _ in range(asked["steps"]):
                self._barrier.wait()
                begun.append(time.time())
                used, start = time.process_time(), time.monotonic()
                operation()
                self._settle()
                times.append(time.monotonic() - start)
                self._barrier.wait()
                cpu.append(time.process_time() - used)
        return {"times": times, "cpu": cpu, "begun": begun}

    def _settle(self) -> None:
        if self._place:
            self._place.settle()

    def _stepper(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]]
    ) -> Callable[[], Tensor]:
        def steps() -> Iterator[Tensor]:
            while True:
                for batch in batches:
                    optimizer.zero_grad()
                    loss = self._backward(model, batch)
                    optimizer.step()
                    yield loss

        endless = steps()
        return lambda: next(endless)

    def _backward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, classes = batch
        with self._mixed:
            loss = nn.functional.cross_entropy(model(images), classes)
        torch.autograd.backward(loss)
        return loss.detach()

    def close(self) -> None:
        """Leave the job."""
        self._library.close()


def _parameters(model: nn.Module) -> npt.NDArray[np.float32]:
    flat: npt.NDArray[np.float32] = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().numpy()
    return flat


def _gradients(model: nn.Module) -> npt.NDArray[np.float32]:
    flat: npt.NDArray[np.float32] = (
        torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).cpu().numpy()
    )
    return flat


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """The same batch gives the same gradients again, on a GPU too; slower, so nothing is timed so."""
    before = torch.backends.cudnn.deterministic
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = before


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
    name, _, device = kind.partition(":")
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS isn't deterministic
        torch.set_float32_matmul_precision("high")

    def join() -> Trainer:
        place = device_place.choose(device) if device else None
        return Trainer(LIBRARIES[name](), barrier_file, place)

    code = serve(control, join)
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    os._exit(main(*sys.argv[1:]))  # not through the libraries' exit handlers, which may wait for ranks that are gone
