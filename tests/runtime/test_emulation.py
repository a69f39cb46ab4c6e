"""Emulated networks: hosts see each other at the link's rate and nothing else, and nothing of them is ever left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import descriptors
import pytest

pytest.importorskip("pyroute2", reason="pyroute2 is not installed (pip install 'hdp-train[emulation]')")

from hdp.contract import links
from hdp.runtime.emulation import EmulationError, Network
from hdp.runtime.emulation.errors import step

HERE = Path(__file__).parent
ENTER = HERE.parents[1] / "runtime/hdp/runtime/emulation/enter.py"
TRANSFER = [sys.executable, str(HERE / "emulation_transfer.py")]


def read(network: Network, host: int, *argv: str, **options: Any) -> str:
    """What a program prints in a host. It must succeed."""
    process = network.popen(host, argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return out.strip()


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it came true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def processes_with(mark: str) -> list[int]:
    """Process IDs whose argv or environment holds `mark`, this process and zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in text:
                found.append(int(entry.name))
    return found


# -- what is refused before anything starts ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "bits"),
    [
        ("250mbit", 250_000_000),
        ("10gbit", 10_000_000_000),
        ("2.5Gbit", 2_500_000_000),
        ("1kibit", None),
        ("100kibit", 102_400),
        ("125mbps", 1_000_000_000),
        ("1000000", 1_000_000),
        ("40gbit", None),
        ("0mbit", None),
        ("-1mbit", None),
        ("fast", None),
        ("1 gigabit", None),
        ("", None),
        ("\u0661mbit", None),
    ],
)
def test_rates_are_those_of_tc(rate: str, bits: int | None) -> None:
    if bits is not None:
        assert links.parse_rate(rate) == bits
        return
    with pytest.raises(ValueError, match=re.escape(repr(rate))):
        Network(hosts=2, rate=rate)


@pytest.mark.parametrize("hosts", [0, -1, 129, True, 2.0, "2"])
def test_the_number_of_hosts_is_checked(hosts: Any) -> None:
    with pytest.raises(ValueError, match="a network has 1 to 128"):
        Network(hosts=hosts)


@pytest.mark.parametrize("number", [2, -1, True, "1"])
def test_hosts_with_a_rate_of_their_own_must_be_there(number: Any) -> None:
    with pytest.raises(ValueError, match=f"rates has host {number!r}; the hosts of this network are 0 to 1"):
        Network(hosts=2, rates={number: "1gbit"})


def test_what_the_kernel_refuses_says_what_is_missing() -> None:
    """An OSError and pyroute2's own error, which isn't one, both become an EmulationError."""
    from pyroute2 import NetlinkError

    for refusal in (PermissionError(1, "Operation not permitted"), NetlinkError(1, "no")):
        message = r"could not do it: Operation not permitted. It needs a key"
        with pytest.raises(EmulationError, match=message), step("do it", "a key"):
            raise refusal


# -- what a host is ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network() -> Any:
    """Three hosts at 100 Mbit/s, for tests that leave nothing in them."""
    try:
        with Network(hosts=3, rate="100mbit") as made:
            yield made
    except EmulationError as exc:
        pytest.skip(str(exc))


def test_hosts_have_names_that_all_resolve(network: Network) -> None:
    """Every host's own name and address, and those of the others, by the system's resolver."""
    names = [host.name for host in network.hosts]
    assert names == ["algo-1", "algo-2", "algo-3"]
    code = "import socket, sys; print(socket.gethostname(), *map(socket.gethostbyname, sys.argv[1:]))"
    for number, host in enumerate(network.hosts):
        said = read(network, number, sys.executable, "-c", code, *names, "localhost").split()
        assert said == [host.name, *(other.address for other in network.hosts), "127.0.0.1"]


def test_no_name_server_is_asked(network: Network) -> None:
    """A name and an address that nobody knows. Expected: that is said at once, and not to try again."""
    code = """
import socket
print(*socket.getnameinfo(("::ffff:10.77.0.2", 80), socket.NI_NUMERICSERV))
try:
    socket.getaddrinfo("nobody.example", 80)
except socket.gaierror as exc:
    print(exc.errno == socket.EAI_NONAME)
"""
    assert read(network, 0, sys.executable, "-c", code).split() == ["::ffff:10.77.0.2", "80", "True"]


def test_a_host_has_its_own_interfaces_only(network: Network) -> None:
    assert read(network, 1, "ls", "/sys/class/net").split() == [network.hosts[1].interface, "lo"]
    outside = Path("/proc/self/ns/net").stat().st_ino
    inside = [int(read(network, host, "stat", "-Lc", "%i", "/proc/self/ns/net")) for host in range(3)]
    assert len({outside, *inside}) == 4


def test_the_machine_does_not_change(network: Network) -> None:
    """Its mounts, its host name, its interfaces and its named network namespaces are as without a network."""
    assert "algo-1" not in Path("/etc/hosts").read_text()
    assert "algo" not in os.uname().nodename
    assert not Path("/sys/class/net/port0").exists()
    assert not Path("/run/netns").exists() or not list(Path("/run/netns").iterdir())
    assert " /etc/hosts " not in Path("/proc/self/mountinfo").read_text() or os.path.ismount("/etc/hosts")


def test_programs_start_as_popen_would_start_them(network: Network, tmp_path: Path) -> None:
    """Working folder, environment and descriptors, and the process that Popen knows."""
    read_end, write_end = os.pipe()
    code = (
        "import os, sys; os.write(int(sys.argv[1]), b'x');"
        "print(os.getcwd(), sorted(os.environ), os.getpid(), os.listdir('/proc/self/fd'))"
    )
    process = network.popen(
        0,
        [sys.executable, "-I", "-S", "-c", code, str(write_end)],
        cwd=tmp_path,
        env={"A": "1", "LC_ALL": "C.UTF-8"},
        pass_fds=[write_end],
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate(timeout=30)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        assert file.read() == b"x"
    assert out.startswith(f"{tmp_path} ['A', 'LC_ALL'] {process.pid} ")
    assert "['0', '1', '2'" in out
    assert len(eval(out[out.rindex("[") :])) == 5  # 0, 1, 2, the one passed, and that of the listing itself


def test_the_program_sees_broken_pipes_as_usual(network: Network) -> None:
    """Python ignores SIGPIPE for itself; a shell that Python started with it ignored could not die of it."""
    ignored = int(read(network, 0, "sh", "-c", "grep SigIgn /proc/$$/status").split()[1], 16)
    assert not ignored & 1 << (signal.SIGPIPE - 1)


@pytest.mark.parametrize(
    ("argv", "options", "error"),
    [
        (["no-such-program"], {}, FileNotFoundError),
        (["./no-such-program"], {}, FileNotFoundError),
        ([str(HERE / "emulation_transfer.py")], {}, PermissionError),
        ([], {}, ValueError),
        (["true"], {"shell": True}, TypeError),
        (["true"], {"preexec_fn": print}, TypeError),
        (["true"], {"user": 1}, TypeError),
    ],
)
def test_programs_that_cannot_start_raise_what_popen_raises(
    network: Network, argv: list[str], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        network.popen(0, argv, **options)


def test_unknown_hosts_are_refused(network: Network) -> None:
    for ask in (lambda: network.popen(3, ["true"]), lambda: network.counters(-1)):
        with pytest.raises(IndexError, match="of a network of 3"):
            ask()


def test_any_thread_may_start_programs(network: Network) -> None:
    """A program started in a thread outlives the thread."""
    started: list[subprocess.Popen[Any]] = []
    thread = threading.Thread(target=lambda: started.append(network.popen(0, ["sleep", "100"])))
    thread.start()
    thread.join()
    with pytest.raises(subprocess.TimeoutExpired):
        started[0].wait(0.3)
    started[0].kill()
    started[0].wait()


# -- links ---------------------------------------------------------------------------------------------------------


def transfer(network: Network, sender: int, receiver: int, size_bytes: int) -> float:
    """Bits a second of one TCP connection, from its first byte to its last at the receiver."""
    server = network.popen(receiver, [*TRANSFER, "receive"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    server.stdout.readline()
    client = network.popen(sender, [*TRANSFER, "send", network.hosts[receiver].name, str(size_bytes)])
    out, _ = server.communicate(timeout=60)
    assert client.wait(10) == 0
    received, seconds = out.split()
    assert int(received) == size_bytes
    return 8 * size_bytes / float(seconds)


@pytest.mark.alone
def test_links_are_shaped_and_counted(network: Network) -> None:
    """25 MB at 100 Mbit/s: 2 s. Frames and a burst on two buckets are the difference; a slow machine only lowers it."""
    before = [network.counters(host) for host in range(3)]
    size = 25_000_000
    speed = transfer(network, 0, 1, size)
    assert 0.5 < speed / 100e6 < 1.02
    after = [network.counters(host) for host in range(3)]
    sent = [now.sent_bytes - then.sent_bytes for now, then in zip(after, before, strict=True)]
    received = [now.received_bytes - then.received_bytes for now, then in zip(after, before, strict=True)]
    assert size < sent[0] < 1.06 * size
    assert size < received[1] < 1.06 * size
    assert sent[2] < 10_000 and received[2] < 10_000
    assert after[0].sent_packets > before[0].sent_packets


@pytest.mark.alone
def test_the_receiving_side_is_shaped_too(network: Network) -> None:
    """Two hosts send to a third, 6 MB each: its port lets through 100 Mbit/s in all, so it takes 0.9 s, not 0.5."""
    server = network.popen(2, [*TRANSFER, "receive", "2"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    server.stdout.readline()
    clients = [network.popen(host, [*TRANSFER, "send", "algo-3", "6000000"]) for host in (0, 1)]
    received, seconds = server.communicate(timeout=60)[0].split()
    assert [client.wait(10) for client in clients] == [0, 0]
    assert int(received) == 12_000_000
    assert 8 * 12_000_000 / float(seconds) < 1.05 * 100e6


BUCKETS = """
from pyroute2 import IPRoute
with IPRoute() as route:
    names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in route.get_links()}
    for qdisc in route.get_qdiscs():
        if qdisc.get_attr("TCA_KIND") == "tbf":
            print(names[qdisc["index"]], 8 * qdisc.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")["rate"])
"""


def buckets(network: Network, namespace: dict[str, int]) -> dict[str, int]:
    """Interface to the bits a second of its token bucket, in a network namespace of the network."""
    argv = [sys.executable, str(ENTER), f"net={namespace['net']}", str(os.getpid()), "0"]
    descriptors = [namespace["net"]]
    code = [sys.executable, sys.executable, "-c", BUCKETS]
    said = subprocess.run([*argv, *code], pass_fds=descriptors, capture_output=True, text=True, check=True).stdout
    return {name: int(rate) for name, rate in (line.split() for line in said.splitlines())}


@pytest.fixture(scope="module")
def uneven() -> Any:
    """Host 0 at 400 Mbit/s, host 1 at 40 Mbit/s, host 2 unshaped."""
    try:
        with Network(hosts=3, rate="400mbit", rates={1: "40mbit", 2: None}) as made:
            yield made
    except EmulationError as exc:
        pytest.skip(str(exc))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to look into the switch's namespace")
def test_a_host_has_its_own_rate_in_both_directions(uneven: Network) -> None:
    """Expected: each host's bucket and that of its port on the switch have the host's rate; no bucket is unshaped."""
    assert [host.rate_bits_per_second for host in uneven.hosts] == [400_000_000, 40_000_000, None]
    inside = [buckets(uneven, namespaces) for namespaces in uneven._namespaces]
    assert inside == [{"eth0": 400_000_000}, {"eth0": 40_000_000}, {}]
    switch = buckets(uneven, {"net": uneven._outside["switch"]})
    assert switch == {"port0": 400_000_000, "port1": 40_000_000}


@pytest.mark.alone
@pytest.mark.parametrize("slow", [(1, 2), (2, 1)], ids=["from the slow one", "to the slow one"])
def test_a_slow_host_is_slower(uneven: Network, slow: tuple[int, int]) -> None:
    """The same 2 MB between host 2 and the fast one, and between host 2 and the slow one. A tenth, less the bursts."""
    fast = tuple(0 if host == 1 else host for host in slow)
    ratio = transfer(uneven, *slow, 2_000_000) / transfer(uneven, *fast, 2_000_000)
    assert ratio < 0.5


@pytest.mark.alone
def test_a_network_without_rate_is_fast() -> None:
    with Network(hosts=2) as network:
        assert network.rate_bits_per_second is None
        assert transfer(network, 0, 1, 50_000_000) > 500e6


def test_cubic_is_set_on_the_route(network: Network) -> None:
    """What a connection to another host says of itself, whatever the machine's default is."""
    server = network.popen(1, [*TRANSFER, "receive"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    server.stdout.readline()
    code = (
        "import socket; c = socket.create_connection(('algo-2', 5001));"
        "print(c.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode())"
    )
    assert read(network, 0, sys.executable, "-c", code) == "cubic"
    server.communicate(timeout=10)


def test_networks_do_not_meet() -> None:
    """Two networks of the same addresses at once: each reaches its own hosts, and both are independent in their end."""
    with Network(hosts=2) as first:
        with Network(hosts=2) as second:
            assert [host.address for host in first.hosts] == [host.address for host in second.hosts]
            assert transfer(first, 0, 1, 1000) > 0
            assert second.counters(1).received_bytes == 0
        assert transfer(first, 0, 1, 1000) > 0


@pytest.mark.alone
def test_sixteen_hosts_come_up_soon() -> None:
    """Typically 0.8 s; the bound leaves room for a machine that does something else."""
    begun = time.monotonic()
    with Network(hosts=16, rate="1gbit") as network:
        assert time.monotonic() - begun < 6
        assert read(network, 15, "hostname") == "algo-16"


# -- the end -------------------------------------------------------------------------------------------------------


def test_close_kills_all_and_may_be_called_again() -> None:
    """Also what left its parent, its session and its process group."""
    mark = f"hdp-emulation-test-{os.getpid()}-close"
    network = Network(hosts=2)
    process = network.popen(0, ["sh", "-c", "setsid sleep 1000 & sleep 1000"], env={"MARK": mark})
    assert eventually(lambda: len(processes_with(mark)) == 3)
    network.close()
    network.close()
    assert processes_with(mark) == []
    assert process.returncode == -signal.SIGKILL
    for ask in (lambda: network.popen(0, ["true"]), lambda: network.counters(0)):
        with pytest.raises(EmulationError, match="the network is closed"):
            ask()


CREATOR = """
import os, sys, time
from hdp.runtime.emulation import Network
network = Network(hosts=2, rate="1gbit")
network.popen(0, ["sh", "-c", "setsid sleep 1000 & sleep 1000"])
network.popen(1, ["sleep", "1000"])
print(network._keeper.pid, *(os.fstat(h["net"]).st_ino for h in network._namespaces), flush=True)
time.sleep(1000)
"""


def start_creator(mark: str) -> tuple[subprocess.Popen[str], int, list[int]]:
    """A creator with two hosts and four programs in them; its keeper's PID, and the hosts' inodes."""
    creator = subprocess.Popen(
        [sys.executable, "-c", CREATOR], env={**os.environ, "MARK": mark}, stdout=subprocess.PIPE, text=True
    )
    assert creator.stdout is not None
    keeper, *inodes = map(int, creator.stdout.readline().split())
    assert eventually(lambda: len(processes_with(mark)) == 6)
    return creator, keeper, inodes


def namespaces_in_use() -> set[int]:
    """Inodes of all network namespaces in which a process is or that one holds open."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add((entry / "ns/net").stat().st_ino)
                links = descriptors.targets(int(entry.name)).values()
            except OSError:
                continue
            found.update(int(link[5:-1]) for link in links if link.startswith("net:["))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_creator_is_killed(number: signal.Signals) -> None:
    """The programs, what they started, the keeper and the namespaces all go."""
    mark = f"hdp-emulation-test-{os.getpid()}-{number.name}"
    creator, _, inodes = start_creator(mark)
    creator.send_signal(number)
    creator.communicate(timeout=10)
    assert eventually(lambda: not processes_with(mark))
    assert eventually(lambda: not namespaces_in_use() & set(inodes))


def test_the_creators_own_children_end_with_it_even_without_keeper() -> None:
    """Keeper and creator are killed at once: the kernel kills the two programs, not the two that one had started."""
    mark = f"hdp-emulation-test-{os.getpid()}-both"
    creator, keeper, _ = start_creator(mark)
    os.kill(keeper, signal.SIGKILL)
    creator.kill()
    creator.wait(10)
    assert creator.stdout is not None
    creator.stdout.close()  # What is left holds its other end.
    try:
        assert eventually(lambda: len(processes_with(mark)) <= 2)
    finally:
        for pid in processes_with(mark):
            os.kill(pid, signal.SIGKILL)


def test_a_killed_keeper_is_reported_and_close_does_its_work() -> None:
    mark = f"hdp-emulation-test-{os.getpid()}-keeper"
    with Network(hosts=2) as network:
        network.popen(0, ["sh", "-c", "setsid sleep 1000 & sleep 1000"], env={"MARK": mark})
        assert eventually(lambda: len(processes_with(mark)) == 3)
        os.kill(network._keeper.pid, signal.SIGKILL)
        with pytest.raises(EmulationError, match=r"keeper \(process \d+\) has ended"):
            network.counters(0)
        assert transfer(network, 1, 0, 1000) > 0
    assert processes_with(mark) == []


# -- without root --------------------------------------------------------------------------------------------------

USER = """
import os, subprocess
from hdp.runtime.emulation import EmulationError, Network
code = "hostname; getent hosts algo-1; id -u; grep CapEff /proc/self/status; grep -c NoSuch /etc/hosts"
with Network(hosts=2, rate="10mbit") as network:
    process = network.popen(1, ["sh", "-c", code], stdout=subprocess.PIPE, text=True)
    print(process.communicate()[0], network.counters(0).dropped)
"""


def test_an_ordinary_user_gets_a_network_in_a_user_namespace(tmp_path: Path) -> None:
    """Its programs run as that user, without any privilege. Root tries it as somebody else."""
    uid = 61233 if os.geteuid() == 0 else os.geteuid()
    sys.path.append(str(HERE.parent / "jobs"))
    from user_namespace import start

    tmp_path.chmod(0o755)
    if os.geteuid() == 0:
        process = start(uid, [sys.executable, "-c", USER], dict(os.environ), Path("/"))
    else:
        command = [sys.executable, "-c", USER]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said, _ = process.communicate(timeout=60)
    if "user.max_user_namespaces" in said:
        pytest.skip(said)
    assert said.split() == ["algo-2", "10.77.0.1", "algo-1", str(uid), "CapEff:", "0" * 16, "0", "0"], said
