"""What a future's callback starts is matched by a tag, not by its place in the group's sequence.

A callback may start and await another operation (PowerSGD does). Callbacks of different operations run at the same
time, in another order on every rank, and torch runs one in the caller's thread if the future is complete when it is
added. So every future of ours has a *path*, the same on all ranks: the operation's number, and for the futures that
``then`` makes from it, the how-manieth ``then`` it was. While a callback runs, operations get the tag "path > count".

torch has no hook for that, and its futures can't be subclassed: ``then`` and ``add_done_callback`` of its future type
are wrapped once, and do what they always did for futures that aren't ours.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_LONG_TAG = 48


class _Context(threading.local):
    path = ""
    started = 0


_context = _Context()
#: Our futures: their path, and the callbacks they have had.
_paths: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def name(future: Any, path: str) -> None:
    """`future` is ours, and `path` names it on every rank."""
    _wrap_futures()
    _paths[future] = [path, 0]


def running() -> bool:
    """Whether a callback of one of our futures runs in this thread."""
    return bool(_context.path)


def tag() -> str | None:
    """The tag for an operation that is started now: None, unless a callback starts it. Never the same twice."""
    if not _context.path:
        return None
    _context.started += 1
    return _short(f"{_context.path}>{_context.started}")


def _short(text: str) -> str:
    # A callback of a callback of ...: shortened the same way on every rank.
    return text if len(text) < _LONG_TAG else hashlib.sha256(text.encode()).hexdigest()[:_LONG_TAG]


@contextmanager
def _running(path: str) -> Iterator[None]:
    before = (_context.path, _context.started)
    _context.path, _context.started = path, 0
    try:
        yield
    finally:
        _context.path, _context.started = before


@functools.cache
def _wrap_futures() -> None:
    for method in ("then", "add_done_callback"):
        setattr(torch._C.Future, method, _named(getattr(torch._C.Future, method)))


def _named(original: Callable[[Any, Callable[[Any], Any]], Any]) -> Callable[[Any, Callable[[Any], Any]], Any]:
    @functools.wraps(original)
    def method(self: Any, callback: Callable[[Any], Any]) -> Any:
        ours = _paths.get(self)
        if ours is None:
            return original(self, callback)
        ours[1] += 1
        path = _short(f"{ours[0]}.{ours[1]}")

        def run(future: Any) -> Any:
            with _running(path):
                return callback(future)

        made = original(self, run)
        if made is not None:
            _paths[made] = [path, 0]
        return made

    return method
