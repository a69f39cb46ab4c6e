"""An nginx that serves folders as buckets, to whom asks as S3 is asked: listing, ranges, ETags, If-Match.

    with S3Like(folder) as server:      # folder/bucket/key
        server.list_bucket("bucket")    # after the bucket's files are there
        os.environ.update(server.environ())             # fast
        os.environ.update(server.environ(slow=True))    # 25 ms to the first byte, 90 MB/s a connection

It serves from the page cache on loopback. Credentials are taken as they come; nothing is signed or checked.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

FIRST_BYTE_SECONDS = 0.025
CONNECTION_BYTES_PER_SECOND = 90_000_000
_ECHO = Path("/usr/lib/nginx/modules/ngx_http_echo_module.so")

_CONFIG = """
load_module {echo};
worker_processes 2;
pid {state}/pid;
error_log {state}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000;
    open_file_cache max=10000;
    client_body_temp_path {state}/body;
    proxy_temp_path {state}/proxy;
    fastcgi_temp_path {state}/fastcgi;
    uwsgi_temp_path {state}/uwsgi;
    scgi_temp_path {state}/scgi;
    root {folder};
    server {{
        listen 127.0.0.1:{fast};
        location ~ ^/(?<bucket>[^/]+)/?$ {{ default_type application/xml; try_files /.listings/$bucket.xml =404; }}
        location / {{ default_type application/octet-stream; }}
    }}
    server {{
        listen 127.0.0.1:{slow};
        location ~ ^/(?<bucket>[^/]+)/?$ {{ default_type application/xml; try_files /.listings/$bucket.xml =404; }}
        location / {{ echo_sleep {latency}; echo_exec @object; }}
        location @object {{ default_type application/octet-stream; limit_rate {rate}; }}
    }}
}}
"""


def missing() -> str | None:
    """What has to be installed first; None: nothing."""
    if shutil.which("nginx") is None or not _ECHO.exists():
        return "nginx with its echo module: apt-get install --no-install-recommends nginx-light libnginx-mod-http-echo"
    return None


class S3Like:
    """The server, while its block lasts."""

    def __init__(self, folder: Path, state: Path) -> None:
        """folder: of the buckets. state: an empty folder of nginx's own."""
        self._folder = folder
        self._state = state
        self.fast, self.slow = _free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Like:
        self._state.mkdir(parents=True, exist_ok=True)
        config = self._state / "nginx.conf"
        config.write_text(
            _CONFIG.format(
                echo=_ECHO, state=self._state, folder=self._folder, fast=self.fast, slow=self.slow,
                latency=FIRST_BYTE_SECONDS, rate=CONNECTION_BYTES_PER_SECOND,
            )
        )  # fmt: skip
        self._process = subprocess.Popen(
            ["nginx", "-c", str(config), "-p", str(self._state), "-e", str(self._state / "error.log"), "-g",
             "daemon off;" + ("user root;" if os.geteuid() == 0 else "")],
        )  # fmt: skip
        self._await()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def cpu_seconds(self) -> float:
        """Processor time of its workers so far."""
        if self._process is None:
            return 0.0
        pid = self._process.pid
        return sum(cpu_seconds(int(child)) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    def environ(self, *, slow: bool = False) -> Mapping[str, str]:
        """What points boto3 and FastFile at it."""
        return {
            "AWS_ENDPOINT_URL": self.url(slow=slow),
            "AWS_ACCESS_KEY_ID": "anybody",
            "AWS_SECRET_ACCESS_KEY": "anything",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def url(self, *, slow: bool = False) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.slow if slow else self.fast}"

    def list_bucket(self, bucket: str) -> None:
        """Write the bucket's listing, as S3 answers it, from the files that are there now."""
        items = "".join(_contents(self._folder / bucket))
        listings = self._folder / ".listings"
        listings.mkdir(exist_ok=True)
        (listings / f"{bucket}.xml").write_text(
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><Prefix></Prefix><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
        )

    def _await(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.slow), 1):
                return
            time.sleep(0.02)
        raise RuntimeError(f"nginx doesn't listen; see {self._state / 'error.log'}")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def etag(path: Path) -> str:
    """nginx's ETag of a file."""
    status = path.stat()
    return f'"{int(status.st_mtime):x}-{status.st_size:x}"'


def _contents(bucket: Path) -> Iterator[str]:
    for path in sorted(p for p in bucket.rglob("*") if p.is_file()):
        status = path.stat()
        when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))
        yield (
            f"<Contents><Key>{escape(path.relative_to(bucket).as_posix())}</Key><LastModified>{when}</LastModified>"
            f"<ETag>{escape(etag(path), {chr(34): '&quot;'})}</ETag><Size>{status.st_size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
