"""What reads training data, through a real mount: each gets what it gets from the folder itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fastfile_support import content, mounted, needs_fuse

pytestmark = [pytest.mark.slow, needs_fuse]

LOADER = """
import hashlib, json, sys
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).iterdir())
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        return index, hashlib.sha256(self.paths[index].read_bytes()).hexdigest()

found = {}
for epoch in range(2):
    generator = torch.Generator().manual_seed(epoch)
    loader = DataLoader(Files(sys.argv[1]), batch_size=16, num_workers=4, shuffle=True, generator=generator,
                        multiprocessing_context="fork")
    seen = [(int(i), d) for indexes, digests in loader for i, d in zip(indexes, digests)]
    found[epoch] = sorted(seen)
print(json.dumps(found))
"""
RECORDS = """
import json, sys
from pathlib import Path
import tensorflow as tf
files = tf.data.Dataset.from_tensor_slices(sorted(str(p) for p in Path(sys.argv[1]).iterdir()))
records = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=4, deterministic=True)
total = [0, 0]
for record in records.as_numpy_iterator():
    total[0] += 1
    total[1] ^= int.from_bytes(record[:8], "little")
    assert record[8:] == record[:1] * (len(record) - 8)
print(json.dumps(total))
"""
WRITE_RECORDS = """
import sys, tensorflow as tf
number = 0
for shard in range(8):
    with tf.io.TFRecordWriter(f"{sys.argv[1]}/{shard:02}.tfrecord") as writer:
        for _ in range(200):
            number += 1
            head = number.to_bytes(8, "little")
            writer.write(head + head[:1] * (number * 37 % 20000))
"""
ARROW = """
import json, sys
import pyarrow.feather, pyarrow.parquet
from pathlib import Path
folder = Path(sys.argv[1])
parquet = pyarrow.parquet.read_table(folder / "t.parquet", columns=["b"])
feather = pyarrow.feather.read_table(folder / "t.arrow", memory_map=True)
rows = pyarrow.parquet.ParquetFile(folder / "t.parquet").read_row_group(3)
print(json.dumps([parquet["b"].to_pylist()[:: 997], feather["a"].to_pylist()[:: 997], rows["a"].to_pylist()[:50]]))
"""
WRITE_ARROW = """
import sys
import pyarrow, pyarrow.feather, pyarrow.parquet
table = pyarrow.table({"a": list(range(200_000)), "b": [f"row {i * 7919}" for i in range(200_000)]})
pyarrow.parquet.write_table(table, f"{sys.argv[1]}/t.parquet", row_group_size=20_000)
pyarrow.feather.write_feather(table, f"{sys.argv[1]}/t.arrow", compression="uncompressed")
"""
MEMMAP = """
import json, sys
import numpy as np
array = np.memmap(sys.argv[1] + "/array", dtype=np.int64, mode="r")
chance = np.random.default_rng(0)
print(json.dumps([len(array), int(array.sum()), array[chance.integers(0, len(array), 500)].tolist()]))
"""


def run(code: str, folder: Path) -> object:
    """What a program prints about a folder, as JSON."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code, folder], env=environ, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "null")


def same_through_a_mount(code: str, source: Path, tmp_path: Path) -> dict[str, float]:
    """Run a program on a folder and on its mount; both must say the same. Returns the mount's numbers."""
    report = tmp_path / "numbers.json"
    with mounted(source, tmp_path / "m", report=report):
        assert run(code, tmp_path / "m") == run(code, source)
    return json.loads(report.read_text())


def test_a_data_loader_with_4_forked_workers(tmp_path):
    """400 small files, shuffled anew in each of 2 epochs. Expected: every file in each; one GET a file in all."""
    pytest.importorskip("torch")
    source = tmp_path / "source"
    source.mkdir()
    for i in range(400):
        (source / f"{i:04}").write_bytes(content(20_000 + i, i))
    numbers = same_through_a_mount(LOADER, source, tmp_path)
    assert numbers["gets"] <= 1.05 * 400
    assert numbers["opens"] == 800


def test_tensorflows_records_interleaved(tmp_path):
    """8 shards of 200 records, 4 read at a time. Expected: every record, each byte fetched once."""
    pytest.importorskip("tensorflow")
    source = tmp_path / "source"
    source.mkdir()
    run(WRITE_RECORDS, source)
    numbers = same_through_a_mount(RECORDS, source, tmp_path)
    assert numbers["fetched_over_read"] < 1.01


def test_a_memory_map_of_numpy(tmp_path):
    """16 MiB of numbers, summed, then looked up at random."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "array").write_bytes(content(16 << 20, 3))
    same_through_a_mount(MEMMAP, source, tmp_path)


def test_arrow(tmp_path):
    """A column and a row group of Parquet; a memory-mapped Arrow file."""
    pytest.importorskip("pyarrow")
    source = tmp_path / "source"
    source.mkdir()
    run(WRITE_ARROW, source)
    same_through_a_mount(ARROW, source, tmp_path)
