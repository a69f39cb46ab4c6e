"""Real mounts: what programs see, every way to read, and what is left when a mount ends, however it ends."""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fastfile_support import MIB, content, mounted, mounted_entries, needs_fuse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hdp.contract.errors import ChannelError
from hdp.runtime.channels.fastfile import mounting
from hdp.runtime.channels.keys import Entry

pytestmark = needs_fuse
SIZES = {"empty": 0, "small": 70_001, "large": 40 * MIB + 4321}
HUGE = 1 << 30


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source dir")
    for seed, (name, size) in enumerate(SIZES.items()):
        (folder / name).write_bytes(content(size, seed))
    with (folder / "huge").open("wb") as file:  # what isn't written takes no room, and reads as zeros
        for offset in range(0, HUGE, 3 * MIB + 17):
            file.seek(offset)
            file.write(content(100_000, offset))
        file.truncate(HUGE)
    (folder / "sub" / "dÿr").mkdir(parents=True)
    for i in range(200):
        (folder / "sub" / f"{i:03}").write_bytes(content(2000 + i, i))
    (folder / "sub" / "dÿr" / "odd name #%?&").write_bytes(b"odd")
    (folder / "sub" / ("n" * 255)).write_bytes(b"long")
    return folder


@pytest.fixture(scope="module")
def target(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("mount") / "tra in"
    with mounted(source, folder):
        yield folder


def drop_cache(path: Path) -> None:
    """Have the next read of a file come from the mount process, not from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def test_names_sizes_and_modes_are_the_sources(source, target):
    """Every folder and file. Expected: the same names, sizes, times; nobody may write."""
    for folder, names, files in os.walk(source):
        there = target / Path(folder).relative_to(source)
        assert sorted(p.name for p in there.iterdir()) == sorted(names + files)
        for name in files:
            ours, theirs = (there / name).stat(), (Path(folder) / name).stat()
            assert (ours.st_size, int(ours.st_mtime)) == (theirs.st_size, int(theirs.st_mtime))
            assert stat.S_IMODE(ours.st_mode) == 0o444
    assert not (target / "nothing").exists()


@pytest.mark.parametrize("name", sorted(SIZES))
def test_whole_files_are_the_sources(source, target, name):
    assert (target / name).read_bytes() == (source / name).read_bytes()


def test_every_small_file_is_the_sources(source, target):
    names = sorted(p.name for p in (source / "sub").iterdir() if p.is_file())
    random.Random(1).shuffle(names)
    assert all((target / "sub" / n).read_bytes() == (source / "sub" / n).read_bytes() for n in names)
    assert (target / "sub" / "dÿr" / "odd name #%?&").read_bytes() == b"odd"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["large", "huge"]),
    st.lists(st.tuples(st.floats(0, 1.01), st.integers(0, MIB)), min_size=1, max_size=6),
    st.booleans(),
)
def test_random_reads_in_threads(source, target, name, reads, cold):
    """pread anywhere in 40 MiB and 1 GiB, from a thread for each, with and without the page cache."""
    if cold:
        drop_cache(target / name)
    size = (source / name).stat().st_size
    ours, theirs = os.open(target / name, os.O_RDONLY), os.open(source / name, os.O_RDONLY)
    wrong = []

    def read(where: float, length: int) -> None:
        offset = int(where * size)
        if os.pread(ours, length, offset) != os.pread(theirs, length, offset):
            wrong.append((offset, length))

    threads = [threading.Thread(target=read, args=one) for one in reads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(ours)
    os.close(theirs)
    assert not wrong


@pytest.mark.slow
def test_a_whole_gibibyte(source, target):
    """1 GiB front to back. Expected: the source's bytes."""
    drop_cache(target / "huge")
    with (target / "huge").open("rb") as ours, (source / "huge").open("rb") as theirs:
        while block := ours.read(4 * MIB):
            assert block == theirs.read(4 * MIB)
        assert ours.tell() == HUGE


@pytest.mark.parametrize("name", ["large", "huge"])
@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, mmap.MAP_PRIVATE], ids=["shared", "private"])
def test_maps(source, target, flags, name):
    """A file mapped, its pages touched at random. Expected: the source's bytes."""
    drop_cache(target / name)
    size, chance = (source / name).stat().st_size, random.Random(5)
    fd = os.open(source / name, os.O_RDONLY)
    with (target / name).open("rb") as file, mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ) as view:
        for _ in range(100):
            offset = chance.randrange(size)
            assert view[offset : offset + 9000] == os.pread(fd, 9000, offset)
    os.close(fd)


def test_forked_readers(source, target):
    """4 forked processes read files that their parent has open, and one of their own."""
    names, children = ["large", "huge"], []
    for name in names:
        drop_cache(target / name)
    ours = [os.open(target / name, os.O_RDONLY) for name in names]
    theirs = [os.open(source / name, os.O_RDONLY) for name in names]
    for seed in range(4):
        child = os.fork()
        if child == 0:
            chance, well = random.Random(seed), True
            for step in range(60):
                size = os.fstat(theirs[step % 2]).st_size
                offset, length = chance.randrange(size), chance.randrange(300_000)
                well &= os.pread(ours[step % 2], length, offset) == os.pread(theirs[step % 2], length, offset)
            well &= (target / "large").read_bytes() == (source / "large").read_bytes()
            os._exit(0 if well else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    for fd in ours + theirs:
        os.close(fd)


def test_nothing_can_be_written(target):
    """Open to write, create, remove, rename, change the mode. Expected: EROFS."""
    acts = [
        lambda: (target / "small").open("r+b"),
        lambda: (target / "new").write_bytes(b""),
        lambda: (target / "small").unlink(),
        lambda: (target / "folder").mkdir(),
        lambda: (target / "small").rename(target / "other"),
        lambda: (target / "small").chmod(0o777),
        lambda: os.truncate(target / "small", 0),
    ]
    for act in acts:
        with pytest.raises(OSError) as caught:
            act()
        assert caught.value.errno == errno.EROFS


def test_numbers_are_left_at_the_end(source, tmp_path):
    """100 small files read. Expected: what was read, fetched, and asked for, in the report."""
    report = tmp_path / "numbers.json"
    with mounted(source, tmp_path / "m", report=report):
        size = sum(len((tmp_path / "m" / "sub" / f"{i:03}").read_bytes()) for i in range(100))
    numbers = json.loads(report.read_text())
    assert numbers["read_bytes"] == size
    assert numbers["opens"] == 100
    assert 100 <= numbers["gets"] <= 203
    assert numbers["channel"] == "train" and numbers["files"] == 206
    assert {"seeks", "waited_seconds", "cache_hits", "fetched_over_read", "errors", "retries"} <= set(numbers)


def test_a_second_reading_comes_from_the_page_cache(source, tmp_path):
    """A file opened and read twice. Expected: fetched once."""
    report = tmp_path / "numbers.json"
    with mounted(source, tmp_path / "m", report=report):
        for _ in range(2):
            assert (tmp_path / "m" / "small").read_bytes() == (source / "small").read_bytes()
    assert json.loads(report.read_text())["fetched_bytes"] == SIZES["small"]


def test_an_order_file_is_followed(source, tmp_path):
    """The script writes the order before it reads. Expected: the files are there before they are asked for."""
    order, report = tmp_path / "order", tmp_path / "numbers.json"
    names = [f"sub/{i:03}" for i in range(200)]
    random.Random(2).shuffle(names)
    order.write_text("\n".join(names))
    with mounted(source, tmp_path / "m", order=order, report=report):
        time.sleep(1.0)
        for name in names:
            assert (tmp_path / "m" / name).read_bytes() == (source / name).read_bytes()
    numbers = json.loads(report.read_text())
    assert numbers["gets"] == 200
    assert numbers["waits"] <= 10


def test_a_file_that_changes_gives_eio_and_is_named(tmp_path, caplog):
    """Changed, removed, and no longer readable after the mount was made. Expected: EIO, a line and a trouble each."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("changed", "gone", "fine"):
        (source / name).write_bytes(b"0123456789")
    with mounted(source, tmp_path / "m") as mount:
        (source / "changed").write_bytes(b"another content")
        (source / "gone").unlink()
        for name in ("changed", "gone"):
            with pytest.raises(OSError) as caught:
                (tmp_path / "m" / name).read_bytes()
            assert caught.value.errno == errno.EIO
        assert (tmp_path / "m" / "fine").read_bytes() == b"0123456789"
    told = mount.troubles()  # whole once the process has ended
    assert f"{source}/changed: the file has changed since the job started" in told
    assert f"{source}/gone: the file is gone" in told
    assert "channel train: " + told[0] in caplog.text


def test_what_goes_wrong_in_the_mount_process_is_an_error_in_the_log(tmp_path, caplog):
    """A key that no file can have, which no store expects. Expected: EIO, and its traceback as an error."""
    with (
        mounted_entries(str(tmp_path), [Entry("a\0b", "a", 5)], tmp_path / "m") as mount,
        pytest.raises(OSError, match="Input/output error"),
    ):
        (tmp_path / "m" / "a").read_bytes()
    assert mount.troubles() == [f"{tmp_path}/a\0b: ValueError: embedded null byte"]
    said, *_ = [r for r in caplog.records if "a part can't be fetched" in r.getMessage()]
    assert said.levelname == "ERROR" and "ValueError: embedded null byte" in said.getMessage()


def test_killed_while_somebody_reads_the_reader_gets_an_error_and_nothing_stays_mounted(source, tmp_path):
    """SIGKILL to the mount process under a reader that never stops. Expected: an error in it within seconds."""
    loop = (
        "import sys\nwhile True:\n"
        "    with open(sys.argv[1], 'rb', buffering=0) as f:\n        while f.read(65536): pass"
    )
    with mounted(source, tmp_path / "m") as mount:
        reader = subprocess.Popen([sys.executable, "-c", loop, tmp_path / "m" / "large"], stderr=subprocess.PIPE)
        time.sleep(0.5)
        os.kill(mount.pid, signal.SIGKILL)
        _, said = reader.communicate(timeout=10)
        assert b"Transport endpoint is not connected" in said or b"connection abort" in said or b"No such file" in said
        deadline = time.monotonic() + 5
        while mount.failure() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert mount.failure() == "its mount process ended (killed by SIGKILL), so its files can't be read any more"
        assert not mounting.is_mounted(tmp_path / "m")


def test_whoever_dies_of_a_lost_mount_finds_it_lost(source, tmp_path):
    """A mapped reader gets SIGBUS, at once, 5 times. Expected: the mount is known to be lost once the reader is."""
    loop = (
        "import mmap, os, sys\nprint('reads', flush=True)\nwhile True:\n"
        "    with open(sys.argv[1], 'rb') as f:\n        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
        "        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)\n"
        "        sum(m[i] for i in range(0, len(m), mmap.PAGESIZE))\n        m.close()"
    )
    for _ in range(5):
        with mounted(source, tmp_path / "m") as mount:
            command = [sys.executable, "-c", loop, tmp_path / "m" / "large"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:
                assert reader.stdout is not None and reader.stdout.readline() == b"reads\n"
                os.kill(mount.pid, signal.SIGKILL)
                assert reader.wait(30) != 0
                assert mount.failure() is not None


def test_without_its_agent_the_mount_goes_away(source, tmp_path):
    """The agent is killed: nobody is left to unmount but the mount process. Expected: it unmounts and ends."""
    code = (
        "import sys; from pathlib import Path; from fastfile_support import mounted\n"
        "with mounted(Path(sys.argv[1]), Path(sys.argv[2])) as m: print(m.pid, flush=True); sys.stdin.read()"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    agent = subprocess.Popen(
        [sys.executable, "-c", code, source, tmp_path / "m"], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    pid = int(agent.stdout.readline())
    assert mounting.is_mounted(tmp_path / "m")
    agent.kill()
    agent.communicate()
    wait_for_end(pid, tmp_path / "m")


def wait_for_end(pid: int, target: Path) -> None:
    """Until nothing is mounted and the mount process is gone, or its zombie is left to who takes it in."""
    deadline = time.monotonic() + 20
    while (mounting.is_mounted(target) or is_running(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not mounting.is_mounted(target)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


SENDS_SLOWLY = """
import sys, time
from pathlib import Path
from fastfile_support import MIB
from hdp.runtime.channels.fastfile import mode, wire
from hdp.runtime.channels.keys import Entry
from hdp.runtime.launch.linux import Children

class Slow(wire.Task):
    def lines(self):
        sent = b"".join(super().lines())
        yield sent[: int(len(sent) * float(sys.argv[2]))]
        print(children.pid, flush=True)
        time.sleep(600)

class Remembering(Children):
    def spawn(self, command, **options):
        process = super().spawn(command, **options)
        self.pid = process.pid
        return process

children = Remembering()
entries = tuple(Entry(f"{i}", f"{i}", 1) for i in range(1000))
mode.Mount(Slow("train", "/", entries, sys.argv[1], 64 * MIB), children, lambda: False)
"""


@pytest.mark.parametrize("part", [0, 0.001, 0.9], ids=["nothing", "half a line", "most"])
def test_an_agent_that_is_killed_while_it_sends_the_listing_leaves_no_mount(tmp_path, part):
    """SIGKILL when so much of the task is sent. Expected: the mount process takes the mount away and ends."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    agent = subprocess.Popen(
        [sys.executable, "-c", SENDS_SLOWLY, tmp_path, str(part)], env=environ, stdout=subprocess.PIPE
    )
    pid = int(agent.stdout.readline())
    assert mounting.is_mounted(tmp_path)
    agent.kill()
    agent.communicate()
    wait_for_end(pid, tmp_path)


def test_a_user_who_may_not_mount_hears_what_to_do(tmp_path, monkeypatch):
    """mount(2) forbidden and no fusermount3. Expected: both remedies, and the way to opt in to a download."""
    monkeypatch.setenv("PATH", str(tmp_path))
    code = (
        "import os, sys, subprocess; from pathlib import Path; from hdp.runtime.channels.fastfile import mounting\n"
        "os.setgroups([]); os.setresuid(65534, 65534, 65534)\n"
        "try: mounting.mount(Path(sys.argv[1]), subprocess.Popen)\n"
        "except mounting.NoFuse as exc: print(exc)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Loaded before it becomes another user, who may not read where Python is.
    said = subprocess.run([sys.executable, "-c", code, tmp_path], env=environ, capture_output=True, text=True).stdout
    assert "input_mode='FastFile' needs FUSE, which this host doesn't give us" in said
    assert "there is no fusermount3" in said
    assert "install fuse3" in said and "--device /dev/fuse" in said
    assert "use input_mode='File'" in said and "HDP_FASTFILE_FALLBACK=file" in said


def test_a_store_that_cannot_be_opened_is_an_error_before_anything_is_read(tmp_path, monkeypatch):
    """s3:// without credentials. Expected: a ChannelError that says so, and no mount."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    with (
        pytest.raises(ChannelError, match="no AWS credentials were found"),
        mounted_entries("s3://bucket", [Entry("a", "a", 1)], tmp_path / "m"),
    ):
        pass
    assert not mounting.is_mounted(tmp_path / "m")
