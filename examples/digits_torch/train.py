"""Train a digit classifier, on one process or on many: the same script under hdp, smddp, gloo and Horovod.

`--dist` says how gradients travel; by default, the launcher does. Horovod differs from the others in five lines of
`join`; the others share PyTorch's DistributedDataParallel, and differ in the name of its backend.

Every rank takes its slice of each global batch, so the training does not depend on how many ranks there are: with R
ranks and a batch of B images, rank r gets images r, r + R, r + 2R, ... of the batch, and DDP averages the gradients.

A SIGTERM (the job is being stopped) is agreed on: its flag travels with the loss, so that all ranks stop after the
same step, and rank 0 leaves a checkpoint. The next run with the same checkpoint folder goes on from there.
"""

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from model import accuracy, make_model
from prepare import load
from torch import nn

from hdp import metrics

#: How gradients travel where `--dist` doesn't say: by what started the ranks.
BY_LAUNCHER = {"mpi": "horovod", "horovod": "horovod", "torch_distributed": "gloo"}
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if args.batch_size % RANKS:
        raise SystemExit(f"a batch of {args.batch_size} can't be shared by {RANKS} ranks; use a multiple")
    torch.manual_seed(args.seed)
    model = make_model(args.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    done = resume(args.checkpoint_dir, model, optimizer)
    trained, distributed, total = join(args.dist, model, optimizer)
    stopped, history = train(args, trained, distributed, total, done)
    if RANK == 0:
        save_checkpoint(args.checkpoint_dir, model, optimizer, done + len(history))
        report(args, model, history, stopped)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(f"weights sha256 {digest}", flush=True)
    if dist.is_initialized():
        leave()


def join(name: str, model: nn.Module, optimizer):
    """Join the other ranks, if any, through the library `name`.

    Returns the model and the optimizer to train with, and what sums a small tensor over all ranks, in place.
    """
    if RANKS == 1 or name == "none":
        return model, optimizer, lambda tensor: tensor
    if name == "horovod":
        import horovod.torch as hvd

        hvd.init()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        return model, optimizer, lambda tensor: hvd.allreduce_(tensor, op=hvd.Sum)
    if name == "smddp":
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  (registers the backend)
    dist.init_process_group(name)
    return nn.parallel.DistributedDataParallel(model), optimizer, dist.all_reduce


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64, help="images of all ranks together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=0, help="0: all")
    parser.add_argument("--hidden", type=json.loads, default=[64], help="units of each dense layer, e.g. [4480,4096]")
    parser.add_argument(
        "--dist",
        choices=["hdp", "horovod", "gloo", "smddp", "none"],
        default=BY_LAUNCHER.get(os.environ.get("HDP_LAUNCHER", ""), "hdp"),
        help="how gradients travel; none: every rank trains on its own",
    )
    parser.add_argument("--training", type=Path, default=os.environ.get("SM_CHANNEL_TRAINING"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    parser.add_argument("--output-data-dir", type=Path, default=os.environ.get("SM_OUTPUT_DATA_DIR", "output"))
    parser.add_argument("--checkpoint-dir", type=Path, default=os.environ.get("SM_CHECKPOINT_DIR", "checkpoints"))
    return parser.parse_args()


def leave() -> None:
    """Leave the group.

    Under gloo, torch's own threads may still be letting go of the last operation's tensors, for which they need the
    GIL; destroying the group holds it while it waits for them. So they get a moment first, or the process may hang.
    """
    time.sleep(0.2)
    dist.destroy_process_group()


def train(args, model, optimizer, total, done: int) -> tuple[bool, list[dict]]:
    """Train on from step `done`. Returns whether a stop was asked for, and loss and seconds of each step."""
    images, labels = tensors(args.training)
    stop = StopFlag()
    history: list[dict] = []
    batches = global_batches(len(labels), args)
    for step, batch in enumerate(batches[done:], start=done):
        began = time.perf_counter()
        mine = batch[RANK::RANKS]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        both = torch.tensor([loss.item() / RANKS, float(stop.is_set)], dtype=torch.float64)
        total(both)
        mean_loss, stopping = both.tolist()
        history.append({"step": step, "loss": mean_loss, "seconds": time.perf_counter() - began})
        if RANK == 0:
            metrics.log(step=step, steps=len(batches), loss=mean_loss, samples=len(batch))
        if stopping:
            return True, history
    return False, history


def global_batches(count: int, args) -> list[torch.Tensor]:
    """Indices of every step's batch, the same on all ranks; an incomplete last batch of an epoch is left out."""
    batches = []
    for epoch in range(args.epochs):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(args.seed * 1000 + epoch))
        batches += [b for b in order.split(args.batch_size) if len(b) == args.batch_size]
    return batches[: args.max_steps] if args.max_steps else batches


class StopFlag:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_) -> None:
        self.is_set = True


def report(args, model: nn.Module, history: list[dict], stopped: bool) -> None:
    """Evaluate on the held-out images; leave the model artifact and a summary."""
    share = accuracy(model, *tensors(args.test))
    args.model_dir.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.model_dir / "model.pt")
    args.output_data_dir.mkdir(parents=True, exist_ok=True)
    summary = {"accuracy": share, "ranks": RANKS, "stopped": stopped, "steps": history}
    (args.output_data_dir / "summary.json").write_text(json.dumps(summary))
    print(f"test accuracy {share:.4f}", flush=True)


def save_checkpoint(folder: Path, model: nn.Module, optimizer, step: int) -> None:
    """Replace the checkpoint, so that there is a whole one at any time."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, folder / "checkpoint.pt.new")
    (folder / "checkpoint.pt.new").replace(folder / "checkpoint.pt")


def resume(folder: Path, model: nn.Module, optimizer) -> int:
    """Load the checkpoint, if there is one. Returns the number of steps that it has behind it."""
    if not (folder / "checkpoint.pt").exists():
        return 0
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def tensors(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, 8, 8) and labels (n,) of a channel."""
    images, labels = load(folder)
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels)


if __name__ == "__main__":
    main()
