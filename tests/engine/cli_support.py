"""`hdp` as people call it: an executable on a PATH, in pipes and on terminals of any width."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_support import ROOTS

#: Of Typer and of what looks for a shell; a test's own environment must not change what it sees.
_FOREIGN = ("NO_COLOR", "COLUMNS", "LINES", "HDP_HOME", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONIOENCODING")
SECONDS = 60.0
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|\(B|[@-Z\\-_])")


def executable(folder: Path) -> Path:
    """A script ``hdp`` in `folder`, as pip makes it."""
    file = folder / "hdp"
    file.write_text(f"#!{sys.executable}\nimport sys\nfrom hdp.estimator.cli import main\nsys.exit(main())\n")
    file.chmod(0o755)
    return file


def environment(bin_folder: Path, home: Path, **more: str) -> dict[str, str]:
    """Where `hdp` is found, and jobs are kept in `home`."""
    kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    path = f"{bin_folder}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "HDP_HOME": str(home), "PYTHONPATH": os.pathsep.join(ROOTS), "TERM": "xterm", **more}


@dataclass
class Terminal:
    """A pseudo-terminal with a program in it."""

    process: subprocess.Popen[bytes]
    fd: int
    seen: str = ""

    def read_until(self, pattern: str, seconds: float = SECONDS) -> str:
        """All that was written since the last call, once `pattern` is in it, colours apart. Raises AssertionError."""
        deadline, text = time.monotonic() + seconds, self.seen
        while not re.search(pattern, _ESCAPES.sub("", text)):
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} isn't in {text!r} after {seconds} s"
            chunk = self._read(left)
            assert chunk is not None, f"{pattern!r} isn't in {text!r}, and it has ended"
            text += chunk
        self.seen = ""
        return text

    def write(self, text: str) -> None:
        """As if it were typed."""
        os.write(self.fd, text.encode())

    def end(self) -> tuple[int, str]:
        """Exit code, and all that was written; waits for the end."""
        deadline = time.monotonic() + SECONDS
        while (chunk := self._read(deadline - time.monotonic())) is not None:
            self.seen += chunk
        return self.process.wait(max(1.0, deadline - time.monotonic())), self.seen

    def close(self) -> None:
        """Kill what is left."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10.0)
        os.close(self.fd)

    def _read(self, seconds: float) -> str | None:
        """None: everybody has closed it, or nothing came for so long."""
        if not select.select([self.fd], [], [], max(0.0, seconds))[0]:
            return None
        try:
            return os.read(self.fd, 1 << 16).decode(errors="replace") or None
        except OSError:
            return None


def in_terminal(command: Sequence[str], columns: int, environ: Mapping[str, str], cwd: Path | None = None) -> Terminal:
    """Start `command` in a terminal of its own; Ctrl-C typed there reaches it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(environ), cwd=cwd, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    return Terminal(process, ours)
