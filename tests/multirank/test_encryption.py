"""TLS between the servers: the same bits, nothing readable on the wire, and no plain peer."""

import time

import numpy as np
import pytest
from cluster import Cluster
from fault_proxy import FaultProxy
from faults import Fault, Kind
from steps import PIECES, WHOLE, Step, check, run

import hdp.collectives as hc

MARK = b"an unencrypted gradient"
#: TLS 1.3's client sends this record, without meaning, before its last one of the handshake.
CHANGE_CIPHER_SPEC = bytes([0x14, 3, 3, 0, 1, 1])


def _marked(comm):
    array = np.frombuffer(MARK * 100, np.uint8)
    return hc.allgather(array, comm.world, timeout=15).wait(30).tobytes()


@pytest.mark.parametrize("encrypt", [False, True])
def test_what_passes_between_hosts_can_be_read_only_without_encryption(encrypt):
    """Two hosts gather a text; a proxy between them looks for it."""
    seen = {}
    with FaultProxy(seen=seen) as proxy, Cluster([1, 1], route=proxy.route, encrypt=encrypt) as cluster:
        assert cluster.run(_marked) == [MARK * 200] * 2
    assert len(seen[0]) > len(seen[1]) > 100 * len(MARK)
    assert all((MARK in way) is not encrypt for way in seen.values())


def test_what_arrives_together_with_the_end_of_the_handshake_is_not_lost():
    """The dialer's last handshake record is held up for a second, and what its rank announces comes with it."""
    seen = {}
    with FaultProxy(seen=seen) as proxy, Cluster([1, 1], route=proxy.route, encrypt=True) as cluster:
        cluster.run(_marked)
    fault = Fault(Kind.DELAY, (1, 0), offset=seen[0].index(CHANGE_CIPHER_SPEC), seconds=1.0)
    with FaultProxy([fault]) as proxy, Cluster([1, 1], route=proxy.route, encrypt=True) as cluster:
        start = time.monotonic()
        assert cluster.run(_marked) == [MARK * 200] * 2
        assert [kind for kind, _, _ in proxy.fired] == [fault]
    assert time.monotonic() - start < 8


def test_every_operation_gives_the_same_bits():
    """Three hosts; 3 MB and small ones in flight at once, in another order on each rank."""
    sizes, members = [2, 1, 2], (4, 2, 0, 1, 3)
    kinds = [*WHOLE, *PIECES, "message"]
    program = [
        Step(kind, "float32", "SUM", members, 1, 3, shape, None, False)
        for kind in kinds
        for shape in [(7,), (150_000,)]
    ]
    with Cluster(sizes, encrypt=True) as cluster:
        results = cluster.run(run, program, 3, timeout=60)
    check(sizes, program, results)


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
        assert "refused: the server of algo-2 was started differently" in str(results[1])
