"""The HTTP server: AWS JSON 1.1 on loopback, a thread a connection.

Signatures aren't checked, since nobody here has the caller's keys; instead a connection must come from a process of
this user or of root, and name a loopback host (a web page that a browser was lured to can't).
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hdp.contract.env import aws_region
from hdp.estimator.serve.api import Target, answer, target_of
from hdp.estimator.serve.calls import Serving
from hdp.estimator.serve.errors import ServiceError
from hdp.estimator.serve.peers import is_welcome

LOG = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")
_REGION = re.compile(r"Credential=[^/]+/\d{8}/([a-z0-9-]+)/")
#: A request of the service is at most so large, and so is ours.
MOST_BYTES = 4 * 1024 * 1024
IDLE_SECONDS = 60.0
CONTENT_TYPE = "application/x-amz-json-1.1"
#: What is asked all the time isn't logged.
_QUIET = ("Describe", "List", "Get", "Filter")


class Server(ThreadingHTTPServer):
    """Listens as soon as it is made; `serve_forever` answers."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, serving: Serving, port: int) -> None:
        """port: 0 is any that is free. Raises OSError where it is taken."""
        super().__init__((LOOPBACK, port), partial(_Handler, serving))

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"http://{LOOPBACK}:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hdp-serve", ""
    timeout = IDLE_SECONDS

    def __init__(self, serving: Serving, *args: Any) -> None:
        self._serving = serving
        self._welcome: bool | None = None
        super().__init__(*args)

    def do_POST(self) -> None:
        """One call."""
        target: Target | None = None
        try:
            body = self._body()
            self._serving.throttle.admit()
            target = target_of(self.headers.get("X-Amz-Target", ""))
            found, status = answer(self._serving, target, _arguments(body), self._region()), 200
        except ServiceError as exc:
            found, status = {"__type": exc.code, "message": exc.message}, exc.status
            LOG.info("%s: %s", target.operation if target else self.path, exc)
        except Exception as exc:
            found, status = {"__type": "InternalFailure", "message": f"{type(exc).__name__}: {exc}"}, 500
            LOG.exception("%s", target)
        else:
            if not target.operation.startswith(_QUIET):
                LOG.info("%s: done", target.operation)
        self._send(status, found)

    def _body(self) -> bytes:
        """The request's body. Raises ServiceError, and closes the connection, for one that isn't read."""
        length = self.headers.get("Content-Length", "")
        self.close_connection = True
        if not self._comes_from_us():
            raise ServiceError("AccessDeniedException", "only processes of this user on this machine may call", 403)
        if not length.isdigit():
            raise ServiceError("SerializationException", "expected a Content-Length")
        if int(length) > MOST_BYTES:
            raise ServiceError("RequestEntityTooLargeException", f"a request has {MOST_BYTES} bytes at most", 413)
        body = self.rfile.read(int(length))
        self.close_connection = self.headers.get("Connection", "").lower() == "close"
        return body

    def _comes_from_us(self) -> bool:
        if self._welcome is None:
            self._welcome = is_welcome(self.connection.getsockname(), self.client_address)
        return self._welcome and _HOSTS.fullmatch(self.headers.get("Host", "")) is not None

    def _region(self) -> str:
        found = _REGION.search(self.headers.get("Authorization", ""))
        return found[1] if found else aws_region() or "us-east-1"

    def _send(self, status: int, content: Mapping[str, Any]) -> None:
        body = json.dumps(content, default=_plain).encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-amzn-RequestId", secrets.token_hex(16))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (its name in the base class)
        """Nothing: calls are logged by their operation."""


def _arguments(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as exc:
        raise ServiceError("SerializationException", f"the body isn't JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ServiceError("SerializationException", f"the body is a {type(found).__name__}, expected an object")
    return found


def _plain(value: object) -> float | str:
    """Times are Unix seconds, to the millisecond."""
    return round(value.timestamp(), 3) if isinstance(value, datetime) else str(value)
