"""An AWS endpoint of JSON 1.1 that does as the test says: faults first, then scripts, then a real server behind it.

boto3 talks to it over real HTTP, so that statuses, broken connections and error bodies go through all of botocore.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Script = Callable[[dict[str, Any]], dict[str, Any]]


class Answer(Exception):
    """A script's refusal."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(code, message)
        self.code, self.message, self.status = code, message, status


@dataclass
class Fault:
    """What the next `times` calls of an operation meet. lost: the call is served, but its answer doesn't arrive."""

    times: int
    code: str = ""
    message: str = ""
    status: int = 400
    lost: bool = False


@dataclass
class Face:
    """The server's behaviour. Operations have the API's names, e.g. DescribeTrainingJob."""

    upstream: str = ""
    scripts: dict[str, Script] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    keys: list[str] = field(default_factory=list)
    """The access keys that requests were signed with."""
    url: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def inject(self, operation: str, fault: Fault) -> None:
        """Have the next calls of `operation` meet `fault`, behind those that it meets already."""
        self.faults.setdefault(operation, []).append(fault)

    def fault_for(self, operation: str) -> Fault | None:
        """The fault of this call, used up by one."""
        with self._lock:
            self.calls[operation] += 1
            waiting = [fault for fault in self.faults.get(operation, ()) if fault.times > 0]
            if waiting:
                waiting[0].times -= 1
            return waiting[0] if waiting else None

    def serve(self, operation: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of an answer."""
        if operation in self.scripts:
            try:
                return 200, json.dumps(self.scripts[operation](json.loads(body or b"{}"))).encode()
            except Answer as exc:
                return exc.status, error(exc.code, exc.message)
        return self._behind(body, headers)

    def _behind(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        where = urlsplit(self.upstream)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        try:
            kept = {k: v for k, v in headers.items() if k.lower() not in ("connection", "content-length")}
            connection.request("POST", "/", body, kept)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def error(code: str, message: str) -> bytes:
    """The body of an error."""
    return json.dumps({"__type": code, "message": message}).encode()


class _Handler(BaseHTTPRequestHandler):
    face: Face
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        self.face.keys.append(self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0])
        fault = self.face.fault_for(operation)
        if fault is None or fault.lost:
            status, answer = self.face.serve(operation, body, dict(self.headers.items()))
        else:
            status, answer = fault.status, error(fault.code, fault.message)
        if fault is not None and fault.lost:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def running(upstream: str = "") -> Iterator[Face]:
    """A face at a free port of loopback."""
    face = Face(upstream)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"face": face}))
    face.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield face
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
