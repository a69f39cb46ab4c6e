"""``python -m hdp.runtime.launch.rank_main script args``: what a rank's process runs.

It runs the script as ``python script args`` would, ends with the agent, and leaves the script's uncaught exception in
HDP_ERROR_FILE, as JSON: {time, exception, traceback, collateral}. Beside that file it keeps a list of what the rank
opened for writing below ``checkpoints/``, so that the agent can say which rank has saved what.
"""

from __future__ import annotations

import builtins
import faulthandler
import io
import json
import os
import site
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from hdp.contract import env
from hdp.contract.files import Layout, write_atomic
from hdp.runtime.launch.linux import die_with_agent

#: Of a long message, in the one-line form. The whole of it is in the traceback.
_ONE_LINE_CHARS = 600
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
_TARGETS = {"os.rename": 1, "os.link": 1}


def main() -> None:
    """Run the script that the command line names."""
    script, argv = sys.argv[1], sys.argv[1:]
    die_with_agent()
    faulthandler.enable()
    error_file = os.environ.get(env.ERROR_FILE.name, "")
    layout = Layout(Path(os.environ.get(env.BASE_DIR.name, env.BASE_DIR.default)))
    if error_file:
        sys.addaudithook(_recorder(str(layout.checkpoints), writes_file(Path(error_file))))
    _add_overlay(layout.root)
    sys.argv = argv
    pid = os.getpid()
    try:
        _run(script)
    except SystemExit as exc:
        if isinstance(exc.code, str) and os.getpid() == pid:
            _leave(error_file, exc, "")
        raise
    except BaseException as exc:
        exc.__traceback__ = own = _without_our_frames(exc.__traceback__)
        if os.getpid() == pid:  # a child that the script forked isn't the rank
            _leave(error_file, exc, "".join(traceback.format_exception(type(exc), exc, own)))
        sys.excepthook(type(exc), exc, own)
        sys.exit(1)


def writes_file(error_file: Path) -> Path:
    """Where the rank with this error file lists its writes below ``checkpoints/``: JSON lines [time, path]."""
    return error_file.with_suffix(".writes")


def one_line(exc: BaseException) -> str:
    """``ValueError: boom``."""
    try:
        text = " ".join(str(exc).split())
    except Exception:
        text = "(its message can't be shown)"
    if len(text) > _ONE_LINE_CHARS:
        text = text[: _ONE_LINE_CHARS - 3] + "..."
    return f"{type(exc).__qualname__}: {text}" if text else type(exc).__qualname__


def _run(script: str) -> None:
    """Run `script` as ``__main__``, for good: threads, exit handlers and pickle must find it there."""
    folder = str(Path(script).resolve().parent)
    if sys.path and Path(sys.path[0] or ".").resolve() == Path.cwd():
        sys.path[0] = folder  # where `python -m` has put the working folder
    else:
        sys.path.insert(0, folder)
    module = ModuleType("__main__")
    module.__dict__.update(__file__=str(Path(script).absolute()), __builtins__=builtins, __spec__=None, __cached__=None)
    sys.modules["__main__"] = module
    with io.open_code(str(Path(script).absolute())) as f:
        code = compile(f.read(), str(Path(script).absolute()), "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _add_overlay(root: Path) -> None:
    """The overlay is on PYTHONPATH already; its ``.pth`` files (editable installs) are read only for a site folder."""
    folder = root / "overlay" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    if folder.is_dir():
        site.addsitedir(str(folder))


def _without_our_frames(tb: TracebackType | None) -> TracebackType | None:
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    return tb


def _leave(error_file: str, exc: BaseException, text: str) -> None:
    if not error_file:
        return
    collateral = bool(getattr(exc, "collateral", False)) or _says_peer_closed(exc)
    value = {"time": time.time(), "exception": one_line(exc), "traceback": text, "collateral": collateral}
    try:
        write_atomic(Path(error_file), json.dumps(value))
    except OSError as error:
        print(f"hdp: {error_file} can't be written: {error}", file=sys.stderr)


def _says_peer_closed(exc: BaseException) -> bool:
    """Whether another collective library says that a peer is gone. Its types don't tell, so its own words have to."""
    text = str(exc)
    gloo = "gloo/transport" in text and ("closed by peer" in text or "reset by peer" in text)
    nccl = "NCCL" in text and "remote process exited" in text
    return isinstance(exc, RuntimeError) and (gloo or nccl)


def _recorder(folder: str, side_file: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that lists what is opened for writing, or renamed to, below `folder`."""
    # An engine may link the folder to one that all hosts share; a script may use either name.
    inside = (folder.rstrip("/") + "/", os.path.realpath(folder).rstrip("/") + "/")
    fd = os.open(side_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(flags & _WRITE_FLAGS)
        elif event in _TARGETS:
            path, writes = args[_TARGETS[event]], True
        else:
            return
        if writes and isinstance(path, (str, bytes, os.PathLike)):
            name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 (links stay: resolving would open files)
            if name.startswith(inside):
                os.write(fd, json.dumps([time.time(), name]).encode() + b"\n")

    return hook


if __name__ == "__main__":
    main()
