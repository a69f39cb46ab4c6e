"""Turn images into the channel that train.py maps: ``images.npy`` (n, h, w, 3, uint8) and ``labels.npy`` (n, int64).

    python prepare_images.py TO FOLDER [PIXELS]     a folder of images for each class, as ImageNet has it (needs Pillow)
    python prepare_images.py TO                     scikit-learn's 1,797 digits, as images of 32 x 32

An image is scaled so that its shorter side fits, and its middle is taken. Classes are numbered by their folders' names.
"""

import sys
from pathlib import Path

import numpy as np

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


def digits(to: Path) -> None:
    """The digits, 8 x 8 in shades of gray: each pixel becomes a square of 4 x 4, the same in all three colours."""
    from sklearn.datasets import load_digits

    found = load_digits()
    large = np.kron(found.images * 255 / 16, np.ones((4, 4)))
    _write(to, np.repeat(large[..., None], 3, axis=3).astype(np.uint8), found.target)


def folder_of_classes(to: Path, source: Path, pixels: int) -> None:
    """The images below `source`. Written one by one: they needn't fit into memory. Raises SystemExit: none."""
    classes = sorted(path for path in source.iterdir() if path.is_dir())
    files = [(n, f) for n, c in enumerate(classes) for f in sorted(c.rglob("*")) if f.suffix.lower() in SUFFIXES]
    if not files:
        raise SystemExit(f"{source} has no images; expected a folder for each class with {', '.join(sorted(SUFFIXES))}")
    to.mkdir(parents=True, exist_ok=True)
    shape = (len(files), pixels, pixels, 3)
    out = np.lib.format.open_memmap(to / "images.npy", mode="w+", dtype=np.uint8, shape=shape)
    for row, (_, file) in enumerate(files):
        out[row] = _middle(file, pixels)
    out.flush()
    np.save(to / "labels.npy", np.array([number for number, _ in files], np.int64))


def _middle(file: Path, pixels: int) -> np.ndarray:
    from PIL import Image, ImageOps

    with Image.open(file) as image:
        return np.asarray(ImageOps.fit(image.convert("RGB"), (pixels, pixels)))


def _write(to: Path, images: np.ndarray, labels: np.ndarray) -> None:
    to.mkdir(parents=True, exist_ok=True)
    np.save(to / "images.npy", images)
    np.save(to / "labels.npy", labels.astype(np.int64))


if __name__ == "__main__":
    target, *rest = sys.argv[1:]
    if rest:
        folder_of_classes(Path(target), Path(rest[0]), int(rest[1]) if len(rest) > 1 else 224)
    else:
        digits(Path(target))
