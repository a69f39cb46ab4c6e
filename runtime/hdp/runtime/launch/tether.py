"""``python -m hdp.runtime.launch.tether program args``: run a program that ends with the agent that started it.

The death signal survives execve, so the program needs to know nothing of it.
"""

from __future__ import annotations

import os
import sys

from hdp.runtime.launch.linux import die_with_agent


def main() -> None:
    """Tie this process to the agent, then become the program."""
    die_with_agent()
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
