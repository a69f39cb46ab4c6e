"""``python -m hdp.runtime.launch.agent``: PID 1 of a training container, or a host of the local engine.

It reads the settings, sets up the log, and runs the `Host`. What can't even be read is reported like any failure.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

from hdp.contract import env as variables
from hdp.contract.errors import HdpError
from hdp.contract.files import Layout
from hdp.contract.outcome import HostReport
from hdp.runtime.environment import load_resources
from hdp.runtime.launch import linux
from hdp.runtime.launch.failure import host_failure
from hdp.runtime.launch.host import STOP_SIGNALS, Host
from hdp.runtime.launch.leaving import leave
from hdp.runtime.launch.logs import AgentHandler, LogWriter
from hdp.runtime.launch.server import SERVER_MODULE
from hdp.runtime.launch.timing import Timing
from hdp.runtime.pickup import with_secret
from hdp.runtime.settings import load_settings

log = logging.getLogger("hdp.runtime.launch.agent")  # as the main program, __name__ would be another


def main(server_module: str = SERVER_MODULE, timing: Timing | None = None) -> int:
    """Read the settings, set up the log, run the agent. Returns the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # kept until the agent can handle them
    writer = LogWriter(1, os.environ.get(variables.TIMESTAMPS.name) == "1", "?")
    set_up_log(writer)
    if os.environ.get(variables.DIE_WITH_PARENT.name) == "1":
        linux.die_with_parent()
    layout = Layout(Path(os.environ.get(variables.BASE_DIR.name) or variables.BASE_DIR.default))
    try:
        settings = with_secret(load_settings(os.environ))
        resources = load_resources(settings.layout)
        writer.host = resources.current_host
        linux.adopt_orphans()
        linux.pass_on_no_rights()
        host = Host(settings, resources, writer, server_module=server_module, timing=timing or Timing())
    except HdpError as exc:
        failure = host_failure(writer.host, exc, time.time())
        log.error("%s", failure.exception)
        leave(layout, HostReport(writer.host, failures=(failure,), first_cause=failure))
        return 1
    return host.run()


def set_up_log(writer: LogWriter) -> None:
    """Send this process's log records to the host's log."""
    root = logging.getLogger()
    root.handlers = [AgentHandler(writer)]
    root.setLevel(logging.WARNING)
    logging.getLogger("hdp").setLevel(logging.INFO)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Not sys.exit: a download that was left behind must not keep the host from ending.
    os._exit(code)
