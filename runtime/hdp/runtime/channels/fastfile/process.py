"""``python -m hdp.runtime.channels.fastfile.process --fd N --target PATH``: serves one channel until its mount is gone.

The agent has mounted on PATH and passes the other end as descriptor N. stdin has the `Task` and then nothing: its end
is the agent's. stdout has events. However this ends, and if the agent dies in the middle of the task, nothing stays
mounted.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from hdp.contract.errors import HdpError
from hdp.contract.uris import bucket_and_key
from hdp.runtime.channels.fastfile import mounting, wire
from hdp.runtime.channels.fastfile.budget import for_parts
from hdp.runtime.channels.fastfile.fs import FileSystem
from hdp.runtime.channels.fastfile.retry import RetryingStore
from hdp.runtime.channels.fastfile.server import Server
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import FolderStore, Store, StoreError
from hdp.runtime.channels.fastfile.tree import Tree
from hdp.runtime.channels.keys import Entry

log = logging.getLogger("hdp.runtime.channels.fastfile.process")

_NUMBERS_SECONDS = 0.5
_ORDER_SECONDS = 0.5
#: One line for an object in so long: a reader that tries again and again would fill the log.
_SAME_TROUBLE_SECONDS = 60.0
#: Python lets a thread compute for 5 ms before another gets its turn; answers are wanted sooner.
_SWITCH_SECONDS = 0.0005


class Events:
    """Writes events to the agent. Silent when it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[tuple[str, int | None], float] = {}

    def tell(self, kind: str, **more: object) -> None:
        """One event."""
        with self._lock, contextlib.suppress(OSError):
            os.write(1, wire.event(kind, **more).encode() + b"\n")

    def trouble(self, store: Store) -> Callable[[Entry, StoreError], None]:
        """What tells of an object that can't be read, once a while for each."""

        def tell(entry: Entry, error: StoreError) -> None:
            now, what = time.monotonic(), (entry.key, error.status)
            if now - self._told.get(what, -_SAME_TROUBLE_SECONDS) >= _SAME_TROUBLE_SECONDS:
                self._told[what] = now
                self.tell("trouble", text=f"{store.uri(entry)}: {error}")

        return tell


class _Handler(logging.Handler):
    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        self._events.tell("log", level=record.levelno, text=self.format(record))


def open_store(base: str) -> Store:
    """The store that keys relative to `base` are in. Raises ChannelError."""
    if base.startswith("s3://"):
        from hdp.runtime.channels.fastfile.s3store import open_bucket

        return open_bucket(bucket_and_key(base)[0])
    return FolderStore(Path(base))


def serve(fd: int, stdin: BinaryIO, events: Events) -> None:
    """Serve the task that `stdin` has first, until the mount is gone or `stdin` ends."""
    task = wire.Task.read(stdin)
    stats = Stats()
    store = RetryingStore(open_store(task.base), stats)
    left = for_parts(task.budget_bytes, len(task.entries))
    fs = FileSystem(Tree(task.entries), store, budget_bytes=left, stats=stats, on_error=events.trouble(store))
    _start(lambda: _tell_numbers(events, stats))
    _start(lambda: _leash(stdin, task, events, stats))
    if task.order_file is not None:
        order_file = Path(task.order_file)
        _start(lambda: _follow_order(order_file, fs))
    events.tell("ready")
    Server(fd, fs).run()
    store.end()
    fs.end()
    events.tell("numbers", values=stats.snapshot())


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


def _tell_numbers(events: Events, stats: Stats) -> None:
    """Now and then, so that the agent knows them, and that all is well, should this process be killed."""
    while True:
        time.sleep(_NUMBERS_SECONDS)
        events.tell("numbers", values=stats.snapshot())


def _leash(stdin: BinaryIO, task: wire.Task, events: Events, stats: Stats) -> None:
    while stdin.read(1):
        pass
    _unmount(Path(task.target))
    events.tell("numbers", values=stats.snapshot())
    # Somebody may still have a file open, which keeps the mount, out of sight, alive; nobody is to read from it.
    os._exit(0)


def _follow_order(path: Path, fs: FileSystem) -> None:
    """Pass on the order that the script writes to `path`, each time that it has written another one."""
    seen = None
    while True:
        with contextlib.suppress(OSError):
            status = path.stat()
            if (status.st_mtime_ns, status.st_size, status.st_ino) != seen:
                seen = status.st_mtime_ns, status.st_size, status.st_ino
                fs.hint(path.read_text(encoding="utf-8", errors="surrogateescape").splitlines())
        time.sleep(_ORDER_SECONDS)


def main() -> None:
    """Serve, and say what went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--target", type=Path, required=True)
    options = parser.parse_args()
    sys.setswitchinterval(_SWITCH_SECONDS)
    events = Events()
    logging.getLogger("hdp").handlers = [_Handler(events)]
    code = 0
    try:
        serve(options.fd, sys.stdin.buffer, events)
    except HdpError as exc:
        events.tell("refused", text=str(exc))
        code = 1
    except EOFError:
        code = 1  # nobody is left to be told
    finally:
        _unmount(options.target)
    os._exit(code)  # threads that still fetch are of no use


def _unmount(target: Path) -> None:
    mounting.unmount(target, subprocess.Popen)


if __name__ == "__main__":
    main()
