"""How a rank ended -> `Failure`: exit status, the exception it left, the end of its stderr. Pure.

Only what a rank says through its error file is an exception. Its stderr is shown where it left none, and is never
searched for words: "ConnectionError: harmless" in a log is not a cause.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hdp.contract.errors import is_collateral
from hdp.contract.outcome import Failure
from hdp.contract.redact import redact_text

#: Lines of stderr that stand in for a traceback, and characters of a traceback that a report keeps.
STDERR_LINES = 10
TRACEBACK_CHARS = 16_000
#: Of a long message, in the one-line form.
_ONE_LINE_CHARS = 600
#: How torch passes on the exception of another process or thread: "Caught ValueError in DataLoader worker process 1."
_CAUGHT = re.compile(r"Caught \w+ (in [^\n]+?)\.\nOriginal Traceback \(most recent call last\):\n")
#: What stands before the frames in which an operation of TensorFlow was made.
_DEFINED = "defined at (most recent call last):\n"

_HINTS = {
    "SIGKILL": "SIGKILL from outside is often the kernel's out-of-memory killer: see the kernel's log; use a smaller "
    "batch or a host with more memory",
    "SIGBUS": "SIGBUS is often a full /dev/shm or a file that shrank while it was mapped",
    "SIGSEGV": "SIGSEGV is a fault in native code; the Python stack at that moment is in the log",
}


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def one_line(exc: BaseException) -> str:
    """``ValueError: boom``; of an exception that torch passes on, the original one and where it was raised.

    Of one from a graph of TensorFlow, what it says below the place where the operation was made.
    """
    try:
        text = str(exc)
    except Exception:
        text = "(its message can't be shown)"
    caught = list(_CAUGHT.finditer(text))
    if caught and (original := _last_exception(text[caught[-1].end() :])):
        return f"{_clip(original)} ({caught[-1][1]})"
    before, graph, stack = text.rpartition(_DEFINED)
    if graph and before.startswith("Graph execution error:"):
        text = _last_exception(stack) or text
    return f"{type(exc).__qualname__}: {_clip(text)}" if text.strip() else type(exc).__qualname__


def _last_exception(formatted: str) -> str:
    """What stands below the frames of a traceback; nothing where that can't be told."""
    last = formatted.rpartition("Traceback (most recent call last):\n")[2]
    lines = last.splitlines()
    below = next((i for i, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return "\n".join(lines[below:])


def _clip(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _ONE_LINE_CHARS else text[: _ONE_LINE_CHARS - 3] + "..."


def clip_traceback(text: str) -> str:
    """`text` in at most TRACEBACK_CHARS: a long message stands behind the frames, a long stack before the message."""
    half = TRACEBACK_CHARS // 2 - 10
    return text if len(text) <= TRACEBACK_CHARS else f"{text[:half]}\n...\n{text[-half:]}"


def split_status(returncode: int) -> tuple[int | None, str | None]:
    """subprocess' return code -> (exit code, signal); one of the two is None."""
    return (None, signal_name(-returncode)) if returncode < 0 else (returncode, None)


def read_error_file(path: Path) -> dict[str, Any] | None:
    """What a rank left about its exception; None if nothing readable."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("exception"), str) else None


def rank_failure(
    host: str,
    rank: int | None,
    returncode: int,
    *,
    error: dict[str, Any] | None,
    stderr: Sequence[str],
    ended: float,
    hidden: Collection[str] = (),
    silent_is_collateral: bool = False,
) -> Failure:
    """The failure of a rank that ended with `returncode` at Unix time `ended`. hidden: values that nobody may read.

    error: what the rank left about its exception. silent_is_collateral: a rank that left nothing was ended by its
    library, because another one was gone.
    """
    exit_code, by_signal = split_status(returncode)
    left = error or {}
    text = str(left.get("traceback", "")) or _without_exception(exit_code, by_signal, stderr)
    return Failure(
        host=host,
        rank=rank,
        time=float(left.get("time", ended)),
        exit_code=exit_code,
        signal=by_signal,
        exception=redact_text(str(left.get("exception", "")), hidden),
        traceback=clip_traceback(redact_text(text, hidden)),
        collateral=bool(left.get("collateral", silent_is_collateral and error is None and by_signal is None)),
    )


def host_failure(host: str, error: BaseException, now: float, traceback: str = "") -> Failure:
    """The failure of a host's agent itself."""
    what = f"{type(error).__name__}: {error}"
    return Failure(
        host, None, now, exception=redact_text(what), traceback=redact_text(traceback)[-TRACEBACK_CHARS:],
        collateral=is_collateral(error),
    )  # fmt: skip


def with_troubles(failure: Failure, troubles: Sequence[str]) -> Failure:
    """A rank's failure, with what it could not read: its own message has no more than "Input/output error"."""
    if failure.rank is None or not troubles:
        return failure
    more = f", and {len(troubles) - 1} more" if len(troubles) > 1 else ""
    what = f"could not be read: {redact_text(troubles[0])}{more}"
    return replace(failure, exception=f"{failure.exception} ({what})" if failure.exception else what)


def _without_exception(exit_code: int | None, by_signal: str | None, stderr: Sequence[str]) -> str:
    # 128 + n is how shells pass on the signal that ended their child.
    name = by_signal or (signal_name(exit_code - 128) if exit_code and 128 < exit_code < 160 else "")
    last = list(stderr)[-STDERR_LINES:]
    lines = ["last lines on stderr:", *last] if last else []
    lines += [_HINTS[name]] if name in _HINTS else []  # at the end: a summary that is cut keeps the end
    return "\n".join(lines)
