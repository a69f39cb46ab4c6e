"""What tests let a rank call: functions of a module, so that they can be sent to it."""

import numpy as np

import hdp.collectives as hc
from hdp.collectives.communicator import join


def ones(comm, count=10, timeout=None, tag=None):
    """The sum of ones over all ranks."""
    return hc.allreduce(np.ones(count, np.float32), comm.world, timeout=timeout, tag=tag).wait().tolist()


def leave(comm):
    comm.close()


def rejoin(comm, socket_path, secret, local_rank, rank):
    """Join anew; the sum of 1 over all ranks."""
    again = join(socket_path, secret, rank, local_rank, 20)
    try:
        return float(hc.allreduce(np.ones(1), again.world).wait(20)[0])
    finally:
        again.close()
