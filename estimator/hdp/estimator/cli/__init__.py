"""The command `hdp`: looks at jobs, follows, stops and cleans them, and says what this machine can do."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point. What the user can put right is one message on standard error and exit status 1, no traceback."""
    from hdp.contract.errors import HdpError
    from hdp.estimator.cli.app import app

    try:
        app()
    except HdpError as exc:
        sys.stderr.write(f"hdp: {exc}\n")
        sys.exit(1)
