"""Pipe mode: a FIFO for each epoch, ``<channel>_0``, ``<channel>_1``, and so on; the script reads one after the other.

Each epoch is a thread. It waits until somebody opens its FIFO, writes, removes the FIFO and closes it. As soon as a
FIFO is opened, that of the epoch after the next is made: so a script always finds the next, if it opens it at once.

Nothing waits for ever: a reader who leaves early ends his epoch; one who comes again finds the FIFO gone; a source that
can't be read is the channel's failure, and then the FIFO stays open without an end, since an end would look like the
end of the data.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hdp.contract.errors import ChannelError
from hdp.runtime.channels.readahead import Buffer

log = logging.getLogger(__name__)

#: How often a FIFO without a reader is looked at, and how soon a thread notices that it shall end.
_LOOK_SECONDS = 0.02
#: Room in a FIFO; the most that a process without privileges may ask for.
_FIFO_BYTES = 1 << 20
#: fcntl.F_SETPIPE_SZ, which Python 3.9 doesn't have.
_SETPIPE_SZ = 1031

#: For threads that wait for S3 when the channel is stopped. They are daemons.
_PATIENCE_SECONDS = 2.0

#: The bytes of an epoch. Raises ChannelError.
Contents = Callable[[int], Iterator[Buffer]]


class PipeChannel:
    """The FIFOs of one channel. See `provide.Live`."""

    def __init__(self, name: str, target: Path, contents: Contents, end: Callable[[], None]) -> None:
        """target: the channel's path, to which ``_0`` is added. end: called once, when nothing is read any more."""
        self._name = name
        self._target = target
        self._contents = contents
        self._end = end
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._failure: str | None = None
        self._left_open: list[int] = []
        self._made = 0
        self._read_bytes = self._epochs = 0
        self._waited_seconds = 0.0
        self._first_byte_seconds: float | None = None

    def start(self) -> None:
        """Make the first FIFOs. Raises OSError."""
        self._make(2)

    def failure(self) -> str | None:
        """Why the epochs can't go on."""
        return self._failure

    def numbers(self) -> dict[str, int | float | None]:
        """What was counted so far, named as in `ChannelStatistics`."""
        with self._lock:
            return {
                "read_bytes": self._read_bytes,
                "epochs": self._epochs,
                "waited_seconds": round(self._waited_seconds, 6),
                "first_byte_seconds": self._first_byte_seconds,
            }

    def stop(self) -> None:
        """End all threads and remove the FIFOs. What still waits for S3 after some time is left behind."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._end()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (thread := self._running()) is not None and time.monotonic() < deadline:
            thread.join(deadline - time.monotonic())
        with self._lock:
            for fd in self._left_open:
                os.close(fd)
            self._left_open.clear()
        for path in fifos(self._target):
            if path.is_fifo():
                path.unlink(missing_ok=True)

    def _running(self) -> threading.Thread | None:
        with self._lock:
            return next((t for t in self._threads if t.is_alive()), None)

    def _make(self, count: int) -> None:
        """See to it that the FIFOs of the first `count` epochs have been made."""
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()]
            for epoch in range(self._made, count):
                path = self._target.with_name(f"{self._target.name}_{epoch}")
                path.parent.mkdir(parents=True, exist_ok=True)
                os.mkfifo(path, 0o644)
                name = f"hdp-pipe-{path.name}"
                self._threads.append(threading.Thread(target=self._serve, args=(epoch, path), name=name, daemon=True))
                self._threads[-1].start()
                self._made = epoch + 1

    def _serve(self, epoch: int, path: Path) -> None:
        fd = None
        try:
            fd = self._wait_for_reader(path)
            if fd is not None:
                self._make(epoch + 3)
                self._write(epoch, fd)
        except Exception as exc:
            if not self._stopped.is_set():
                self._fail(exc, fd)
                return
        # Removed before it is closed: who opens it in between has an end, who comes later finds none.
        path.unlink(missing_ok=True)
        if fd is not None:
            os.close(fd)

    def _fail(self, error: Exception, fd: int | None) -> None:
        known = isinstance(error, (ChannelError, OSError))
        if not known:
            log.error("channel %s can't be written", self._name, exc_info=error)
        with self._lock:
            self._failure = self._failure or (str(error) if known else f"{type(error).__name__}: {error}")
            self._left_open += [fd] if fd is not None else []

    def _wait_for_reader(self, path: Path) -> int | None:
        while not self._stopped.is_set():
            try:
                return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as exc:
                if exc.errno != errno.ENXIO:
                    raise
            self._stopped.wait(_LOOK_SECONDS)
        return None

    def _write(self, epoch: int, fd: int) -> None:
        _widen(fd)
        contents, written, start = self._contents(epoch), 0, time.monotonic()
        self._count(epochs=1)
        asked = start
        try:
            for data in contents:
                self._count(waited=time.monotonic() - asked)
                count = self._write_all(fd, data, start)
                written += count
                if self._stopped.is_set():
                    return
                asked = time.monotonic()
        except BrokenPipeError:
            log.info("channel %s: the reader left epoch %d after %.1f MB", self._name, epoch, written / 1e6)
            return
        finally:
            close = getattr(contents, "close", None)
            if close is not None:
                close()
        seconds = max(time.monotonic() - start, 1e-3)
        log.info(
            "channel %s: epoch %d, %.1f MB, %.1f s, %.1f MB/s",
            self._name, epoch, written / 1e6, seconds, written / 1e6 / seconds,
        )  # fmt: skip

    def _count(self, epochs: int = 0, waited: float = 0.0) -> None:
        with self._lock:
            self._epochs += epochs
            self._waited_seconds += waited

    def _wrote(self, count: int, opened: float) -> None:
        with self._lock:
            if self._first_byte_seconds is None:
                self._first_byte_seconds = time.monotonic() - opened
            self._read_bytes += count

    def _write_all(self, fd: int, data: Buffer, opened: float) -> int:
        """Returns the bytes written, all of them unless the channel is stopped. Raises BrokenPipeError."""
        view, done = memoryview(data), 0
        while done < len(view) and not self._stopped.is_set():
            try:
                count = os.write(fd, view[done:])
            except BlockingIOError:
                _wait_for_room(fd)
            else:
                done += count
                self._wrote(count, opened)
        return done


def fifos(target: Path) -> list[Path]:
    """What is where the channel's FIFOs would be."""
    number = re.compile(re.escape(target.name) + r"_\d+")
    return sorted(p for p in target.parent.glob("*") if number.fullmatch(p.name))


def _widen(fd: int) -> None:
    try:
        fcntl.fcntl(fd, _SETPIPE_SZ, _FIFO_BYTES)
    except OSError:
        return  # slower, no more: this user has had his share of memory for pipes


def _wait_for_room(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll(_LOOK_SECONDS * 1000)
