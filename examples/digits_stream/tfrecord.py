"""TFRecord files, written and read without TensorFlow; a digit's record is 65 bytes: 64 pixels of 0..16, its label.

A record in the file is its length (8 bytes, little endian), a checksum of these 8 bytes (4), the content, and the
content's checksum (4). The checksum is CRC-32C, turned by 15 bits, plus a constant: so it differs from that of content
which holds checksums itself. Here it is computed in Python, 10 MB/s; `pip install google-crc32c` makes it fast.
"""

import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

try:
    from google_crc32c import value as crc32c
except ImportError:

    def crc32c(content: bytes) -> int:
        """CRC-32C (Castagnoli) of `content`."""
        crc = 0xFFFFFFFF
        for byte in content:
            crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        return crc ^ 0xFFFFFFFF


def _table_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_table_entry(i) for i in range(256)]


def masked_crc(content: bytes) -> int:
    """The checksum as it stands in the file."""
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """Write a TFRecord file."""
    with path.open("wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            file.write(length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record)))


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a TFRecord file, from first to last. Raises ValueError that says where it is damaged."""
    with path.open("rb", buffering=256 << 10) as file:
        while head := file.read(12):
            length, check = struct.unpack("<QI", head) if len(head) == 12 else (0, -1)
            if check != masked_crc(head[:8]):
                raise ValueError(f"{path}: no record begins at byte {file.tell() - len(head)}")
            body = file.read(length + 4)
            if len(body) < length + 4 or struct.unpack("<I", body[length:])[0] != masked_crc(body[:length]):
                raise ValueError(f"{path}: the record of {length} bytes before byte {file.tell()} is cut or damaged")
            yield body[:length]


def decode(record: bytes) -> tuple[np.ndarray, int]:
    """Image (1, 8, 8) float32 in 0..1 and label of a record."""
    values = np.frombuffer(record, np.uint8)
    return values[:64].reshape(1, 8, 8).astype(np.float32) / 16, int(values[64])


class Records(IterableDataset):
    """Digits of some TFRecord files, without end, shuffled by a buffer; each file is read from first to last.

    That suits FastFile: a file that is read in order arrives before it is asked for. Every worker of a DataLoader reads
    files of its own, as every rank does.
    """

    def __init__(self, files: Sequence[Path], seed: int, buffer: int = 500) -> None:
        super().__init__()
        self.files = list(files)
        self.seed = seed
        self.buffer = buffer

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        rng = random.Random(f"{self.seed} {number}")
        held: list[bytes] = []
        for record in self._endless(self.files[number::workers], rng):
            held.append(record)
            if len(held) < self.buffer:
                continue
            place = rng.randrange(len(held))
            held[place], held[-1] = held[-1], held[place]
            image, label = decode(held.pop())
            yield torch.from_numpy(image), label

    @staticmethod
    def _endless(files: list[Path], rng: random.Random) -> Iterator[bytes]:
        while files:
            for path in rng.sample(files, len(files)):
                yield from read_records(path)
