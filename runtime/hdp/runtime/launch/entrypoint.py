"""``python -m hdp.runtime.launch.entrypoint``: what our images start with, as PID 1.

``train``, which SageMaker gives every training image, or no argument at all runs the agent. Anything else takes this
process's place: ``docker run IMAGE python -V``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

TRAIN = "train"
#: As shells have it.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


def main(argv: Sequence[str]) -> int:
    """Run the agent or, in its place, another program. Returns the exit code."""
    if argv and argv[0] != TRAIN:
        return _execute(argv)
    # PID 1 never gets a signal that it doesn't handle, unless it is blocked; importing the agent takes half a second.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    from hdp.runtime.launch import agent

    return agent.main()


def _execute(argv: Sequence[str]) -> int:
    try:
        os.execvp(argv[0], list(argv))
    except FileNotFoundError:
        print(f"hdp: this image has no program {argv[0]!r}; `{TRAIN}` runs a host of a job", file=sys.stderr)
        return _NOT_FOUND
    except OSError as exc:
        print(f"hdp: {argv[0]} can't be run: {exc.strerror}", file=sys.stderr)
        return _NOT_EXECUTABLE


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: a download that was left behind must not keep the host from ending
