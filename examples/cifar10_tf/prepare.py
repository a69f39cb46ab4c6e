"""Write 32x32 colour images in ten classes as TFRecords, one folder a channel.

    python prepare.py FOLDER                     the 1,797 handwritten digits that scikit-learn ships, made larger
    python prepare.py FOLDER --cifar10 BINARIES  CIFAR-10, from the folder with data_batch_1.bin ... and test_batch.bin

A record has ``image``, the bytes of 32 rows of 32 pixels of red, green and blue, and ``label``, an int64. Image i of a
channel goes into shard i modulo the number of shards. The same input gives the same files.
"""

import argparse
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import numpy as np
import tensorflow as tf

SIDE = 32
PIXELS = 3 * SIDE * SIDE
SHARDS = {"training": 8, "test": 2}
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

Sample = tuple[np.ndarray, int]


def prepare(folder: Path, cifar10: Path | None = None, shards: int = SHARDS["training"]) -> dict[str, str]:
    """Write both channels below `folder`. Returns channel name -> URI, as `fit` takes them.

    shards: how many files the training images are in; every rank needs one of its own at least.
    """
    name, channels = ("digits", digits()) if cifar10 is None else ("cifar10", cifar10_channels(cifar10))
    for channel, samples in channels.items():
        write(folder / channel, name, samples, shards if channel == "training" else SHARDS[channel])
    return {channel: (folder / channel).resolve().as_uri() for channel in channels}


def digits() -> dict[str, Iterator[Sample]]:
    """scikit-learn's digits: 8x8 grey pixels, each of them made 4x4 in three colours. Every fifth image is held out."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    grey = np.round(loaded.images * (255 / 16)).astype(np.uint8)
    images = np.repeat(grey.repeat(4, axis=1).repeat(4, axis=2)[..., None], 3, axis=3)
    held_out = np.arange(len(images)) % 5 == 0
    return {
        channel: zip(images[chosen], map(int, loaded.target[chosen]), strict=True)
        for channel, chosen in (("training", ~held_out), ("test", held_out))
    }


def cifar10_channels(folder: Path) -> dict[str, Iterator[Sample]]:
    """Images and labels of CIFAR-10's binary files in `folder`. Leaves with a message where they aren't."""
    training, test = sorted(folder.glob("data_batch_*.bin")), sorted(folder.glob("test_batch.bin"))
    if not training or not test:
        raise SystemExit(f"{folder} has no data_batch_*.bin and test_batch.bin; give the folder of CIFAR-10's binaries")
    return {"training": chain.from_iterable(map(cifar10, training)), "test": chain.from_iterable(map(cifar10, test))}


def cifar10(path: Path) -> Iterator[Sample]:
    """A file's images, (32, 32, 3) uint8, and labels. A record: a byte (the label), then red, green and blue planes."""
    raw = np.fromfile(path, np.uint8)
    if raw.size % (1 + PIXELS):
        raise SystemExit(f"{path} has {raw.size} bytes; expected a multiple of {1 + PIXELS}, as CIFAR-10's have")
    for record in raw.reshape(-1, 1 + PIXELS):
        if record[0] > 9:
            raise SystemExit(f"{path} has the label {record[0]}; expected 0 to 9")
        yield record[1:].reshape(3, SIDE, SIDE).transpose(1, 2, 0), int(record[0])


def write(folder: Path, name: str, samples: Iterable[Sample], shards: int) -> None:
    """Deal `samples` out to `shards` files in `folder`, in turn. What was in it before goes."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.tfrecord"):
        old.unlink()
    with ExitStack() as stack:
        paths = [folder / f"{name}-{i:05}-of-{shards:05}.tfrecord" for i in range(shards)]
        writers = [stack.enter_context(tf.io.TFRecordWriter(str(path))) for path in paths]
        for i, (image, label) in enumerate(samples):
            writers[i % shards].write(_example(image, label))


def _example(image: np.ndarray, label: int) -> bytes:
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def files_of(folder: Path) -> list[str]:
    """All shards in `folder`, in the order of their names."""
    found = sorted(map(str, folder.glob("*.tfrecord")))
    if not found:
        raise SystemExit(f"{folder} has no *.tfrecord files; prepare.py writes some")
    return found


def read(files: list[str]) -> tf.data.Dataset:
    """The images in `files`, one after the other: (32, 32, 3) float32 in 0..1, and an int64 label."""
    return tf.data.TFRecordDataset(files, buffer_size=1 << 20).map(_sample, num_parallel_calls=tf.data.AUTOTUNE)


def _sample(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    found = tf.io.parse_single_example(record, FEATURES)
    image = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), (SIDE, SIDE, 3))
    return tf.cast(image, tf.float32) / 255, found["label"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cifar10", type=Path, metavar="BINARIES")
    parser.add_argument("--shards", type=int, default=SHARDS["training"], help="files of the training channel")
    args = parser.parse_args()
    for channel, uri in prepare(args.folder, args.cifar10, args.shards).items():
        print(channel, uri)
