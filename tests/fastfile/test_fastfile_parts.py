"""FastFile's smaller parts: the budget, the names, what agent and mount process tell each other."""

from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fastfile_support import MIB

from hdp.contract.errors import ChannelError
from hdp.runtime.channels.fastfile import abi, mounting, wire
from hdp.runtime.channels.fastfile.budget import budget_bytes, for_parts, memory_limit
from hdp.runtime.channels.fastfile.cache import Part, Urgency
from hdp.runtime.channels.fastfile.fetcher import Fetcher
from hdp.runtime.channels.fastfile.order import Order
from hdp.runtime.channels.fastfile.server import is_dying
from hdp.runtime.channels.fastfile.table import Table
from hdp.runtime.channels.fastfile.tree import ROOT, Tree
from hdp.runtime.channels.fastfile.windows import FIRST_PART, Window
from hdp.runtime.channels.keys import Entry


def groups(root: Path, own: str, limits: dict[str, str]) -> Path:
    """A machine whose control groups (version 2) have these limits; `own` is this process's group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::/{own}\n")
    for group, limit in limits.items():
        folder = root / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(limit + "\n")
    return root


def test_the_budget_is_512_mib_where_nothing_limits_it(tmp_path):
    assert budget_bytes({}, groups(tmp_path, "a/b", {"a": "max", "a/b": "max"})) == 512 * MIB
    assert budget_bytes({}, tmp_path / "no cgroups at all") == 512 * MIB


def test_a_container_gives_a_quarter_of_its_memory(tmp_path):
    """The group around this process's may have 1 GiB. Expected: 256 MiB; of a huge one still 512."""
    root = groups(tmp_path / "1", "a/b", {"a": str(1 << 30), "a/b": "max"})
    assert memory_limit(root) == 1 << 30
    assert budget_bytes({}, root) == 256 * MIB
    assert budget_bytes({}, groups(tmp_path / "2", "a", {"a": str(64 << 30)})) == 512 * MIB


def test_version_1_of_control_groups(tmp_path):
    """Limits in the memory controller's own tree, where no limit is a huge number."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/docker/abc\n")
    folder = tmp_path / "sys/fs/cgroup/memory"
    (folder / "docker/abc").mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (folder / "docker/abc/memory.limit_in_bytes").write_text(f"{800 << 20}\n")
    assert memory_limit(tmp_path) == 800 << 20


def test_a_user_may_say_the_budget(tmp_path):
    assert budget_bytes({"HDP_FASTFILE_BUDGET_MIB": "100"}, tmp_path) == 100 * MIB


@pytest.mark.parametrize("value", ["lots", "-5", "0", "31", "1.5"])
def test_a_budget_that_is_none_is_refused(value, tmp_path):
    with pytest.raises(ChannelError) as caught:
        budget_bytes({"HDP_FASTFILE_BUDGET_MIB": value}, tmp_path)
    assert str(caught.value) == f"HDP_FASTFILE_BUDGET_MIB is {value!r}, expected a number of MiB, at least 32"


def test_names_and_holes_are_part_of_the_budget():
    """Expected: a third for holes, 250 bytes a file, and always enough for a few parts."""
    assert for_parts(512 * MIB, 0) == 357_913_942
    assert for_parts(512 * MIB, 100_000) == 357_913_942 - 25_000_000
    assert for_parts(512 * MIB, 5_000_000) == 16 * MIB


def test_a_tree_has_each_folder_once():
    """Folders at several depths. Expected: names lead to inodes, inodes to entries."""
    paths = ["a", "d/b", "d/e/f/g", "d/e/h", "z/y"]
    tree = Tree([Entry(f"key/{p}", p, 1) for p in paths])
    for index, path in enumerate(paths):
        inode = ROOT
        for name in path.split("/"):
            inode = tree.lookup(inode, name)
        assert tree.index(inode) == index
        assert stat.S_ISREG(tree.mode(inode)) and tree.listing(inode) is None
    d = tree.lookup(ROOT, "d")
    assert [name for name, _ in tree.listing(d)] == [".", "..", "e", "b"]
    assert tree.index(d) is None and stat.S_ISDIR(tree.mode(d))
    assert tree.lookup(ROOT, "x") is None and tree.lookup(12345, "a") is None
    assert not tree.exists(0) and not tree.exists(5 + 6) and tree.exists(5 + 5)


def test_a_tree_whose_names_are_in_no_order_finds_each():
    """A manifest's order. Expected: listed in it, from any place on, and every name found."""
    paths = [f"d/{i * 7 % 20:02}" for i in range(20)] + ["e/x", "b", "a"]
    tree = Tree([Entry(p, p, 1) for p in paths])
    d = tree.lookup(ROOT, "d")
    names = [name for name, _ in tree.listing(d)]
    assert names == [".", "..", *(p.removeprefix("d/") for p in paths[:20])]
    assert all([name for name, _ in tree.listing(d, place)] == names[place:] for place in range(24))
    assert [tree.find(p) for p in paths] == list(range(23))
    assert [tree.find(p) for p in ("d", "d/20", "d/0", "x/y", "", "e/x/z")] == [None] * 6
    for place in range(8):
        assert [name for name, _ in tree.listing(ROOT, place)] == [".", "..", "d", "e", "b", "a"][place:]


def test_a_table_gives_back_what_was_put_in():
    """Paths that aren't the end of their key, no ETag, no time, names that aren't UTF-8, sizes beyond 32 bits."""
    rows = [
        Entry("k/a//b", "a/b", 1 << 40, '"e"', 1.5), Entry("é/\udcff", "\udcff", 0, None, -2.0), Entry("", "", 7),
        Entry("日本/\ud800\U0001f600", "\ud800\U0001f600", 3, '"f-2"', 1e9),
    ]  # fmt: skip
    table = Table(rows)
    assert list(table) == rows and table[1:3] == rows[1:3] and table[-1] == rows[-1]
    assert [table.path(i) for i in range(4)] == [e.path for e in rows]
    assert (table.sizes[0], table.mtimes[0], table.size_bytes) == (1 << 40, 1.5, (1 << 40) + 10)
    with pytest.raises(IndexError):
        table[4]


def test_an_empty_tree_is_an_empty_folder():
    assert list(Tree([]).listing(ROOT)) == [(".", ROOT), ("..", ROOT)]


@pytest.mark.parametrize("count", [0, 1, 20_000, 20_001])
def test_a_task_arrives_as_it_was_sent(count):
    """Entries of one message, of just one and a little more; odd names, no ETag."""
    entries = tuple(Entry(f"k/ü\udcff{i}", f"{i}\n", i, '"e"' if i % 2 else None, i / 7) for i in range(count))
    task = wire.Task("train", "s3://b", entries, "/a b", 5 * MIB, "/order")
    read = wire.Task.read(io.BytesIO(b"".join(task.lines())))
    assert replace(read, entries=tuple(read.entries)) == task


def test_what_is_no_event_is_text():
    assert wire.read_event(wire.event("log", text="hello")) == {"event": "log", "text": "hello"}
    assert wire.read_event("Traceback (most recent call last):") is None
    assert wire.read_event("[1]") is None and wire.read_event("{}") is None


def test_a_window_opens_as_a_reader_goes_on_and_closes_when_it_jumps():
    window = Window()
    assert not window.read(0, MIB) and window.wanted(1 << 40) == MIB
    assert not window.read(MIB, 2 * MIB) and window.wanted(1 << 40) == 6 * MIB
    assert not window.read(2 * MIB, 9 * MIB) and window.wanted(1 << 40) == (9 + 4 * 8) * MIB
    assert window.wanted(3 * MIB) == 12 * MIB
    assert window.read(500 * MIB, 501 * MIB) and window.wanted(1 << 40) == 501 * MIB
    assert window.first_part(1000) == 128 * 1024
    assert not window.read(501 * MIB, 502 * MIB) and window.first_part(1000) == FIRST_PART


def order_of(folder_of: list[int]) -> Order:
    """Of files in these folders."""
    return Order(folder_of, lambda folder: [i for i, f in enumerate(folder_of) if f == folder])


def test_a_file_that_is_opened_again_is_no_progress():
    """The last file of a folder, twice. Expected: nothing of the next folder is fetched."""
    order = order_of([1, 1, 2, 2])
    assert list(order.opened(1)) == []
    assert list(order.opened(1)) == []


def test_an_order_deepens_and_goes_on_in_the_next_folder():
    order = order_of([1] * 20 + [2] * 20)
    assert list(order.opened(0)) == [1, 2, 3, 4]
    assert list(order.opened(1)) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert list(order.opened(16)) == [*range(17, 33)]
    assert order.out_of_order == 0 and not order.shuffled


def test_a_small_folder_is_filled_once_three_of_its_files_were_not_there():
    """100 files in folder 2, between two of 300. Expected: those 100, before any other, and nothing twice."""
    order = order_of([1] * 300 + [2] * 100 + [3] * 300)
    for index in (310, 399):
        order.absent(index)
    assert order.next_to_fill() is None
    order.absent(350)
    order.absent(351)
    assert [order.next_to_fill() for _ in range(100)] == [*range(300, 400)]
    assert order.next_to_fill() is None


def test_a_channel_of_few_files_is_one_small_folder():
    """10 folders of 10 files, one file wanted in each of 3. Expected: all of them."""
    order = order_of([i // 10 for i in range(100)])
    for index in (5, 95, 55):
        order.absent(index)
    assert [order.next_to_fill() for _ in range(101)] == [*range(100), None]


def test_a_few_files_of_a_large_folder_start_no_fill():
    order = order_of([1] * 300)
    for index in (0, 1, 2, 3, 4):
        order.absent(index)
    assert order.next_to_fill() is None


def test_files_opened_here_and_there_in_many_small_folders_are_shuffled():
    """50 folders of 20 files, one opened in the middle of each of 4 that are far apart. Expected: all are filled."""
    order = order_of([i // 20 for i in range(1000)])
    for index in (510, 15, 925, 330):
        assert list(order.opened(index)) == []
    assert order.shuffled and order.next_to_fill() == 0


def test_folders_read_side_by_side_are_in_order():
    """Pictures and labels of 500 classes, a folder each. Expected: no file is out of order."""
    order = order_of([i // 4 for i in range(4000)])
    for i in range(2000):
        order.opened(i)
        order.opened(2000 + i)
    assert order.out_of_order == 0


def test_a_burst_after_a_pause_is_fetched_at_once():
    """One thread is idle; eight parts come under one hold of the lock. Expected: none waits for another one's end."""
    lock, go, begun = threading.Lock(), threading.Event(), []

    def fetch(part):
        begun.append(part)
        go.wait(20)
        return memoryview(b"")

    fetcher = Fetcher(lock, fetch, lambda *_: None)
    go.set()
    with lock:
        fetcher.enqueue(Part(0, 0, 1, Urgency.WAITED_FOR))
    _until(lambda: fetcher._idle == 1)
    go.clear()
    with lock:
        for i in range(8):
            fetcher.enqueue(Part(i, 0, 1, Urgency.WAITED_FOR))
    _until(lambda: len(begun) == 9)
    go.set()
    fetcher.end()


def _until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_thread_without_a_fatal_signal_is_not_dying():
    assert not is_dying(os.getpid())
    assert not is_dying(0)


def test_a_file_from_before_1970_has_attributes():
    assert len(abi.attributes(2, 0o100444, 1, -1.5, (0, 0))) == 88


def test_paths_of_the_kernels_table():
    assert mounting._unescaped(r"/a\040b\134c\011d") == "/a b\\c\td"


def test_a_helper_that_hangs_is_an_error_and_is_ended(tmp_path, monkeypatch):
    """A fusermount3 that starts a sleep and waits for it. Expected: NoFuse that says how long, no such process left."""
    helper, pids = tmp_path / "fusermount3", tmp_path / "pids"
    helper.write_text(f"#!/bin/sh\nsleep 100 &\necho $$ $! > {pids}\nwait\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(mounting, "_DEVICE", str(tmp_path / "none"))
    monkeypatch.setattr(mounting, "_SECONDS", 1.0)
    with pytest.raises(mounting.NoFuse) as caught:
        mounting.mount(tmp_path / "m", subprocess.Popen)
    hung, asleep = map(int, pids.read_text().split())
    os.kill(asleep, signal.SIGKILL)
    assert "fusermount3: it did not end within 1 s and was killed" in str(caught.value)
    assert "or use input_mode='File'" in str(caught.value)
    assert not Path(f"/proc/{hung}").exists()


@pytest.mark.parametrize("said", ["echo no such user >&2; exit 1", "exit 3"])
def test_a_helper_that_fails_is_quoted(said, tmp_path, monkeypatch):
    """What it wrote, or, where it wrote nothing, its exit code."""
    helper = tmp_path / "fusermount3"
    helper.write_text(f"#!/bin/sh\n{said}\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mounting, "_DEVICE", str(tmp_path / "none"))
    with pytest.raises(
        mounting.NoFuse, match=r"\(.*none can't be opened: .*; fusermount3: (no such user|exit code 3)\)"
    ):
        mounting.mount(tmp_path / "m", subprocess.Popen)
