"""Train a digit classifier with PyTorch from TFRecord files that are streamed; no TensorFlow is needed.

Ranks share the training files: of the sorted ones, rank r of R takes r, r + R, r + 2R, ... The stream has no end, so
that every rank takes the same number of steps, whatever its files hold.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from tfrecord import Records, decode, read_records
from torch import nn
from torch.utils.data import DataLoader

from hdp import metrics

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = make_model()
    trained = model
    if RANKS > 1:
        dist.init_process_group("hdp")
        trained = nn.parallel.DistributedDataParallel(model)
    first = train(args, trained)
    if RANK == 0:
        report(args, model, first)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(f"weights sha256 {digest}", flush=True)
    if RANKS > 1:
        dist.destroy_process_group()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=16, help="digits of each rank")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=1, help="of each rank's DataLoader; each needs a file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--training", type=Path, default=os.environ.get("SM_CHANNEL_TRAINING"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    parser.add_argument("--output-data-dir", type=Path, default=os.environ.get("SM_OUTPUT_DATA_DIR", "output"))
    return parser.parse_args()


def make_model() -> nn.Module:
    """Input (n, 1, 8, 8) float32, output (n, 10) logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train(args: argparse.Namespace, model: nn.Module) -> float:
    """Take the steps. Returns the seconds until the first batch was there."""
    files = sorted(args.training.glob("*.tfrecord"))
    if len(files) < RANKS * max(args.workers, 1):
        raise SystemExit(f"{len(files)} files can't be shared by {RANKS} ranks with {args.workers} workers each")
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    began, first = time.perf_counter(), 0.0
    loader = DataLoader(Records(files[RANK::RANKS], args.seed + RANK), args.batch_size, num_workers=args.workers)
    for step, (images, labels) in zip(range(args.steps), loader, strict=False):
        first = first or time.perf_counter() - began
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        metrics.log(step=step, steps=args.steps, loss=loss.item(), samples=len(labels))
    return first


def report(args: argparse.Namespace, model: nn.Module, first: float) -> None:
    """Evaluate on the held-out digits; leave the model artifact and a summary."""
    digits = [decode(record) for path in sorted(args.test.glob("*.tfrecord")) for record in read_records(path)]
    model.eval()
    with torch.no_grad():
        found = model(torch.stack([torch.from_numpy(image) for image, _ in digits])).argmax(1)
    share = (found == torch.tensor([label for _, label in digits])).float().mean().item()
    args.model_dir.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.model_dir / "model.pt")
    args.output_data_dir.mkdir(parents=True, exist_ok=True)
    summary = {"accuracy": share, "ranks": RANKS, "seconds_to_first_batch": first}
    (args.output_data_dir / "summary.json").write_text(json.dumps(summary))
    print(f"test accuracy {share:.4f}", flush=True)


if __name__ == "__main__":
    main()
