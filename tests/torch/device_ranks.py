"""Scripts for torchrun with the fake driver, one a function: ``torchrun device_ranks.py NAME``. Waits block nobody."""

import contextlib
import faulthandler
import os
import signal
import sys
import time

import fake_tensors
import torch
import torch.distributed as dist
from rank_checks import raises

N = 400_003


def late_input(fake):
    """What a kernel writes that runs after the call is summed; a kernel that comes after the wait sees the sum."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    late, seen = torch.full((N,), -1.0), torch.zeros(N)

    def write(_):
        time.sleep(1.5)
        late.fill_(rank + 1.0)

    kernels = [fake_tensors.HostFunction(write), fake_tensors.HostFunction(lambda _: seen.copy_(late))]
    for stream in (0, fake.driver.stream()):
        late.fill_(-1)
        with fake.on(stream):
            fake.driver.run(stream, kernels[0])
            began = time.monotonic()
            dist.all_reduce(late)
            fake.driver.run(stream, kernels[1])
            assert time.monotonic() - began < 1
        fake.driver.synchronize(stream)
        assert torch.equal(seen, torch.full((N,), ranks * (ranks + 1) / 2))


def ends_at_once(_):
    """A process that ends while what it has waited for is in flight has done its part: the others get their sums."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.full((N,), float(rank))
    dist.all_reduce(mine)
    if rank == 0:
        print("rank 0 is fine", flush=True)
        sys.exit()  # without destroy_process_group
    if rank == 1:
        return
    time.sleep(1)
    assert torch.equal(mine, torch.full((N,), float(sum(range(ranks)))))
    raises(lambda: dist.all_reduce(torch.ones(3), async_op=True), "left")


def killed(fake):
    """Rank 1 is killed while copies are in flight: the others are told by what they call next, and no stream hangs."""
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    mine = torch.ones(32 << 20)
    dist.all_reduce(mine)  # 128 MiB
    if rank == 1:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    fake.driver.synchronize(0)
    dist.all_reduce(torch.ones(1))
    fake.driver.synchronize(0)
    dist.barrier()


def no_driver(_):
    """A tensor of a device, and no driver for it: said before anything is started."""
    raises(lambda: dist.all_reduce(torch.ones(3)), "backend hdp can't serve CUDA tensors: ")
    dist.barrier()


def untold(_):
    """An error that comes after the last call is raised by ``destroy_process_group``, on rank 1."""
    if dist.get_rank() == 0:
        time.sleep(0.5)
    with contextlib.suppress(RuntimeError):  # rank 0 may be told at once
        dist.all_reduce(torch.ones(300 + dist.get_rank()))
    time.sleep(2 if dist.get_rank() == 0 else 1)


def copy_fails(fake):
    """The driver fails in a copy: named, on every rank, by one of the next calls, as soon as it's known."""
    fake.driver.fail("cuMemcpyDtoHAsync_v2", 3 if dist.get_rank() == 0 else 10_000)
    mine = torch.ones(8 << 20)

    def reduce():
        for _ in range(100):
            dist.all_reduce(mine)
            fake.driver.synchronize(0)
            time.sleep(0.02)

    raises(reduce, "cuMemcpyDtoHAsync: CUDA_ERROR_")
    with contextlib.suppress(RuntimeError):  # may tell of one that nobody was told of
        dist.destroy_process_group()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(70)
    check = globals()[sys.argv[1]]
    fake = fake_tensors.install(dry=False) if check is not no_driver else fake_tensors.without_driver()
    dist.init_process_group("hdp")
    check(fake)
    print(f"rank {os.environ['RANK']} is fine", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
