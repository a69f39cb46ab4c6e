"""One end of a TCP transfer: ``receive [CONNECTIONS]`` or ``send HOST BYTES``; prints bytes and seconds."""

from __future__ import annotations

import selectors
import socket
import sys
import time

PORT = 5001
CHUNK = 1 << 18


def receive(connections: int) -> None:
    """Take what all connections send; the time is from the first byte of any to the last of all."""
    begun, total, buffer = 0.0, 0, bytearray(CHUNK)
    with socket.create_server(("", PORT)) as server, selectors.DefaultSelector() as selector:
        print("up", flush=True)
        for _ in range(connections):
            selector.register(server.accept()[0], selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                count = key.fileobj.recv_into(buffer)
                begun = begun or time.perf_counter()
                total += count
                if not count:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    print(total, time.perf_counter() - begun)


def send(host: str, size_bytes: int) -> None:
    """Send that many bytes."""
    with socket.create_connection((host, PORT)) as connection:
        for start in range(0, size_bytes, CHUNK):
            connection.sendall(bytes(min(CHUNK, size_bytes - start)))


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    else:
        send(sys.argv[2], int(sys.argv[3]))
