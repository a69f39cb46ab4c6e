"""moto's server in a process of its own: all that run in one process share their buckets and roles."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PROGRAM = """
import logging
import sys

from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address=sys.argv[1], port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def moto_server(address: str = "127.0.0.1") -> Iterator[str]:
    """URL of S3, STS, IAM and whatever else moto serves. It ends with its parent, however that ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, address], text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        host, port = process.stdout.readline().split()
        try:
            yield f"http://{host}:{port}"
        finally:
            process.stdin.close()
            process.wait(30)
