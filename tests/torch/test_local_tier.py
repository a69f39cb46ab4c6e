"""The local tier: what is chosen, and what it computes, with gloo for NCCL and CPU tensors for a GPU's."""

import re
import tempfile
from pathlib import Path

import fake_cuda_driver
import forked
import forked_ranks
import pytest

pytest.importorskip("torch", reason="torch isn't installed: pip install 'hdp-train[torch]'")

from hdp.contract.errors import CollectiveMismatch, InvalidCollective
from hdp.torch.tier_choice import Choice, Facts, alone, choose

pytestmark = pytest.mark.timeout(220)  # where much else runs
FOLDER = Path(__file__).parent


def ranks(*places, setting="auto", why_not="", waits=False):
    """Facts of ranks with (host, GPU)."""
    return [Facts(setting, host, gpu, why_not, waits) for host, gpu in places]


TWO_BY_TWO = ((0, "a"), (0, "b"), (1, "a"), (1, "b"))


def test_nccl_where_each_rank_has_a_gpu():
    """The same name on two hosts is two GPUs."""
    assert choose(ranks(*TWO_BY_TWO)) == Choice(True, "every rank of a host has a GPU of its own")


def test_shm_where_it_is_said():
    assert choose(ranks(*TWO_BY_TWO, setting="shm")) == Choice(False, "$HDP_LOCAL_TIER is shm")


IMPOSSIBLE = [
    (ranks((0, "a"), (0, "b"), (1, "a")), "hosts have different numbers of ranks: 2, 1"),
    (ranks((0, "a"), (1, "a")), "every host has a single rank"),
    (ranks((0, "a"), (0, "b"), (1, "c"), (1, "c")), "ranks 2 and 3 share a GPU (c)"),
    (ranks((0, "a"), (1, "a"), (0, "b"), (1, "b")), "ranks aren't numbered host by host"),
    (ranks(*TWO_BY_TWO, why_not="built without it"), "rank 0 has no NCCL: built without it"),
]


@pytest.mark.parametrize(("found", "reason"), IMPOSSIBLE)
def test_shm_where_nccl_cannot_be(found, reason):
    choice = choose(found)
    assert not choice.nccl
    assert reason in choice.reason


@pytest.mark.parametrize(("found", "reason"), IMPOSSIBLE)
def test_nccl_where_it_cannot_be_is_an_error(found, reason):
    told = [Facts("nccl", one.host, one.gpu, one.why_not) for one in found]
    with pytest.raises(InvalidCollective, match=r"\$HDP_LOCAL_TIER is nccl, but ") as raised:
        choose(told)
    assert reason in str(raised.value)


def test_shm_where_threads_wait():
    """A call would block its caller until it is complete; unless nccl was asked for."""
    assert choose(ranks(*TWO_BY_TWO, waits=True)) == Choice(False, "$HDP_CUDA_WAIT is host")
    assert choose(ranks(*TWO_BY_TWO, waits=True, setting="nccl")).nccl


def test_ranks_that_were_told_different_things():
    found = [*ranks((0, "a"), (0, "b")), *ranks((1, "a"), (1, "b"), setting="shm")]
    with pytest.raises(CollectiveMismatch, match=r"rank 0 has 'auto', rank 2 has 'shm'"):
        choose(found)


def test_one_rank_is_enough():
    """To choose shm without waiting for others; nccl, and an error, take all ranks."""
    [told, without, demands, can] = [
        *ranks((0, "a"), setting="shm"),
        *ranks((0, "a"), why_not="built without it"),
        *ranks((0, "a"), setting="nccl", why_not="built without it"),
        *ranks((0, "a")),
    ]
    assert alone(told) == Choice(False, "$HDP_LOCAL_TIER is shm")
    assert alone(without) == Choice(False, "there is no NCCL: built without it")
    assert alone(demands) is None and alone(can) is None


def test_facts_travel():
    one = Facts("auto", 3, "GPU-x", "none", True)
    assert Facts.decoded(one.encoded().ljust(1024)) == one


@pytest.fixture
def driver(monkeypatch):
    """The fake driver, and a temporary folder short enough for the servers' sockets."""
    found = fake_cuda_driver.path()
    monkeypatch.setenv("HDP_CUDA_DRIVER", str(found))
    monkeypatch.setenv("HDP_FAKE_CUDA_LATENCY_US", "50")
    with tempfile.TemporaryDirectory(prefix="tier-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield found


def run(names, sizes, **environment):
    """Run scripts of tier_ranks.py on hosts with so many ranks each. Returns outputs and exit codes, by rank."""
    return forked.run(FOLDER / "tier_ranks.py", names, sizes, seconds=170, **environment)


def check(names, sizes, **environment):
    """Every rank must have run all of them. Returns the outputs."""
    outputs, codes = run(names, sizes, **environment)
    assert not any(codes), forked_ranks.failure(outputs, codes)
    for rank, output in enumerate(outputs):
        assert re.findall(r"^(\w+): rank (\d) is fine", output, re.MULTILINE) == [(n, str(rank)) for n in names]
    return outputs


@pytest.mark.slow
def test_sums_and_what_is_between_them(driver):
    """2 hosts of 2 ranks; gradients of a model, compared with one process; calls of the library in between."""
    for output in check(["layouts", "ddp", "futures", "mixed"], (2, 2)):
        assert output.count("a host's ranks are summed by NCCL (every rank of a host has a GPU of its own)") == 1


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2), pytest.param((2,), marks=pytest.mark.exhaustive)])
def test_every_dtype_and_operation(driver, sizes):
    """2 hosts of 2 and of 3 ranks, and one host, where NCCL does it all."""
    check(["allreduce", "layouts", "scattered", "inference"], sizes)


@pytest.mark.slow
def test_one_host(driver):
    check(["ddp", "futures", "mixed"], (2,))


@pytest.mark.slow
def test_ranks_that_call_different_things(driver):
    check(["mismatch"], (2, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["late_error", "exchange_fails"])
def test_errors_between_hosts(driver, name):
    """After `wait` has returned; and on one place of the host alone."""
    check([name], (2, 2))


@pytest.mark.slow
def test_a_rank_that_dies(driver):
    """All others are told within seconds, those of its host too."""
    outputs, codes = run(["dies"], (2, 2))
    assert codes == [0, 0, 0, 9], forked_ranks.failure(outputs, codes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "environment", "reason"),
    [
        ((2, 2), {"TIER_GPUS": "shared"}, "ranks 0 and 1 share a GPU (gpu 0)"),
        pytest.param((1, 2), {}, "hosts have different numbers of ranks: 1, 2", marks=pytest.mark.slow),
        pytest.param((2, 2), {"HDP_LOCAL_TIER": "shm"}, "$HDP_LOCAL_TIER is shm", marks=pytest.mark.slow),
    ],
)
def test_the_library_serves_all(driver, sizes, environment, reason):
    for output in check(["library"], sizes, **environment):
        assert output.count(f"INFO backend hdp: a host's ranks are summed in shared memory ({reason})") == 1


@pytest.mark.slow
def test_nccl_is_demanded_and_impossible(driver):
    """The same error on every rank, each time."""
    reason = "hosts have different numbers of ranks: 1, 2"
    check(["impossible"], (1, 2), HDP_LOCAL_TIER="nccl", TIER_EXPECTED=reason)


@pytest.mark.slow
def test_a_wrong_value(driver):
    outputs, codes = run(["library"], (1,), HDP_LOCAL_TIER="ncll")
    assert codes == [1]
    assert "InvalidCollective: $HDP_LOCAL_TIER is 'ncll'; expected auto, nccl or shm" in outputs[0]
