"""The command `hdp`: looks at jobs, follows, stops and cleans them, and says what this machine can do."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys

__all__ = ["main"]

#: As shells say it: 128 and the signal's number, of SIGINT and SIGPIPE.
_INTERRUPTED, _READER_LEFT = 130, 141


def main() -> None:
    """Entry point. What the user can put right is one message on standard error and exit status 1, no traceback."""
    try:
        sys.exit(_run())
    except KeyboardInterrupt:  # while modules were loaded
        sys.exit(_INTERRUPTED)


def _run() -> int:
    """The exit status."""
    from hdp.contract.errors import HdpError
    from hdp.estimator.cli.app import app
    from hdp.estimator.cli.group import Interrupted, ReaderLeft

    _write_anything()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except (ReaderLeft, BrokenPipeError):
        return _without_reader()
    except SystemExit as exc:
        return _without_reader() if _is_broken(1) else _status_of(exc)
    except Interrupted:
        if sys.stderr.isatty():
            sys.stderr.write("\n")
        return _INTERRUPTED
    except HdpError as exc:
        sys.stderr.write(f"hdp: {exc}\n")
        return 1
    return 0


def _without_reader() -> int:
    """What is still to be written goes nowhere, without a complaint at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return _READER_LEFT


def _is_broken(fd: int) -> bool:
    """Whether it is a pipe that nobody reads any more: Typer then ends by itself, with 1."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _status_of(error: SystemExit) -> int:
    return error.code if isinstance(error.code, int) else 0 if error.code is None else 1


def _write_anything() -> None:
    """Letters that the terminal's or pipe's encoding lacks are written as escapes: no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, io.UnsupportedOperation):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # what replaces it may lack it
