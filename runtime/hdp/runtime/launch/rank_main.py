"""``python -m hdp.runtime.launch.rank_main script args``: what a rank's process runs.

It runs the script as ``python script args`` would, ends with the agent, and leaves the script's uncaught exception in
HDP_ERROR_FILE, as JSON: {time, exception, traceback, collateral, code}; of ``sys.exit(3)`` only the code, which a rank
may take long to end with. Beside that file is a list of what the rank wrote below ``checkpoints/``
(`hdp.runtime.launch.writes`), so that the agent can say which rank has saved what.
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
from pathlib import Path
from types import ModuleType, TracebackType

from hdp.contract import env
from hdp.contract.errors import is_collateral
from hdp.contract.files import Layout, write_atomic
from hdp.runtime.launch.failure import one_line
from hdp.runtime.launch.linux import die_with_agent
from hdp.runtime.launch.writes import record_writes, writes_file


def main() -> None:
    """Run the script that the command line names."""
    script, argv = sys.argv[1], sys.argv[1:]
    die_with_agent()
    faulthandler.enable()
    error_file = os.environ.get(env.ERROR_FILE.name, "")
    layout = Layout(Path(os.environ.get(env.BASE_DIR.name, env.BASE_DIR.default)))
    if error_file:
        record_writes(layout.checkpoints, writes_file(Path(error_file)))
    if layout.overlay_packages.is_dir():
        # It is on PYTHONPATH already, but .pth files (editable installs) are read only for a site folder.
        site.addsitedir(str(layout.overlay_packages))
    sys.argv = argv
    pid = os.getpid()
    try:
        _run(script)
    except SystemExit as exc:
        if exc.code and os.getpid() == pid:
            _leave(error_file, exc, "", exc.code if isinstance(exc.code, int) else None)
        raise
    except BaseException as exc:
        exc.__traceback__ = own = _without_our_frames(exc.__traceback__)
        if os.getpid() == pid:  # a child that the script forked isn't the rank
            _leave(error_file, exc, "".join(traceback.format_exception(type(exc), exc, own)))
        sys.excepthook(type(exc), exc, own)
        sys.exit(1)


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


def _without_our_frames(tb: TracebackType | None) -> TracebackType | None:
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    return tb


def _leave(error_file: str, exc: BaseException, text: str, code: int | None = None) -> None:
    """code: of an exit that says no more than that."""
    if not error_file:
        return
    what = one_line(exc) if code is None else ""
    value = {"time": time.time(), "exception": what, "traceback": text, "collateral": is_collateral(exc), "code": code}
    try:
        write_atomic(Path(error_file), json.dumps(value))
    except OSError as error:
        print(f"hdp: {error_file} can't be written: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
