"""Lists an ordered key space with several requests at once. Knows no S3: pages come from a function.

A listing gives 1,000 keys a request and each request needs the last key of the one before, so one after the other a
million keys take minutes. Any key can be a starting point, though, so the space is cut into ranges: who has nothing to
do takes the upper half of a range that somebody else is still listing. Nobody knows where the keys are; halving by
text finds them in a few steps wherever they begin to differ, in folders or in one flat folder of numbered files.

A range is cut only once for each full page that it gave, so there are at most twice as many requests as pages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from hdp.runtime.channels.keys import Entry

#: Digits between which keys are halved first: printable ASCII. Others follow where a key has them.
_FIRST, _LAST = 0x20, 0x7E
_BEYOND = 0x110000
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True)
class Page:
    """One answer."""

    items: tuple[Entry, ...]
    """Sorted by key; without what isn't wanted."""
    last: str
    """The last key, wanted or not; empty in an empty page."""
    more: bool
    """Keys follow `last`."""


#: The page that follows a key; "" for the first page.
GetPage = Callable[[str], Page]


@dataclass
class _Range:
    """Keys from `after` on, it excluded, to `end`, it included. None: no end."""

    after: str
    end: str | None
    fresh: bool = False
    """It gave a full page since it was cut last."""


@dataclass
class _Work:
    prefix: str
    active: list[_Range]
    found: list[Entry] = field(default_factory=list)
    error: BaseException | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)


def list_ranges(page: GetPage, prefix: str, workers: int) -> list[Entry]:
    """All items, in any order. prefix: of all keys, it isn't cut in. Raises what `page` raises."""
    first = page("")
    if not first.more:
        return list(first.items)
    work = _Work(prefix, [_Range(first.last, None, fresh=True)], list(first.items))
    with ThreadPoolExecutor(workers, "hdp-list") as pool:
        pool.submit(_guarded, page, work, work.active[0])
        for _ in range(workers - 1):
            pool.submit(_guarded, page, work, None)
    if work.error is not None:
        raise work.error
    return work.found


def _guarded(page: GetPage, work: _Work, span: _Range | None) -> None:
    try:
        while (span := span or _take(work)) is not None:
            _list(page, work, span)
            span = None
    except BaseException as exc:
        with work.changed:
            work.error = work.error or exc
            work.changed.notify_all()


def _take(work: _Work) -> _Range | None:
    """Half of somebody's range; waits until there is one. None once all is listed."""
    with work.changed:
        while work.active and work.error is None:
            for span in work.active:
                if span.fresh and (half := _cut(work.prefix, span)) is not None:
                    work.active.append(half)
                    return half
            work.changed.wait()
    return None


def _cut(prefix: str, span: _Range) -> _Range | None:
    span.fresh = False
    middle = between(span.after[len(prefix) :], None if span.end is None else span.end[len(prefix) :])
    if middle is None:
        return None
    half = _Range(prefix + middle, span.end)
    span.end = half.after
    return half


def _list(page: GetPage, work: _Work, span: _Range) -> None:
    while work.error is None:
        answer = page(span.after)
        with work.changed:
            end = span.end
            work.found += answer.items if end is None else [i for i in answer.items if i.key <= end]
            span.after, span.fresh = answer.last, True
            through = not answer.more or (end is not None and answer.last >= end)
            if through:
                work.active.remove(span)
            work.changed.notify_all()
        if through:
            return


def between(low: str, high: str | None) -> str | None:
    """A text about half way between two others; None where there is none to be had. high None: no end."""
    for i in range(len(low) + 1):
        a = ord(low[i]) if i < len(low) else _FIRST - 1
        b = _end(a) if high is None else ord(high[i]) if i < len(high) else a
        if b - a > 1:
            middle = low[:i] + chr(_no_surrogate((a + b) // 2))
            return middle if low < middle and (high is None or middle < high) else None
        if b - a == 1:
            if i == len(low):
                return None
            high = None  # whatever follows low[: i + 1] is before the upper text
    return None


def _end(digit: int) -> int:
    return _LAST + 1 if digit < _LAST else _BEYOND


def _no_surrogate(digit: int) -> int:
    return _SURROGATES.start - 1 if digit in _SURROGATES else digit
