"""What a rank runs for test_functions.py: collectives, compared with NumPy, which has all ranks' tensors at hand.

function_ranks.py NAME...     the checks of these names, one after the other
"""

import faulthandler
import os
import sys
import tempfile
import time
import traceback

import fake_gpu
import gradient_checks
import order_checks
import state_checks
import tensorflow as tf
import value_checks
from function_support import raises, same

import hdp.tensorflow as dist
from hdp.contract.errors import CollectiveError

CHECKS = {
    name.removeprefix("check_"): check
    for module in (value_checks, gradient_checks, state_checks, order_checks)
    for name, check in vars(module).items()
    if name.startswith("check_")
}


def main(names):
    faulthandler.enable()
    if "without_init" in names:
        return without_init()
    fake_gpu.use()
    dist.init()
    print("operations", dist.operations_name(), tf.__version__)
    failed = 0
    for name in names or CHECKS:
        started = time.monotonic()
        try:
            CHECKS[name]()
        except Exception:
            failed = 1
            print(f"FAILED {name} {time.monotonic() - started:.1f} s")
            traceback.print_exc()
            continue
        print(f"ok {name} {time.monotonic() - started:.1f} s", flush=True)
    return failed


def without_init():
    """A process that no launcher started: calls before `init`, then a world of one, twice."""
    for call in (
        dist.rank,
        dist.size,
        dist.local_rank,
        dist.barrier,
        lambda: dist.allreduce(tf.ones(2)),
        lambda: dist.allgather(tf.ones(2)),
        lambda: dist.broadcast(tf.ones(2)),
        lambda: dist.broadcast_variables([tf.Variable(1.0)]),
        lambda: dist.check_in_sync([tf.Variable(1.0)]),
    ):
        raises(CollectiveError, call, "call init() first")
    dist.shutdown()
    step = tf.function(lambda x: dist.allreduce(x, op=dist.Sum) + dist.allgather(x) * dist.broadcast(x, 0))
    for _ in range(2):
        dist.init()
        assert (dist.rank(), dist.size(), dist.local_rank(), dist.local_size()) == (0, 1, 0, 1)
        for _ in range(3):
            same(step(tf.constant([2.0, 3.0])), [6.0, 12.0])
        variable = tf.Variable([1.0])
        dist.broadcast_variables([variable])
        dist.check_in_sync([variable])
        dist.barrier()
        with dist.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = variable * 3
        same(tape.gradient(loss, variable), [3.0])
        dist.shutdown()
        dist.shutdown()
        raises(CollectiveError, dist.rank, "call init() first")
        raises((CollectiveError, tf.errors.OpError), lambda: step(tf.constant([2.0, 3.0])), "init()")
    print("ok without_init")
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("CHECK_FOLDER", folder)
        code = main(sys.argv[1:])
    sys.exit(code)
