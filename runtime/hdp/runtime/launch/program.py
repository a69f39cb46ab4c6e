"""``python -m hdp.runtime.launch.program PROGRAM [ARGUMENT...]``: a host that runs a program as a container would.

What a managed service does around a container, for an engine that emulates one: the channels are there before the
program starts, its lines are the host's log, SIGTERM reaches it, its exit code and ``output/failure`` say how it ended.
The program isn't ours: it may be anybody's, and hosts don't meet.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from subprocess import DEVNULL, PIPE, STDOUT

from hdp.contract import env as variables
from hdp.contract.errors import HdpError, LaunchError
from hdp.contract.files import FAILURE_MAX_CHARS
from hdp.contract.outcome import Failure, HostReport, RankOutcome
from hdp.contract.redact import redact_text
from hdp.runtime.channels.provide import Channels
from hdp.runtime.environment import load, load_resources
from hdp.runtime.launch import linux
from hdp.runtime.launch.agent import set_up_log
from hdp.runtime.launch.failure import STDERR_LINES, host_failure, split_status
from hdp.runtime.launch.leaving import leave, leave_mark, make_run_folder
from hdp.runtime.launch.logs import LineSplitter, LogWriter
from hdp.runtime.launch.prepare import make_folders
from hdp.runtime.settings import Settings, load_settings

log = logging.getLogger("hdp.runtime.launch.program")  # as the main program, __name__ would be another
_CHUNK_BYTES = 64 * 1024
#: What our own agent, if that is what the program is, has put before its lines: the host, maybe a rank.
_HEAD = re.compile(r"\[([A-Za-z0-9-]+)(?::\d+)?\] ")


class Program:
    """One host's program, from its channels to its report."""

    def __init__(self, settings: Settings, writer: LogWriter, host: str) -> None:
        self._settings = settings
        self._layout = settings.layout
        self._writer = writer
        self._host = host
        self._children = linux.Children()
        self._stopped = threading.Event()
        self._pid: int | None = None
        self._last: deque[str] = deque(maxlen=STDERR_LINES)

    def run(self, command: Sequence[str]) -> int:
        """Provide the channels, run `command` to its end, leave the report. Returns the exit code."""
        folder = make_run_folder(self._settings.run_dir)
        channels: Channels | None = None
        code, failure = 1, None
        try:
            make_folders(self._layout)
            channels = Channels(load(self._layout, os.environ), self._stopped.is_set, self._children)
            channels.start()
            if not self._stopped.is_set():
                # A program that is an agent of ours must find its channels as a service leaves them.
                self._layout.channel_sources.unlink(missing_ok=True)
                leave_mark(self._layout)
                code = self._to_the_end(command)
                failure = self._how(code) if code != 0 else None
        except Exception as exc:
            text = "" if isinstance(exc, (HdpError, OSError)) else traceback.format_exc()
            failure = host_failure(self._host, exc, time.time(), text)
            log.error("%s", failure.exception)
        finally:
            if channels is not None:
                channels.stop()
            self._children.kill_all()
            shutil.rmtree(folder, ignore_errors=True)
        self._leave(code, failure)
        return 0 if failure is None and not self._stopped.is_set() else abs(code)

    def stop(self) -> None:
        """SIGTERM for the program, and its time to end."""
        if not self._stopped.is_set():
            log.info("told to stop")
            self._stopped.set()
        if self._pid is not None:
            linux.send_signal(self._pid, signal.SIGTERM)
            killer = threading.Timer(self._settings.stop_timeout.total_seconds(), linux.kill_group, [self._pid])
            killer.daemon = True
            killer.start()

    def _to_the_end(self, command: Sequence[str]) -> int:
        if shutil.which(command[0]) is None:
            raise LaunchError(f"ContainerEntrypoint names {command[0]!r}, which isn't on this machine; no image is run")
        log.info("starting %s", " ".join(command))
        ours = {variables.TIMESTAMPS.name, variables.RUN_DIR.name}
        environ = {name: value for name, value in os.environ.items() if name not in ours}
        process = self._children.spawn_tethered(
            command, environ, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        self._pid = process.pid
        if self._stopped.is_set():
            self.stop()
        assert process.stdout is not None
        reader = threading.Thread(target=self._read, args=(process.stdout.fileno(),), daemon=True)
        reader.start()
        code = self._children.wait(process)
        self._pid = None
        self._children.kill_all()
        reader.join(5.0)
        return code

    def _read(self, fd: int) -> None:
        splitter = LineSplitter(self._line)
        while data := os.read(fd, _CHUNK_BYTES):
            splitter.feed(data)
        splitter.flush()

    def _line(self, text: str) -> None:
        self._last.append(text)
        head = _HEAD.match(text)
        if head and head[1] == self._host:  # others write "[INFO] ..."
            self._writer.raw(text)
        else:
            self._writer.line(text)

    def _how(self, code: int) -> Failure:
        """The failure of a program that ended so: what it left in the failure file, else its last lines."""
        left = self._layout.failure.read_text("utf-8", "replace").strip() if self._layout.failure.exists() else ""
        exit_code, name = split_status(code)
        text = left[:FAILURE_MAX_CHARS] or "\n".join(self._last)
        return Failure(self._host, None, time.time(), exit_code, name, traceback=redact_text(text))

    def _leave(self, code: int, failure: Failure | None) -> None:
        if self._layout.report.exists():  # the program is an agent of ours, and knows better
            return
        exit_code, name = split_status(code)
        report = HostReport(
            host=self._host,
            ranks=(RankOutcome(None, exit_code, name),),
            failures=(failure,) if failure else (),
            first_cause=failure,
            stopped=self._stopped.is_set(),
        )
        leave(self._layout, report)


def main(command: Sequence[str]) -> int:
    """Read the settings, set up the log, run the program. Returns the exit code."""
    writer = LogWriter(1, os.environ.get(variables.TIMESTAMPS.name) == "1", "?")
    set_up_log(writer)
    if os.environ.get(variables.DIE_WITH_PARENT.name) == "1":
        linux.die_with_parent()
    settings = load_settings(os.environ)
    writer.host = load_resources(settings.layout).current_host
    linux.adopt_orphans()
    running = Program(settings, writer, writer.host)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    return running.run(command)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Not sys.exit: a download that was left behind must not keep the host from ending.
    os._exit(code)
