"""`log`: checks what the script says, and writes it."""

from __future__ import annotations

import contextlib
import operator
import os
import select
import sys
import time
from collections.abc import Mapping
from typing import Any

from hdp.contract.errors import InvalidMetric
from hdp.contract.metrics import AMOUNTS, LONGEST_NAME, MOST, Record, as_text, encode, is_amount, is_name

#: What only a job's processes have.
_IN_A_JOB = ("SM_CURRENT_HOST", "HDP_LAUNCHER", "TRAINING_JOB_NAME")
#: Where a launcher leaves the rank; the first that is there counts.
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK")
#: An agent cuts lines of more than 64 KiB, and a name may have four bytes a character.
_MOST_A_LINE = 50


def log(
    *, step: Any = None, steps: Any = None, loss: Any = None, samples: Any = None, seconds: Any = None, **more: Any
) -> None:
    """Say numbers of this rank, of one step or of none.

    Numbers are Python's, or NumPy's, PyTorch's or TensorFlow's of one element; nan and infinities are numbers, too.
    step: whole, from 0 to 2**63 - 1. Of calls with the same step, the first is when the step ended.
    steps: how many there will be in all, so that whoever follows the job sees how far it is, and the time left.
    samples: how many this step took. What the ranks say is added up, so a rank that speaks for all gives the sum.
    seconds: what this step took; without it, the time since the call for the step before, shared among the steps
    since then.
    more: any other metrics, by name.

    Raises InvalidMetric (a ValueError), and then nothing is written.
    """
    named = {"loss": loss, "samples": samples, "seconds": seconds}
    values = {name: _number(name, value) for name, value in named.items() if value is not None}
    for name, value in more.items():
        values[_name(name)] = _number(name, value)
    for name in AMOUNTS:
        if name in values and not is_amount(values[name]):
            raise InvalidMetric(f"{name}={values[name]!r}; expected 0 or more, and an end to it")
    at = None if step is None else _step(step)
    total = None if steps is None else _steps(steps, at)
    if at is None and not values:
        raise InvalidMetric("metrics.log() was given nothing; give it step=, loss= or any other number by its name")
    _write(at, total, values)


def _write(step: int | None, steps: int | None, values: Mapping[str, float]) -> None:
    environ = os.environ
    if not any(name in environ for name in _IN_A_JOB):
        sys.stdout.write(as_text(step, values, steps) + "\n")
        sys.stdout.flush()
        return
    rank = next((environ[name] for name in _RANK if name in environ), "")
    host, number = environ.get("SM_CURRENT_HOST"), int(rank) if rank.isdigit() else None
    now, clock, names = time.time(), time.monotonic(), list(values)
    for begin in range(0, max(1, len(names)), _MOST_A_LINE):
        part = {name: values[name] for name in names[begin : begin + _MOST_A_LINE]}
        _write_line(encode(Record(now, clock, part, step, host, number, steps)))


def _write_line(text: str) -> None:
    """Write to the process's own output, wherever `sys.stdout` leads by now, behind what was printed before."""
    # RuntimeError: a signal's handler says metrics while its script flushes. The others: it is None, closed or gone.
    with contextlib.suppress(AttributeError, ValueError, OSError, RuntimeError):
        sys.stdout.flush()
    data = text.encode() + b"\n"
    with contextlib.suppress(OSError):  # an output that is gone must not end the training: the agent does, if need be
        while data:
            data = data[_write_some(data) :]


def _write_some(data: bytes) -> int:
    try:
        return os.write(1, data)
    except BlockingIOError:  # another process, which shares the pipe, has told it not to wait
        select.select([], [1], [])
        return 0


def _name(name: str) -> str:
    if is_name(name):
        return name
    raise InvalidMetric(f"{name!r} is no name of a metric; expected 1 to {LONGEST_NAME} printable characters")


def _steps(steps: Any, step: int | None) -> int:
    whole = _whole(steps)
    if step is None:
        raise InvalidMetric(f"steps={_shown(steps)} says how many there will be in all: give it with step=")
    if whole is None or not max(1, step) <= whole <= MOST:
        raise InvalidMetric(f"steps={_shown(steps)} in all, at step={step}; expected a whole number, not below step")
    return whole


def _step(step: Any) -> int:
    whole = _whole(step)
    if whole is None or not 0 <= whole <= MOST:
        raise InvalidMetric(f"step={_shown(step)}; expected a whole number from 0 to 2**63 - 1 ({MOST})")
    return whole


def _whole(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError):
        return None


def _number(name: str, value: Any) -> float:
    if type(value) is float:
        return value
    try:
        # item() first: PyTorch warns where float() meets a tensor that has a gradient.
        plain = value.item() if hasattr(value, "item") else value
        if not isinstance(plain, (str, bytes, bool)):
            return float(plain)
    except Exception:  # the type is the user's, and so are its errors
        pass
    raise InvalidMetric(f"{name}={_shown(value)} is no number; expected an int, a float, or an array of one element")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as exc:  # the type is the user's; and Python doesn't write numbers of thousands of digits
        text = f"<no text: {type(exc).__name__}>"
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
