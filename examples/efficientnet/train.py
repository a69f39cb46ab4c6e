"""Train an EfficientNet under DistributedDataParallel, in mixed precision, and say how many images a second that is.

Per rank, a batch of its own (``--batch-size``); how gradients travel, by name (``--backend hdp``, smddp, gloo, nccl,
horovod); by default, what the launcher is for. Mixed precision (``--amp``): bfloat16 anywhere, float16 with a gradient
scaler on a GPU, where float32 products are in TF32. Images lie channels-last. A rank has the GPU of its local rank;
where the host has fewer, ranks share them (not under nccl, which wants a GPU for each).

Without the channel "training" the images are random, so that nothing but the training is measured; with it they are
``images.npy`` (n, h, w, 3, uint8) and ``labels.npy`` (n), mapped and not read as a whole.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from efficientnet_model import SIZES, efficientnet
from torch import Tensor, nn

from hdp import metrics

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: How gradients travel where `--backend` doesn't say: by what started the ranks.
BY_LAUNCHER = {"mpi": "horovod", "horovod": "horovod", "torch_distributed": "gloo"}
#: Steps that are not in images/s: the first ones meet new memory, and cuDNN tries its algorithms.
WARM_UP = 2


def main() -> None:
    args = parse()
    torch.manual_seed(args.seed)
    device = choose_device()
    classes, batches = source(args, device)
    model = efficientnet(args.model, classes, args.stem_stride).to(device, memory_format=torch.channels_last)
    rate = args.lr * args.batch_size * RANKS / 256
    optimizer = torch.optim.RMSprop(model.parameters(), lr=rate, alpha=0.9, momentum=0.9, eps=1e-3)
    trained, step = join(args, model, optimizer, torch.amp.GradScaler(device.type, enabled=args.amp == "fp16"))
    history = train(args, trained, step, batches, device)
    if RANK == 0:
        report(args, model, history)
    values = b"".join(p.detach().cpu().contiguous().numpy().tobytes() for p in model.parameters())
    print(f"weights sha256 {hashlib.sha256(values).hexdigest()}", flush=True)
    if dist.is_initialized():
        time.sleep(0.2)  # gloo's threads may still hold the last tensors
        dist.destroy_process_group()


def join(args, model: nn.Module, optimizer, scaler) -> tuple[nn.Module, Callable[[Tensor], None]]:
    """Join the other ranks, if any. Returns the model to call, and what goes from a loss to the next parameters."""

    def step(loss: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    if RANKS == 1:
        return model, step
    if args.backend == "horovod":
        return horovod(model, optimizer, scaler)
    if args.backend == "smddp":
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  (registers the backend)
    dist.init_process_group(args.backend)
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), step


def horovod(model: nn.Module, optimizer, scaler) -> tuple[nn.Module, Callable[[Tensor], None]]:
    """Horovod averages in its optimizer, which has to be done before the scaler looks for infinities."""
    import horovod.torch as hvd

    hvd.init()
    model.to(memory_format=torch.contiguous_format)  # Horovod takes no other
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    whole = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    def step(loss: Tensor) -> None:
        whole.zero_grad()
        scaler.scale(loss).backward()
        whole.synchronize()
        with whole.skip_synchronize():
            scaler.step(whole)
        scaler.update()

    return model, step


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*SIZES, "tiny"], default="b0")
    parser.add_argument(
        "--backend",
        choices=["hdp", "smddp", "gloo", "nccl", "horovod"],
        default=BY_LAUNCHER.get(os.environ.get("HDP_LAUNCHER", ""), "hdp"),
        help="how gradients travel: a backend of torch.distributed under DDP, or Horovod's optimizer",
    )
    parser.add_argument("--amp", choices=[*TYPES, "off"], default="bf16", help="precision of the forward pass")
    parser.add_argument("--batch-size", type=int, default=32, help="images of one rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pixels", type=int, default=0, help="of random images; 0: what the network was made for")
    parser.add_argument("--stem-stride", type=int, default=2, help="1 for images of 32 pixels")
    parser.add_argument("--lr", type=float, default=0.016, help="for 256 images a step (default 0.016, the paper's)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--training", type=Path, default=os.environ.get("SM_CHANNEL_TRAINING"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    parser.add_argument("--output-data-dir", type=Path, default=os.environ.get("SM_OUTPUT_DATA_DIR", "output"))
    args = parser.parse_args()
    if args.steps <= WARM_UP:
        parser.error(f"--steps is {args.steps}; expected {WARM_UP + 1} or more, since the first {WARM_UP} aren't timed")
    if args.batch_size < 2:
        parser.error(f"--batch-size is {args.batch_size}; expected 2 or more, which batch normalisation needs")
    if args.amp == "fp16" and not torch.cuda.is_available():
        parser.error("--amp fp16 needs a GPU: a processor has no float16 arithmetic; give bf16")
    return args


def choose_device() -> torch.device:
    """The rank's GPU (ranks may share one); without any, the processor, of which each rank takes one core."""
    if torch.cuda.is_available():
        device = torch.device("cuda", LOCAL_RANK % torch.cuda.device_count())
        torch.cuda.set_device(device)  # collective libraries ask for it
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        return device
    torch.set_num_threads(1)
    return torch.device("cpu")


def source(args, device: torch.device) -> tuple[int, Iterator[tuple[Tensor, Tensor]]]:
    """Number of classes, and batches of this rank without end."""
    if args.training is None:
        return 1000, random_images(args, device)
    labels = np.load(args.training / "labels.npy")
    if len(labels) // RANKS < args.batch_size:
        raise SystemExit(f"{len(labels)} images are too few for {RANKS} ranks with a batch of {args.batch_size} each")
    return int(labels.max()) + 1, images_of(args, labels, device)


def random_images(args, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    pixels = args.pixels or (SIZES[args.model].pixels if args.model in SIZES else 32)
    generator = torch.Generator().manual_seed(args.seed * 1000 + RANK)
    images = torch.randn(args.batch_size, 3, pixels, pixels, generator=generator)
    labels = torch.randint(1000, (args.batch_size,), generator=generator)
    batch = images.to(device, memory_format=torch.channels_last), labels.to(device)
    while True:
        yield batch


def images_of(args, labels: np.ndarray, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The same order on all ranks, of which each takes its share, anew for each epoch."""
    images = np.load(args.training / "images.npy", mmap_mode="r")
    epoch = 0
    while True:
        order = np.random.default_rng(args.seed + epoch).permutation(len(labels))[RANK::RANKS]
        for begin in range(0, len(order) - args.batch_size + 1, args.batch_size):
            mine = np.sort(order[begin : begin + args.batch_size])
            pixels = torch.from_numpy(images[mine]).permute(0, 3, 1, 2).to(device).float().div_(255)
            batch = pixels.contiguous(memory_format=torch.channels_last)
            yield batch, torch.from_numpy(labels[mine]).long().to(device)
        epoch += 1


def train(args, model, step: Callable, batches: Iterator[tuple[Tensor, Tensor]], device: torch.device) -> list[dict]:
    """Loss (of this rank's images) and seconds of each step."""
    mixed = nullcontext() if args.amp == "off" else torch.autocast(device.type, TYPES[args.amp])
    history: list[dict] = []
    for number in range(args.steps):
        began = time.perf_counter()
        images, labels = next(batches)
        waited = time.perf_counter() - began
        with mixed:
            loss = nn.functional.cross_entropy(model(images), labels)
        step(loss)
        value = loss.item()
        if device.type == "cuda":
            torch.cuda.synchronize()  # the optimizer's step comes after the loss
        history.append({"step": number, "loss": value, "seconds": time.perf_counter() - began})
        if RANK == 0:
            all_images = len(images) * RANKS
            metrics.log(step=number, steps=args.steps, loss=value, samples=all_images, input_seconds=waited)
    return history


def report(args, model: nn.Module, history: list[dict]) -> None:
    """Leave the model artifact and a summary, and say how fast it was."""
    args.model_dir.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.model_dir / "model.pt")
    args.output_data_dir.mkdir(parents=True, exist_ok=True)
    speed = RANKS * args.batch_size / statistics.median(step["seconds"] for step in history[WARM_UP:])
    summary = {
        "model": args.model,
        "backend": args.backend if RANKS > 1 else "none",
        "amp": args.amp,
        "ranks": RANKS,
        "batch_size": args.batch_size,
        "images_per_second": speed,
        "steps": history,
    }
    (args.output_data_dir / "summary.json").write_text(json.dumps(summary))
    print(f"{speed:.1f} images/s", flush=True)


if __name__ == "__main__":
    main()
