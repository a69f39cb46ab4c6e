"""What test_cifar10_tf_job.py asks of TensorFlow, in a process of its own.

look_at_cifar10.py prepare BINARIES FOLDER   writes them twice, in 3 shards, to FOLDER/one and FOLDER/two, what is read
                                             from each shard to FOLDER/read.npz, and the digits to FOLDER/digits;
                                             prints the digits' channels, and the refusals of what is wrong, as JSON
look_at_cifar10.py accuracy MODEL CHANNEL    prints the model's accuracy
"""

import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/cifar10_tf"))


def prepare(binaries: str, folder: str) -> None:
    import prepare
    from train import parse

    source, target = Path(binaries), Path(folder)
    for name in ("one", "two"):
        prepare.prepare(target / name, source, shards=3)
    np.savez(target / "read.npz", **_read(target / "one"))
    refusals = [_refusal(prepare.prepare, target / "three", target)]
    for wrong in (bytes(3072), bytes([10] * 3073)):
        (source / "data_batch_2.bin").write_bytes(wrong)
        refusals.append(_refusal(prepare.prepare, target / "three", source))
    channels = ["--training", "a", "--test", "b"]
    refusals.append(_refusal(parse, ["--dist", "horovod", "--reduce", "optimizer", *channels]))
    print(json.dumps([prepare.prepare(target / "digits"), refusals]))


def _read(folder: Path) -> dict[str, np.ndarray]:
    from prepare import files_of, read

    found = {}
    for channel in ("training", "test"):
        for number, file in enumerate(files_of(folder / channel)):
            images, labels = zip(*read([file]).as_numpy_iterator(), strict=True)
            found |= {f"{channel} {number} images": np.stack(images), f"{channel} {number} labels": np.stack(labels)}
    return found


def accuracy(model: str, channel: str) -> None:
    import keras
    from model import accuracy as share

    print(share(keras.models.load_model(model), Path(channel)))


def _refusal(function, *arguments) -> str:
    """What a command line's user reads when `function` leaves."""
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            function(*arguments)
        except SystemExit as left:
            return f"{errors.getvalue()}{left}"
    return "not refused"


if __name__ == "__main__":
    {"prepare": prepare, "accuracy": accuracy}[sys.argv[1]](*sys.argv[2:])
