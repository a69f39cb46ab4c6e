"""``python -m hdp.runtime.emulation.probe``: builds a network of one host, and says by what means, or why it can't.

Prints ``root`` or ``user`` (in a user namespace) and exits with 0; otherwise prints the reason and exits with 1.
"""

from __future__ import annotations

import sys

from hdp.runtime.emulation import EmulationError, Network


def main() -> int:
    """Do what the module says. Returns the exit status."""
    try:
        with Network(hosts=1, rate="1gbit") as network:
            print("user" if network.in_user_namespace else "root")
            return 0
    except EmulationError as exc:
        print(exc)
        return 1


if __name__ == "__main__":
    sys.exit(main())
