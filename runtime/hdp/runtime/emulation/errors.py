"""The exception of emulated networks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from hdp.contract.errors import HdpError


class EmulationError(HdpError):
    """This machine can't emulate hosts, or no longer does: a privilege, a kernel feature or the keeper is missing."""


@contextlib.contextmanager
def step(doing: str, needs: str) -> Iterator[None]:
    """Turn what the kernel refuses inside the block into an EmulationError.

    doing: the step, for "could not {doing}". needs: what would have to be there.
    """
    try:
        yield
    except OSError as exc:
        raise EmulationError(f"could not {doing}: {exc.strerror or exc}. It needs {needs}") from exc
    except Exception as exc:
        # pyroute2's NetlinkError is not an OSError, and pyroute2 is imported by the keeper only.
        code = getattr(exc, "code", None)
        if not isinstance(code, int):
            raise
        raise EmulationError(f"could not {doing}: {os.strerror(code)}. It needs {needs}") from exc
