"""A work of a device's tensors, without a device: which stream waits, who finishes, who is told of an error."""

import contextlib
import threading
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")

from hdp.contract.errors import CollectiveMismatch, CollectiveTimeout, InvalidCollective, PeerLost  # noqa: E402
from hdp.torch import devices  # noqa: E402
from hdp.torch.devices import Cuda, Origin  # noqa: E402
from hdp.torch.runner import Runner  # noqa: E402
from hdp.torch.staged import StagedWork  # noqa: E402
from hdp.torch.work import HdpWork, JoinedWork  # noqa: E402


class Journal(Cuda):
    """Streams are names; what is asked for is written down."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self._thread = threading.local()

    def current(self, device):
        return getattr(self._thread, "stream", "user")

    def side(self, device):
        return "side"

    def handle(self, stream):
        return stream

    @contextlib.contextmanager
    def on(self, stream):
        before, self._thread.stream = self.current(0), stream
        yield
        self._thread.stream = before

    def record(self, stream):
        self.lines.append(f"record {stream}")
        return f"event of {stream}"

    def wait(self, stream, event):
        self.lines.append(f"{stream} waits for {event}")

    def used(self, tensors, stream):
        self.lines.append(f"{stream} uses {len(tensors)}")

    def future(self, device):
        return torch.futures.Future()


class Comm:
    """Operations that are complete when a test says so."""

    def __init__(self, journal, waits=True):
        self.journal, self.waits = journal, waits
        self.complete, self.error = threading.Event(), None

    def stream_wait(self, ticket, stream):
        self.journal.lines.append(f"{stream} waits for {ticket}" if self.waits else "can't")
        if self.complete.is_set() and self.error is not None:
            raise self.error
        return self.waits

    def wait(self, ticket, timeout=None):
        if not self.complete.wait(5 if timeout is None else timeout):
            assert timeout is not None, "nobody completes it"
            return False
        if self.error is not None:
            raise self.error
        return True

    def release(self, ticket):
        self.journal.lines.append(f"release {ticket}")


@pytest.fixture
def journal():
    return Journal()


def _work(journal, comm=None, finish=True):
    comm = comm or Comm(journal)
    output = torch.zeros(2)
    actions = [lambda: journal.lines.append(f"finish on {journal.current(0)}")] if finish else []
    work = HdpWork(comm, [output], [output, torch.ones(3)], actions, Origin(journal, 0, "user"))
    work.add_ticket("op")
    return work, comm


def test_a_wait_is_the_streams(journal):
    work, comm = _work(journal, finish=False)
    assert work.wait() and not comm.complete.is_set()
    assert journal.lines == ["user waits for op"] and work.passed


def test_what_is_left_to_do_comes_in_the_stream_that_waits(journal):
    """Others who wait do so for its event; it is done once; its memory is kept until the operation is complete."""
    work, comm = _work(journal)
    with journal.on("mine"):
        work.wait()
    mine = ["mine waits for op", "finish on mine", "mine uses 2", "record mine", "mine waits for event of mine"]
    assert journal.lines == mine
    work.wait()
    assert journal.lines[5:] == ["user waits for op", "user waits for event of mine"]
    assert len(work._keep) == 2
    comm.complete.set()
    work.settle(fine=True)
    assert journal.lines[7:] == ["release op"] and not work._keep


def test_a_future_finishes_in_a_side_stream(journal):
    """In a thread of ours, when the operation is complete; a wait after that is for the event alone."""
    work, comm = _work(journal)
    work.make_future()
    future = work._future.then(lambda f: len(f.value()))
    comm.complete.set()
    threading.Thread(target=work.complete_future).start()
    assert future.wait() == 1
    side = ["release op", "finish on side", "side uses 2", "record side", "user waits for event of side"]
    assert journal.lines == side
    work.wait()
    assert journal.lines[5:] == ["user waits for event of side"] and not work.passed


@pytest.mark.parametrize("timeout", [None, timedelta(seconds=5)], ids=["the device can't", "a timeout"])
def test_the_thread_waits(journal, timeout):
    """Where the driver has no such wait, and for a time limit; what is left to do comes in the waiter's stream."""
    work, comm = _work(journal, Comm(journal, waits=timeout is not None))
    threading.Timer(0.1, comm.complete.set).start()
    assert work.wait(timeout) and comm.complete.is_set() and not work.passed
    assert journal.lines[-4:] == ["finish on user", "user uses 2", "record user", "user waits for event of user"]


def test_a_time_limit_passes(journal):
    work, _ = _work(journal)
    with pytest.raises(CollectiveTimeout, match="the operation goes on"):
        work.wait(timedelta(seconds=0.01))


def test_an_error_that_is_known_is_raised_at_once(journal):
    work, comm = _work(journal)
    comm.error = PeerLost("rank 1 is gone")
    comm.complete.set()
    for _ in range(2):
        with pytest.raises(PeerLost, match="rank 1 is gone"):
            work.wait()
    assert "finish on user" not in journal.lines and not work.passed and not work.is_success()


def test_an_error_of_what_is_left_to_do_is_the_works(journal):
    work, _ = _work(journal, finish=False)
    work._finish = [lambda: torch.ones(2).view(3)]
    with pytest.raises(RuntimeError, match="invalid for input of size 2"):
        work.wait()
    assert not work.passed


class Group:
    """A group whose operations are of `comm`."""

    id, size = 5, 2

    def __init__(self, comm):
        self.comm = comm


def test_a_late_error_is_the_groups(journal, caplog):
    """Logged at once, raised by the next call, with the text of the first; and at the end, unless it was raised."""
    comm = Comm(journal)
    runner = Runner(Group(comm))
    works = [_work(journal, comm, finish=False)[0] for _ in range(2)]
    for work in works:
        work.on_settled = runner._settled
        work.wait()
    runner.check()
    comm.error = CollectiveMismatch("the ranks disagree")
    comm.complete.set()
    for work in works:
        work.settle()
    assert caplog.text.count("failed after its wait() had returned: the ranks disagree") == 1
    with pytest.raises(CollectiveMismatch, match=r"an earlier operation .* the ranks disagree"):
        runner.end()
    with pytest.raises(CollectiveMismatch, match="an earlier operation"):
        runner.check()
    runner.end()


def test_an_error_that_someone_was_told_is_not_the_groups(journal):
    comm = Comm(journal)
    runner = Runner(Group(comm))
    work, _ = _work(journal, comm)
    work.on_settled = runner._settled
    comm.error = CollectiveMismatch("the ranks disagree")
    comm.complete.set()
    with pytest.raises(CollectiveMismatch):
        work.wait()
    runner.check()


def test_steps_go_on_in_the_callers_stream(journal):
    """And whoever waits gets an event after the last one."""
    comm = Comm(journal)
    comm.complete.set()
    made = []

    def start(call, asynchronous):
        work, _ = _work(journal, comm)
        made.append(journal.current(0))
        if asynchronous:
            work.make_future()
            with journal.on("pool"):
                work.complete_future()
        return work

    with journal.on("pool"):
        work = StagedWork(start, iter("ab"), [torch.zeros(1)], Origin(journal, 0, "caller"))
        assert made == ["pool", "caller"]
        assert "pool waits for event of caller" in journal.lines
    work.wait()
    assert journal.lines[-1] == "user waits for event of caller"


def test_works_that_are_joined_are_waited_for_in_one_stream(journal):
    comm = Comm(journal)
    works = [_work(journal, comm)[0] for _ in range(2)]
    for work in works:
        work.make_future()
    future = JoinedWork(works).get_future()
    comm.complete.set()
    for work in works:
        work.complete_future()
    assert len(future.wait()) == 2
    assert journal.lines.count("user waits for event of side") == 4


def test_tensors_in_several_places_are_refused():
    cuda = Cuda()
    with pytest.raises(InvalidCollective, match="allgather of a tensor on meta: backend hdp takes tensors on cpu and"):
        devices.origin(cuda, "allgather", [torch.ones(2), torch.ones(2, device="meta")])
    freed = torch.ones(4)[1:]
    freed.untyped_storage().resize_(0)
    with pytest.raises(InvalidCollective, match="a tensor of 3 elements whose memory was freed"):
        devices.origin(cuda, "allreduce", [torch.ones(2), freed])
    assert devices.origin(cuda, "allreduce", [torch.ones(0), torch.ones(2).to_sparse()]) is None
    assert devices.origin(cuda, "barrier", []) is None


def test_a_forgotten_device_is_pointed_out_once(caplog):
    class Four(Journal):
        def count(self):
            return 4

    cuda = Four()
    for device, local_rank in ((0, 0), (1, 1), (0, 5), (0, 3), (0, 3)):
        devices.advise(cuda, device, local_rank)
    assert [r.getMessage() for r in caplog.records] == [
        "backend hdp: local rank 3 of this host uses cuda:0, as local rank 0 does, though there are 4 devices; "
        "call torch.cuda.set_device(3) before the model is made"
    ]
