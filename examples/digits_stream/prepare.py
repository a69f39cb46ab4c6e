"""Write the 1,797 handwritten digits that scikit-learn ships (8x8 pixels, UCI) as TFRecord files.

    python prepare.py FOLDER

Every fifth digit goes to FOLDER/test, in one file, the rest to FOLDER/training, in eight: as many as the most ranks
that can share them, and each read from first to last.
"""

import sys
from pathlib import Path

import numpy as np
from tfrecord import write_records

SHARDS = 8


def prepare(folder: Path) -> dict[str, Path]:
    """Write both channels below `folder`. Returns channel name -> its folder."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = np.concatenate([digits.images.reshape(-1, 64), digits.target[:, None]], axis=1).astype(np.uint8)
    held_out = np.arange(len(rows)) % 5 == 0
    _write(folder / "training", rows[~held_out], SHARDS)
    _write(folder / "test", rows[held_out], 1)
    return {name: folder / name for name in ("training", "test")}


def _write(folder: Path, rows: np.ndarray, shards: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(np.array_split(rows, shards)):
        write_records(folder / f"digits-{number:02}-of-{shards:02}.tfrecord", (row.tobytes() for row in part))


if __name__ == "__main__":
    for channel, path in prepare(Path(sys.argv[1])).items():
        print(channel, path)
