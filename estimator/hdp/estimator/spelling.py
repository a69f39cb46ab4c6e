"""The name that was probably meant. Standard library only: what loads nothing heavy says "did you mean" too."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` was probably meant to be, whatever its case; None without a near one."""
    by_fold = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), by_fold, n=1, cutoff=0.6) if isinstance(name, str) else []
    return by_fold[near[0]] if near else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest of `known`; empty without a near one."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""
