"""The first cause where every failure is collateral: whom the others' words accuse. Pure.

``PeerLost: rank 3 (algo-2), process 17, ended without leaving its groups`` and ``CollectiveTimeout: ... waited 30 s for
rank 3 (algo-2), which did not call it`` name their culprit. Such a rank has no failure of its own where it hangs, or
where it needed so long to end that it was ended by us.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hdp.contract.outcome import Failure, first_cause

#: As the collective library writes a rank.
_RANK = re.compile(r"\brank (\d+) \(([A-Za-z0-9-]+)\)")


def find_cause(failures: Sequence[Failure], exit_codes: Mapping[int, int | None]) -> Failure | None:
    """The earliest failure that isn't collateral; without one, the accused rank; without one, the earliest of all.

    exit_codes: of the ranks that have ended, as far as known; None: by a signal. A rank that ended well is no culprit:
    others who still call it have a fault of their own.
    """
    cause = first_cause(failures)
    if cause is None or not cause.collateral:
        return cause
    return next(_accused(failures, exit_codes), cause)


def _accused(failures: Sequence[Failure], exit_codes: Mapping[int, int | None]) -> Iterator[Failure]:
    """By the time of the accusation; a rank that has failed itself passes on what it was told."""
    failed = {failure.rank for failure in failures}
    for failure in sorted(failures, key=lambda f: (f.time, f.rank or 0)):
        for number, host in _RANK.findall(failure.exception):
            rank = int(number)
            if rank not in failed and exit_codes.get(rank) != 0:
                yield _as_told(failure, host, rank, exit_codes.get(rank))


def _as_told(by: Failure, host: str, rank: int, exit_code: int | None) -> Failure:
    who = f"rank {by.rank} on {by.host}" if by.rank is not None else f"host {by.host}"
    told = f"as {who} says: {by.exception}"
    return replace(
        by, host=host, rank=rank, exit_code=exit_code, signal=None, exception=told, traceback="", collateral=False
    )
