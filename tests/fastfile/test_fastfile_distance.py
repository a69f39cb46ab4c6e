"""Near a store windows are small, far from it large."""

from __future__ import annotations

import pytest
from fastfile_support import MIB, Rig, content

from hdp.runtime.channels.fastfile.store import FaultyStore, MemoryStore
from hdp.runtime.channels.fastfile.windows import LARGEST_PART, LARGEST_WINDOW, NEAR_PART, NEAR_WINDOW, Distance


@pytest.fixture
def distance():
    return Distance()


def test_unknown_is_far(distance):
    """Nothing was fetched. Expected: the large window, large parts."""
    assert (distance.window, distance.part) == (LARGEST_WINDOW, LARGEST_PART)


def test_a_connection_as_fast_as_memory_is_near(distance):
    """8 MiB in 20 ms are 400 MiB/s. Expected: the small window, smaller parts."""
    distance.fetched(8 * MIB, 0.02)
    assert (distance.window, distance.part) == (NEAR_WINDOW, NEAR_PART)


def test_the_best_of_the_last_fetches_counts(distance):
    """One of 400 MiB/s, then 15 of 80. Expected: near; after one more of 80 far."""
    distance.fetched(8 * MIB, 0.02)
    for _ in range(15):
        distance.fetched(8 * MIB, 0.1)
    assert distance.window == NEAR_WINDOW
    distance.fetched(8 * MIB, 0.1)
    assert distance.window == LARGEST_WINDOW


@pytest.mark.parametrize(("seconds", "least", "most"), [(0.0, 8, 40), (0.05, 60, 136)])
def test_what_is_fetched_ahead(seconds, least, most):
    """40 MiB of 192 are read. Expected: from memory a part or so beyond 32 MiB ahead, from afar much more."""
    objects = {"f": content(192 * MIB, 1)}
    memory = MemoryStore(objects)
    rig = Rig(objects, FaultyStore(memory, seconds=seconds), budget_mib=1024, threads=20)
    handle = rig.fs.open(0)
    for offset in range(0, 40 * MIB, MIB):
        assert rig.read(handle, offset, MIB) == objects["f"][offset : offset + MIB]
    furthest = max(part.end for part in rig.fs._cache._files[0])
    assert least <= furthest / MIB - 40 <= most
    rig.fs.close(handle)
    rig.fs.end()
