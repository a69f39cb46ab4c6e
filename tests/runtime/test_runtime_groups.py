"""Hosts of which only some have ranks: the world that the ranks see, and what the coordinator lets hosts say."""

from __future__ import annotations

import pytest

from hdp.contract.launch import LaunchSpec, from_hyperparameters, to_hyperparameters
from hdp.runtime.launch.coordination import Coordination
from hdp.runtime.launch.position import World, positions, read_world
from hdp.runtime.launch.wire import Message, WireError

HOSTS = ("algo-1", "algo-2", "algo-3", "algo-4")


def meet(*sizes: int) -> tuple[Coordination, Message]:
    """All hosts have come, with these numbers of ranks; the world that they are told."""
    coordination = Coordination(HOSTS, {"algo-2": "10.0.0.2"}, 60.0, 0.0)
    told = [coordination.hello(host, size) for host, size in zip(HOSTS, sizes, strict=True)][-1]
    return coordination, told[0][1]


def test_the_world_is_the_hosts_with_ranks() -> None:
    """0, 2, 0, 3 ranks: two nodes, numbered among themselves."""
    world = read_world(meet(0, 2, 0, 3)[1])
    assert [(h.name, h.address, h.local_size) for h in world.hosts] == [
        ("algo-2", "10.0.0.2", 2),
        ("algo-4", "algo-4", 3),
    ]
    assert (world.size, world.node("algo-2"), world.node("algo-4")) == (5, 0, 1)
    assert [(p.rank, p.local_rank, p.local_size) for p in positions(world, 1)] == [(2, 0, 3), (3, 1, 3), (4, 2, 3)]


def test_mpirun_runs_on_the_first_host_with_ranks() -> None:
    """algo-2 may have daemons started, algo-1 without ranks may not; what a daemon says goes to algo-2."""
    coordination, _ = meet(0, 2, 0, 3)
    start: Message = {"type": "start", "to": "algo-4", "id": 0, "command": "prted"}
    assert coordination.message("algo-2", start, 1.0) == [("algo-4", start)]
    done: Message = {"type": "exit", "id": 0, "code": 0, "error": ""}
    assert coordination.message("algo-4", done, 2.0) == [("algo-2", done)]
    with pytest.raises(WireError, match="host 'algo-1' sent 'start', which only algo-2 may"):
        coordination.message("algo-1", start, 3.0)


def test_the_job_ends_with_the_hosts_without_ranks() -> None:
    """Ranks are through first: all_done only when the others are."""
    coordination, _ = meet(0, 2, 0, 3)
    for host in ("algo-2", "algo-4", "algo-1"):
        assert coordination.message(host, {"type": "done", "ok": True}, 1.0) == []
    assert coordination.message("algo-3", {"type": "done", "ok": True}, 2.0) == [(None, {"type": "all_done"})]


@pytest.mark.parametrize(
    "spec",
    [
        LaunchSpec("hdp", processes_per_host=2, groups=("a",)),
        LaunchSpec("mpi", groups=("a", "b"), processes_by_group={"a": 1, "b": 3}),
    ],
)
def test_groups_travel_as_hyperparameters(spec: LaunchSpec) -> None:
    """There and back."""
    assert from_hyperparameters(to_hyperparameters(spec)) == spec


def test_how_many_ranks_a_host_gets() -> None:
    """By its group; none where the distribution leaves its group out; without a number, by its GPUs."""
    spec = LaunchSpec("hdp", groups=("a", "b"), processes_by_group={"a": 1, "b": 3})
    assert [spec.ranks_on(8, group) for group in ("a", "b", "c")] == [1, 3, 0]
    assert [LaunchSpec("hdp", groups=("a",)).ranks_on(gpus, "a") for gpus in (0, 8)] == [1, 8]
    assert LaunchSpec("multi_worker_mirrored_strategy", groups=("a",)).ranks_on(8, "b") == 0


def test_a_world_without_the_host_is_an_error() -> None:
    """Nobody asks for the place of a host without ranks."""
    with pytest.raises(ValueError, match="algo-1"):
        World(()).node("algo-1")
