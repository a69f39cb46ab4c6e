"""Runs a script as torch's ranks, with the variables that torchrun gives and without its processes."""

import os
import sys

import forked_ranks
import torchrun

#: What scripts import. torch's compiler and FSDP are a second each.
MODULES = ("torch", "torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo")


def run(script, arguments, sizes, seconds=100, **environment):
    """Run it as so many ranks on each emulated node. Returns outputs (stdout and stderr) and exit codes, by rank.

    Ranks that aren't done after `seconds` are killed: exit code -9.
    """
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": torchrun.free_port(), "WORLD_SIZE": sum(sizes)}
    common |= {"OMP_NUM_THREADS": 1, "HDP_TIMEOUT_SECONDS": 30, **environment}
    ranks = []
    for node, local in ((node, local) for node, size in enumerate(sizes) for local in range(size)):
        place = {"RANK": len(ranks), "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": sizes[node], "GROUP_RANK": node}
        ranks.append({**os.environ, **{name: str(value) for name, value in {**common, **place}.items()}})
    command = [str(script), *(str(a) for a in arguments)]
    return forked_ranks.run(sys.executable, MODULES, command, ranks, seconds)


def succeeds(*arguments, **options):
    """`run`, of which every rank must succeed. Returns the outputs."""
    outputs, codes = run(*arguments, **options)
    assert not any(codes), forked_ranks.failure(outputs, codes)
    return outputs
