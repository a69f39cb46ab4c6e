"""An S3 that answers as the test says: real HTTP, statuses and broken answers that moto doesn't have."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: What to do with the n-th GET of a key: None, a status with a body, "cut" (half of the answer), "hang" (no answer).
Script = Callable[[str, int, "ScriptedS3"], "tuple[int, str] | str | None"]


class ScriptedS3:
    """One server with its objects."""

    def __init__(self, objects: dict[str, bytes], script: Script) -> None:
        self.objects = objects
        self.script = script
        self.etag: str | None = '"e"'
        self.modified: str | None = "Tue, 01 Dec 2026 00:00:00 GMT"
        self.counts: dict[str, int] = {}
        self.signed_by: list[str] = []
        self.port = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[ScriptedS3]:
        """Serve on loopback."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        server.daemon_threads = True
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        s3 = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                key = self.path.split("?")[0].split("/", 2)[2]
                found = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
                s3.signed_by.append(found[1] if found else "")
                n = s3.counts[key] = s3.counts.get(key, 0) + 1
                act = s3.script(key, n, s3)
                if act == "hang":
                    time.sleep(1.0)
                    self.close_connection = True
                    return
                if isinstance(act, tuple):
                    self._send(act[0], act[1].encode())
                    return
                start, end = map(int, re.findall(r"\d+", self.headers["Range"]))
                data = s3.objects[key][start : end + 1]
                self._send(206, data, f"bytes {start}-{end}/{len(s3.objects[key])}", cut=act == "cut")

            def _send(self, status: int, body: bytes, where: str = "", *, cut: bool = False) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                headers = {"Last-Modified": s3.modified, "ETag": s3.etag, "Content-Range": where}
                for name, value in headers.items():
                    if value:
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if cut else body)
                if cut:
                    self.close_connection = True

        return Handler
