"""From bytes on a rank's pipes to lines in the host's log.

One `LineSplitter` a pipe turns bytes into lines and collapses ``\\r`` progress bars; one `LogWriter` a host puts time,
host and rank before each line and writes it in one piece.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from hdp.contract.redact import redact_text

#: A "line" longer than this is cut: it is binary or has no line ends, and must not fill the memory.
MAX_LINE_BYTES = 64 * 1024
#: A progress bar that never ends its line is shown at most this often.
PROGRESS_SECONDS = 5.0


class LineSplitter:
    """Splits a stream of bytes into lines of text, undecodable bytes replaced.

    ``\\r`` returns to the start of the line, as on a terminal: of the states of a progress bar only the last one before
    the line's end is kept. A bar that goes on and on is shown every `progress_seconds`.
    """

    def __init__(self, emit: Callable[[str], None], progress_seconds: float = PROGRESS_SECONDS) -> None:
        self._emit = emit
        self._interval = progress_seconds
        self._rest = b""
        self._shown: str | None = None  # the state of the current progress bar that was shown last
        self._shown_at: float | None = None  # None: the current line has had no \r

    def feed(self, data: bytes, now: float | None = None) -> None:
        """Take more bytes. now: monotonic seconds."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._end_line(line)
        self._bound()
        self._progress(time.monotonic() if now is None else now)

    def flush(self) -> None:
        """The stream, or its writer, has ended: give out what is left."""
        if self._rest:
            self._end_line(self._rest)
            self._rest = b""

    def _end_line(self, line: bytes) -> None:
        text = _text(_last_state(line))
        if self._shown_at is None or text != self._shown:
            self._emit(text)
        self._shown, self._shown_at = None, None

    def _bound(self) -> None:
        while len(self._rest) > MAX_LINE_BYTES:
            cut = MAX_LINE_BYTES
            while cut > MAX_LINE_BYTES - 4 and self._rest[cut] & 0xC0 == 0x80:
                cut -= 1  # not inside a UTF-8 sequence
            self._emit(_text(self._rest[:cut]))
            self._rest = self._rest[cut:]

    def _progress(self, now: float) -> None:
        if b"\r" not in self._rest:
            return
        state = _last_state(self._rest)
        # A \r stays in front, so that what the bar writes next is known to replace it; a last \r may be half of \r\n.
        self._rest = b"\r" + state + (b"\r" if self._rest.endswith(b"\r") else b"")
        if self._shown_at is None:
            self._shown_at = now
        elif now - self._shown_at >= self._interval and _text(state) not in ("", self._shown):
            self._shown, self._shown_at = _text(state), now
            self._emit(self._shown)


def _last_state(line: bytes) -> bytes:
    states = [s for s in line.split(b"\r") if s.strip()]
    return states[-1] if states and b"\r" in line else line.strip(b"\r")


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


class LogWriter:
    """Writes the host's log: ``<time> [<host>:<rank>] text``, each line in one write."""

    def __init__(self, fd: int, timestamps: bool, host: str = "") -> None:
        self._fd = fd
        self._timestamps = timestamps
        self.host = host
        self.lost_lines = 0

    def line(self, text: str, rank: int | None = None) -> None:
        """Write one line; rank None: the agent's own. A log that can't be written must not end the training."""
        who = self.host if rank is None else f"{self.host}:{rank}"
        self.raw(f"[{who}] {text}")

    def raw(self, line: str) -> None:
        """The same for a line that has its host and rank."""
        stamp = f"{time.time():.6f} " if self._timestamps else ""
        data = f"{stamp}{line}\n".encode("utf-8", "replace")
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            self.lost_lines += 1


class AgentHandler(logging.Handler):
    """Sends the runtime's own log records to the host's log, secrets that have a known shape hidden."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, each of its lines with the head."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        for text in redact_text(self.format(record)).splitlines() or [""]:
            self._writer.line(level + text)
