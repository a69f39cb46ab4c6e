"""``python -I -S enter.py NAMESPACES PARENT TETHER PROGRAM argv...``: enter a host, then become a program.

NAMESPACES: ``kind=descriptor,...`` in the order in which to join them. PARENT: the process that must be our parent.
TETHER: 1 to be killed when the thread that started us ends. PROGRAM: the file to execute, and its whole argv.

It stands alone (no import but the standard library's, no ``site``), so that it costs some 10 ms and no environment
variable of the program touches it.
"""

import ctypes
import os
import signal
import sys

_NAMESPACES = {"user": 0x10000000, "net": 0x40000000, "uts": 0x04000000, "mnt": 0x00020000}
_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127


def main(namespaces: str, parent: str, tether: str, program: str, *argv: str) -> None:
    """Do what the module says. Never returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = os.getcwd()  # noqa: PTH109  (pathlib is slow to import)
    for kind, descriptor in (pair.split("=") for pair in namespaces.split(",")):
        _check(libc.setns(int(descriptor), _NAMESPACES[kind]), f"enter the host's {kind} namespace")
        os.close(int(descriptor))
    os.chdir(folder)
    # The kernel forgets the death signal when a process enters a user namespace, so it is set after that.
    if tether == "1":
        _check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "set the death signal")
    if os.getppid() != int(parent):
        sys.exit("the network's creator ended before this process had started")
    # What Python ignores for itself must not stay ignored in the program.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, argv, _environ())
    except OSError as exc:
        print(f"{program}: {exc.strerror}", file=sys.stderr)
        sys.exit(_NOT_STARTED)


def _environ() -> dict[bytes, bytes]:
    """The environment as we were given it: Python adds ``LC_CTYPE`` to its own in the C locale."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
        return {name: value for name, _, value in pairs}


def _check(result: int, what: str) -> None:
    if result != 0:
        sys.exit(f"could not {what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
