"""``zip(..., strict=True)`` for Python 3.9 too, which the images of older frameworks have."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

_NOTHING = object()


@overload
def zip_strict(a: Iterable[A], b: Iterable[B], /) -> Iterator[tuple[A, B]]: ...
@overload
def zip_strict(a: Iterable[A], b: Iterable[B], c: Iterable[C], /) -> Iterator[tuple[A, B, C]]: ...
@overload
def zip_strict(a: Iterable[A], b: Iterable[B], c: Iterable[C], d: Iterable[D], /) -> Iterator[tuple[A, B, C, D]]: ...
@overload
def zip_strict(*columns: Iterable[Any]) -> Iterator[tuple[Any, ...]]: ...
def zip_strict(*columns: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Tuples of one element of each. Raises ValueError, at the end, where one of `columns` is shorter."""
    if sys.version_info >= (3, 10):
        return zip(*columns, strict=True)  # novm
    return _checked(columns)


def _checked(columns: tuple[Iterable[Any], ...]) -> Iterator[tuple[Any, ...]]:
    """The same where `zip` can't say it."""
    for row in zip_longest(*columns, fillvalue=_NOTHING):
        if any(value is _NOTHING for value in row):
            raise ValueError(f"zip_strict: one of {len(columns)} columns is shorter than another")
        yield row
