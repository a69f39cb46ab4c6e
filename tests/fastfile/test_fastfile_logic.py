"""FastFile without FUSE: every byte is the object's, whoever reads how; what is fetched, and what isn't."""

from __future__ import annotations

import errno
import random
import threading
from datetime import timedelta

import pytest
from fastfile_support import MIB, Rig, content
from hypothesis import given, settings
from hypothesis import strategies as st

from hdp.runtime.channels.fastfile.retry import RetryingStore
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import Changed, Denied, FaultyStore, MemoryStore, Missing, Transient
from hdp.runtime.channels.keys import Entry

BIG = content(20 * MIB + 4321, 1)
SMALL = {f"s/{i:04}": content(3000 + i, i) for i in range(300)}
SIZES = {"0 bytes": 0, "1 byte": 1, "small": 70_001, "edge": MIB, "behind the edge": MIB + 1, "large": len(BIG)}
OBJECTS = {name: content(size, 9) for name, size in SIZES.items()}


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(SIZES)),
    reads=st.lists(st.tuples(st.integers(0, 21 * MIB), st.integers(0, 3 * MIB)), min_size=1, max_size=12),
    budget_mib=st.sampled_from([2, 16, 256]),
)
def test_any_reads_of_any_size_give_the_objects_bytes(name, reads, budget_mib):
    """Offsets and sizes anywhere, also behind the end; budgets from less than a part to plenty."""
    rig, data = Rig(OBJECTS, budget_mib=budget_mib), OBJECTS[name]
    handle = rig.fs.open(rig.index[name])
    for offset, size in reads:
        assert rig.read(handle, offset, size) == data[offset : offset + size]
    rig.fs.end()


def test_threads_that_share_a_file_and_jump_about_get_its_bytes():
    """8 threads with a handle each, half of them in order, with a store that answers late and a budget of 8 MiB."""
    memory = MemoryStore({"big": BIG})
    rig = Rig({"big": BIG}, FaultyStore(memory, seconds=0.002), budget_mib=8)
    wrong = []

    def read(seed: int) -> None:
        handle, chance = rig.fs.open(0), random.Random(seed)
        offset = 0
        for _ in range(60):
            size = chance.randint(1, 300_000)
            if rig.read(handle, offset, size) != BIG[offset : offset + size]:
                wrong.append((seed, offset, size))
            offset = offset + size if seed % 2 else chance.randint(0, len(BIG))
        rig.fs.close(handle)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not rig.errors
    rig.fs.end()


def test_a_sequential_reader_fetches_each_byte_once_in_parts_that_double():
    """20 MiB in order. Expected: 1 MiB + 128 KiB, then more, each byte once."""
    rig = Rig({"big": BIG})
    assert rig.whole("big") == BIG
    gets = sorted(rig.gets("big"))
    assert [start for start, _ in gets] == [0, *(end for _, end in gets[:-1])]
    lengths = [end - start for start, end in gets]
    assert lengths[0] == MIB + 128 * 1024
    assert lengths[1] == lengths[0] and lengths[2] == 2 * lengths[1], lengths
    assert max(lengths) <= 8 * MIB
    assert rig.stats.snapshot()["fetched_over_read"] == 1.0


def test_a_reader_of_a_header_costs_one_part():
    rig = Rig({"big": BIG})
    rig.read(rig.fs.open(0), 0, 100)
    rig.fs.end()
    assert rig.gets("big") == [(0, MIB + 128 * 1024)]


def test_jumps_fetch_what_they_ask_for_rounded_up():
    """Reads of 100 KB far apart. Expected: 128 KiB each, and they count as seeks."""
    rig = Rig({"big": BIG})
    handle = rig.fs.open(0)
    for offset in (15 * MIB, 3 * MIB, 9 * MIB):
        assert rig.read(handle, offset, 100_000) == BIG[offset : offset + 100_000]
    assert [end - start for start, end in rig.gets("big")] == [128 * 1024] * 3
    assert rig.stats.snapshot()["seeks"] == 2


def test_requests_that_overtake_each_other_are_no_jumps():
    """The kernel reads ahead in parallel: 256 KiB behind, then before. Expected: no seek, each byte fetched once."""
    rig = Rig({"big": BIG})
    handle, step = rig.fs.open(0), 256 * 1024
    for index in (0, 2, 1, 4, 3, 6, 5, 8, 7):
        assert rig.read(handle, index * step, step) == BIG[index * step : (index + 1) * step]
    assert rig.stats.snapshot()["seeks"] == 0


def test_small_files_in_order_are_fetched_ahead_and_once():
    """300 files in order. Expected: one GET each, whole, most of them before they are opened."""
    rig = Rig(SMALL)
    for path in sorted(SMALL):
        assert rig.whole(path) == SMALL[path]
    assert len(rig.memory.gets) == 300
    assert all(rig.gets(path) == [(0, len(SMALL[path]))] for path in SMALL)
    numbers = rig.stats.snapshot()
    assert numbers["ahead_bytes"] > 0.9 * numbers["read_bytes"]
    assert numbers["small_out_of_order"] == 0


def test_workers_that_share_a_folder_fetch_each_file_once():
    """4 workers with batches of 32 in turn, as a data loader deals them. Expected: still one GET a file."""
    rig = Rig(SMALL)
    names = sorted(SMALL)
    batches = [names[i : i + 32] for i in range(0, 300, 32)]
    workers = [[n for b in batches[w::4] for n in b] for w in range(4)]
    for step in range(max(map(len, workers))):
        for worker in workers:
            if step < len(worker):
                assert rig.whole(worker[step]) == SMALL[worker[step]]
    assert len(rig.memory.gets) <= 1.05 * 300
    assert rig.stats.snapshot()["small_out_of_order"] <= 3, "the workers' first files; then it is an order"


def test_shuffled_small_files_are_filled_in_the_background():
    """300 files shuffled; each answer 10 ms late. Expected: one GET a file, most before they are opened."""
    memory = MemoryStore(SMALL)
    rig = Rig(SMALL, FaultyStore(memory, seconds=0.01), threads=16)
    names = sorted(SMALL)
    random.Random(3).shuffle(names)
    for path in names:
        assert rig.whole(path) == SMALL[path]
    assert len(memory.gets) <= 1.05 * 300
    numbers = rig.stats.snapshot()
    assert numbers["small_out_of_order"] > 30
    assert numbers["waits"] < 150, numbers


@pytest.mark.parametrize("folders", [1, 25], ids=["in one folder", "in 25 folders"])
def test_a_few_shuffled_files_are_filled_in_the_background_too(folders):
    """100 files, which any order could be that of; each answer 50 ms late. Expected: one GET each, few waits."""
    objects = {f"{i % folders:02}/{i:03}": content(3000 + i, i) for i in range(100)}
    memory = MemoryStore(objects)
    rig = Rig(objects, FaultyStore(memory, seconds=0.05), threads=16)
    names = sorted(objects)
    random.Random(5).shuffle(names)
    for path in names:
        assert rig.whole(path) == objects[path]
    assert len(memory.gets) == 100
    assert rig.stats.snapshot()["waits"] < 50, rig.stats.snapshot()


def test_an_order_hint_is_followed():
    """Shuffled, but said before; unknown paths in it. Expected: after the first files, nobody waits."""
    memory = MemoryStore(SMALL)
    rig = Rig(SMALL, FaultyStore(memory, seconds=0.005), threads=16)
    names = sorted(SMALL)
    random.Random(4).shuffle(names)
    rig.fs.hint(["not/there", *names])
    for path in names:
        assert rig.whole(path) == SMALL[path]
    fetched = [key for key, _, _ in memory.gets]
    assert len(fetched) == 300
    distance = [abs(fetched.index(n) - i) for i, n in enumerate(names)]
    assert max(distance) < 64, "not fetched in the order of the hint"


def test_a_fill_stays_within_half_of_the_budget():
    """300 MiB of small files, 32 MiB of budget, 4 opened out of order and not read."""
    objects = {f"{i:03}": content(MIB, i) for i in range(300)}
    rig = Rig(objects, budget_mib=32)
    for index in (200, 7, 290, 3, 280, 150):
        rig.fs.close(rig.fs.open(index))
    threading.Event().wait(0.5)
    assert len(rig.memory.gets) < 32
    assert rig.stats.snapshot()["peak_bytes"] <= 32 * MIB
    rig.fs.end()


def test_many_readers_stay_within_the_budget():
    """16 files of 20 MiB read side by side in a budget of 64 MiB, by a store that is late. Expected: each byte once."""
    objects = {f"{i:02}": BIG for i in range(16)}
    rig = Rig(objects, FaultyStore(MemoryStore(objects), seconds=0.002), budget_mib=64)
    handles = [rig.fs.open(i) for i in range(16)]
    for offset in range(0, len(BIG), MIB):
        for handle in handles:
            assert rig.read(handle, offset, MIB) == BIG[offset : offset + MIB]
    # What somebody waits for is fetched even if there is no room: one request a reader at most.
    assert rig.stats.snapshot()["peak_bytes"] <= 64 * MIB + 16 * 2 * MIB
    assert rig.stats.snapshot()["fetched_over_read"] < 1.1
    rig.fs.end()


def test_a_close_takes_nothing_from_those_who_wait():
    """A reader waits for a part while the same file's other handle is closed. Expected: the bytes."""
    hold = threading.Event()
    store = FaultyStore(MemoryStore({"big": BIG}), lambda _entry, _n: hold.wait(10) and None)
    rig = Rig({"big": BIG}, store)
    first, second = rig.fs.open(0), rig.fs.open(0)
    got: list[bytes] = []
    rig.fs.read(first, 0, 1000, lambda pieces, error: got.append(b"".join(pieces) if not error else b"error"))
    rig.fs.close(second)
    rig.fs.close(first)
    hold.set()
    for _ in range(200):
        if got:
            break
        threading.Event().wait(0.02)
    assert got == [BIG[:1000]]
    rig.fs.end()


@pytest.mark.parametrize("kind", [Denied, Missing, Changed])
def test_an_object_that_cannot_be_read_gives_eio_at_once_and_the_next_reader_tries_again(kind):
    """The first try fails for good, the second is well."""

    def fault(_entry: Entry, n: int) -> None:
        if n == 1:
            raise kind("no", 403)

    stats = Stats()
    rig = Rig({"a": b"hello"}, RetryingStore(FaultyStore(MemoryStore({"a": b"hello"}), fault), stats))
    with pytest.raises(OSError) as caught:
        rig.whole("a")
    assert caught.value.errno == errno.EIO
    assert [(key, type(error)) for key, error in rig.errors] == [("a", kind)]
    assert rig.stats.snapshot()["errors"] == 1
    assert stats.snapshot()["retries"] == 0
    assert rig.whole("a") == b"hello"


def test_what_may_pass_is_tried_again():
    """5xx twice, then well. Expected: the bytes, 2 retries, no error."""

    def fault(_entry: Entry, n: int) -> None:
        if n <= 2:
            raise Transient("503", 503)

    stats = Stats()
    store = RetryingStore(FaultyStore(MemoryStore({"a": b"hello"}), fault), stats, first_wait=timedelta(milliseconds=1))
    rig = Rig({"a": b"hello"}, store)
    assert rig.whole("a") == b"hello"
    assert stats.snapshot()["retries"] == 2 and stats.snapshot()["gets"] == 3
    assert not rig.errors


def test_what_never_passes_is_an_error_after_the_last_try():
    def fault(_entry: Entry, _n: int) -> None:
        raise Transient("503: slow down", 503)

    store = FaultyStore(MemoryStore({"a": b"hello"}), fault)
    rig = Rig({"a": b"hello"}, RetryingStore(store, Stats(), tries=4, first_wait=timedelta(milliseconds=1)))
    with pytest.raises(OSError, match="Input/output error"):
        rig.whole("a")
    assert store.tries == {"a": 4}


def test_what_fails_ahead_of_its_time_is_told_only_when_somebody_reads_it():
    """Files 1 to 3 fail; only 0 is read. Expected: no error is told."""

    def fault(entry: Entry, _n: int) -> None:
        if entry.key != "0":
            raise Missing("gone", 404)

    objects = {str(i): b"x" * 100 for i in range(4)}
    rig = Rig(objects, FaultyStore(MemoryStore(objects), fault))
    assert rig.whole("0") == b"x" * 100
    threading.Event().wait(0.1)
    assert not rig.errors
    with pytest.raises(OSError, match="Input/output error"):
        rig.whole("1")
    assert [key for key, _ in rig.errors] == ["1"]


@pytest.mark.parametrize("count", [100, 300])
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_a_second_epoch_that_the_page_cache_has_lost_is_fetched_ahead_again(shuffled, count):
    """Files read twice; nothing keeps them in between. Expected: 2 GETs each, and few waits in the second too."""
    objects = {name: SMALL[name] for name in sorted(SMALL)[:count]}
    memory = MemoryStore(objects)
    rig = Rig(objects, FaultyStore(memory, seconds=0.01), threads=16)
    names, waits = sorted(objects), []
    for epoch in range(2):
        if shuffled:
            random.Random(epoch).shuffle(names)
        for path in names:
            assert rig.whole(path) == SMALL[path]
        waits.append(rig.stats.snapshot()["waits"])
    assert len(memory.gets) <= 2.2 * count
    assert waits[1] - waits[0] < count / 2, waits
