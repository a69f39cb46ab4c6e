"""Write the 1,797 handwritten digits that scikit-learn ships (8x8 pixels, UCI) as files, one folder a channel.

    python prepare.py FOLDER

Every fifth image goes to FOLDER/test, the rest to FOLDER/training, in shards of a few hundred: NumPy archives with
``images`` (n, 8, 8) float32 in 0..1 and ``labels`` (n,) int64.
"""

import sys
from pathlib import Path

import numpy as np

SHARDS = 4


def prepare(folder: Path) -> dict[str, str]:
    """Write both channels below `folder`. Returns channel name -> URI, as `fit` takes them."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    labels = digits.target.astype(np.int64)
    held_out = np.arange(len(labels)) % 5 == 0
    _write(folder / "training", images[~held_out], labels[~held_out], SHARDS)
    _write(folder / "test", images[held_out], labels[held_out], 1)
    return {name: (folder / name).resolve().as_uri() for name in ("training", "test")}


def _write(folder: Path, images: np.ndarray, labels: np.ndarray, shards: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parts = zip(np.array_split(images, shards), np.array_split(labels, shards), strict=True)
    for number, (part_images, part_labels) in enumerate(parts):
        np.savez(folder / f"digits-{number:02}.npz", images=part_images, labels=part_labels)


def load(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels below `folder`, in the order of the file names."""
    shards = [np.load(path) for path in sorted(folder.glob("*.npz"))]
    return np.concatenate([s["images"] for s in shards]), np.concatenate([s["labels"] for s in shards])


if __name__ == "__main__":
    for channel, uri in prepare(Path(sys.argv[1])).items():
        print(channel, uri)
