"""One reader, a process of its own: reads as told, prints what it took as JSON. `fastfile.py` starts it.

fastfile_reader.py sequential BLOCK_KIB FILE...     each file in a thread of its own
fastfile_reader.py direct BLOCK_KIB FILE...         the same past the page cache, by O_DIRECT
fastfile_reader.py files PROCESSES SEED FOLDER      every file of a folder; SEED 0: in order
fastfile_reader.py first FILE                       one byte
fastfile_reader.py client-large CONNECTIONS BUCKET KEY...   no mount: obstore alone
fastfile_reader.py client-small CONNECTIONS BUCKET
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_PART = 8 << 20


def sequential(block_kib: int, files: Sequence[str], flags: int = 0) -> dict[str, Any]:
    """Read files side by side, front to back."""
    totals = []

    def read(name: str) -> None:
        buffer, total = mmap.mmap(-1, block_kib << 10), 0  # O_DIRECT wants whole pages
        with os.fdopen(os.open(name, os.O_RDONLY | flags), "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
        totals.append(total)

    took = _time(lambda: _together(lambda name=name: read(name) for name in files))
    return {"bytes": sum(totals), **took}


def small_files(processes: int, seed: int, folder: str) -> dict[str, Any]:
    """Open, read and close every file, the work shared out in turn."""
    names = sorted(path.name for path in Path(folder).iterdir())
    if seed:
        random.Random(seed).shuffle(names)

    def read(mine: Sequence[str]) -> None:
        for name in mine:
            with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                file.read()

    def work() -> None:
        children = []
        for index in range(processes - 1):
            child = os.fork()
            if child == 0:
                read(names[index + 1 :: processes])
                os._exit(0)
            children.append(child)
        read(names[::processes])
        for child in children:
            os.waitpid(child, 0)

    return {"files": len(names), **_time(work)}


def first_byte(name: str) -> dict[str, Any]:
    """Open a file and get its first byte."""

    def read() -> None:
        with open(name, "rb", buffering=0) as file:  # noqa: PTH123
            file.read(1)

    return _time(read)


def client(connections: int, bucket: str, keys: Sequence[str]) -> dict[str, Any]:
    """Fetch objects with obstore, in ranges; without keys, every object of the bucket, whole."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        bucket, endpoint=os.environ["AWS_ENDPOINT_URL"], region="us-east-1", access_key_id="a", secret_access_key="b",
        client_options={"allow_http": True}, virtual_hosted_style_request=False,
    )  # fmt: skip
    if keys:
        sizes = [obstore.head(store, key)["size"] for key in keys]
        jobs = [(k, o, min(o + _PART, s)) for k, s in zip(keys, sizes, strict=True) for o in range(0, s, _PART)]
    else:
        jobs = [(o["path"], 0, o["size"]) for o in obstore.list(store).collect()]

    def fetch(job: tuple[str, int, int]) -> int:
        return len(memoryview(obstore.get(store, job[0], options={"range": (job[1], job[2])}).bytes()))

    with ThreadPoolExecutor(connections) as pool:
        before = sum(pool.map(fetch, jobs[:connections]))  # connections are made before the clock starts
        total = 0

        def work() -> None:
            nonlocal total
            total = sum(pool.map(fetch, jobs))

        took = _time(work)
    return {"bytes": total, "bytes_before": before, "files": len(jobs), **took}


def digest(files: Sequence[str]) -> dict[str, Any]:
    """SHA-256 of files, for the check before the clock."""
    found = {}
    for name in files:
        with Path(name).open("rb") as file:
            sha = hashlib.sha256()
            while block := file.read(1 << 20):
                sha.update(block)
        found[Path(name).name] = sha.hexdigest()
    return found


def _together(works: Any) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _time(work: Callable[[], object]) -> dict[str, float]:
    """How long it takes, and this process's processor time."""
    start, cpu = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}


def main(kind: str, *rest: str) -> None:
    """Do it, print it."""
    acts: dict[str, Callable[[], dict[str, Any]]] = {
        "sequential": lambda: sequential(int(rest[0]), rest[1:]),
        "direct": lambda: sequential(int(rest[0]), rest[1:], os.O_DIRECT),
        "files": lambda: small_files(int(rest[0]), int(rest[1]), rest[2]),
        "first": lambda: first_byte(rest[0]),
        "client-large": lambda: client(int(rest[0]), rest[1], rest[2:]),
        "client-small": lambda: client(int(rest[0]), rest[1], ()),
        "digest": lambda: digest(rest),
    }
    print(json.dumps(acts[kind]()))


if __name__ == "__main__":
    main(*sys.argv[1:])
