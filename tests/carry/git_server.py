"""A git server over HTTP, on loopback: git's own CGI program behind basic authentication."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


class GitServer(ThreadingHTTPServer):
    """Serves the repositories below `folder`."""

    def __init__(self, folder: Path, login: str | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.login = login
        self.requests: list[str] = []
        self.logins: list[str] = []
        self.elsewhere: str | None = None
        """Where every request is redirected to."""
        program = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()
        self.program = f"{program}/git-http-backend"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: GitServer

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        given = self.headers.get("Authorization")
        if given:
            self.server.logins.append(base64.b64decode(given.removeprefix("Basic ")).decode())
        if self.server.elsewhere:
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere + self.path)
            self.end_headers()
        elif self.server.login and (not given or self.server.logins[-1] != self.server.login):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="code"')
            self.end_headers()
        else:
            self._answer()

    do_POST = do_GET  # noqa: N815  (its base class wants this name)

    def _answer(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        environ = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(self.server.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": url.path,
            "QUERY_STRING": url.query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run([self.server.program], input=body, env=environ, capture_output=True, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path, login: str | None = None) -> Iterator[GitServer]:
    """A server; login: "name:secret" that it asks for."""
    with GitServer(folder, login) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
