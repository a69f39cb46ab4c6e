"""TLS between the servers: the same bits, nothing readable on the wire, and no plain peer."""

import contextlib
import socket
import threading

import numpy as np
import pytest
from cluster import Cluster
from steps import Step, expected, run

import hdp.collectives as hc

MARK = b"an unencrypted gradient"


class Tap:
    """Stands between the servers, forwards, and keeps what passes."""

    def __init__(self):
        self.seen = bytearray()
        self.listeners = []

    def route(self, index, hosts):
        """Server `index` reaches the others through this."""
        routed = []
        for other, host in enumerate(hosts):
            listener = socket.create_server(("127.0.0.1", 0))
            self.listeners.append(listener)
            threading.Thread(target=self._serve, args=(listener, host), daemon=True).start()
            place = {} if other == index else {"address": "127.0.0.1", "port": listener.getsockname()[1]}
            routed.append({**host, **place})
        return routed

    def _serve(self, listener, host):
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = listener.accept()
                try:
                    far = socket.create_connection((host["address"], host["port"]))
                except OSError:  # it does not listen yet; the caller tries again
                    near.close()
                    continue
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, sink):
        with source, sink, contextlib.suppress(OSError):  # either end hangs up first
            while data := source.recv(1 << 16):
                self.seen += data
                sink.sendall(data)

    def close(self):
        for listener in self.listeners:
            listener.close()


def _marked(comm):
    array = np.frombuffer(MARK * 100, np.uint8)
    return hc.allgather(array, comm.world).wait(30).tobytes()


@pytest.mark.parametrize("encrypt", [False, True])
def test_what_passes_between_hosts_can_be_read_only_without_encryption(encrypt):
    """Two hosts gather a text; a tap looks for it."""
    tap = Tap()
    with Cluster([1, 1], route=tap.route, encrypt=encrypt) as cluster:
        assert cluster.run(_marked) == [MARK * 200] * 2
    tap.close()
    assert (MARK in tap.seen) is not encrypt


def test_every_operation_gives_the_same_bits():
    """Three hosts; 3 MB and small ones in flight at once, in another order on each rank."""
    sizes, members = [2, 1, 2], (4, 2, 0, 1, 3)
    kinds = [
        "allreduce",
        "reduce",
        "broadcast",
        "allgather",
        "gather",
        "scatter",
        "reduce_scatter",
        "alltoall",
        "message",
    ]
    program = [
        Step(kind, "float32", "SUM", members, 1, 3, shape, None, False)
        for kind in kinds
        for shape in [(7,), (150_000,)]
    ]
    with Cluster(sizes, encrypt=True) as cluster:
        results = cluster.run(run, program, 3, timeout=60)
    for number, step in enumerate(program):
        for place, value in enumerate(expected(sizes, step, number)):
            want = None if value is None else (value.shape, value.tobytes())
            assert results[step.members[place]].get(number) == want


class Mixed(Cluster):
    def _launch(self, index, hosts, start_timeout):
        self.config = {"encrypt": index == 0}
        return super()._launch(index, hosts, start_timeout)


def test_a_host_without_encryption_is_refused():
    """Host 0 encrypts, host 1 does not: both say so at once, and no rank joins."""
    with Mixed([1, 1], start_timeout=None) as cluster:
        results = cluster.collect(60)
        assert all(isinstance(result, Exception) for result in results.values())
        assert "the server of algo-2 was started differently" in str(results[0])
        assert "'encrypt': (False, True)" in str(results[0])
        assert "refused: it was started differently (ours, theirs): {'encrypt': (False, True)}" in str(results[1])
