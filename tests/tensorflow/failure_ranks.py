"""What a rank runs for test_functions.py's errors: one world after the other, each broken in its own way.

failure_ranks.py FILE    a JSON list of [case, sockets by host, secret]
"""

import faulthandler
import json
import os
import sys
import threading
import time
from pathlib import Path

import tensorflow as tf

import hdp.tensorflow as dist
from hdp.contract.errors import CollectiveMismatch


def shape(odd):
    return dist.allreduce(tf.ones([3 if odd else 2]))


def shape_of_the_same_size(odd):
    return dist.allreduce(tf.ones([3, 2] if odd else [2, 3]))


def shape_in_a_group(odd):
    return dist.grouped_allreduce([tf.ones([3, 2] if odd else [2, 3])] + [tf.ones([2])] * 40)


def shape_of_rows(odd):
    return dist.allgather(tf.ones([2, 3, 2] if odd else [2, 2, 3]))


def dtype(odd):
    return dist.allreduce(tf.ones([2], tf.float64 if odd else tf.float32))


def op(odd):
    return dist.allreduce(tf.ones([2]), op=dist.Max if odd else dist.Sum)


def root(odd):
    return dist.broadcast(tf.ones([2]), 1 if odd else 0)


def kind(odd):
    return dist.broadcast(tf.ones([2]), name="x") if odd else dist.allreduce(tf.ones([2]), name="x")


def missing(odd):
    if odd:
        time.sleep(8)
        return None
    return dist.allreduce(tf.ones([2]), name="loss")


def splits(odd):
    """Says more rows than it has."""
    splits = [1] * dist.size()
    if odd:
        splits[0] = 1000
    return dist.alltoall(tf.ones([dist.size(), 2]), splits=splits)


def negative_splits(odd):
    splits = [1] * dist.size()
    if odd:
        splits[:2] = [3, -1]
    return dist.alltoall(tf.ones([dist.size(), 2]), splits=splits)


def gradient(odd):
    one, two = tf.Variable(1.0, name="weight_one"), tf.Variable(1.0, name="weight_two")
    with dist.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = one * 1 if odd else one * two
    return tape.gradient(loss, [one, two])


def gradient_shape(odd):
    one = tf.Variable(tf.ones([3, 2] if odd else [2, 3]), name="weight_one")
    with dist.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(one)
    return tape.gradient(loss, [one])


def other_variables(odd):
    one, two = tf.Variable(1.0, name="weight_one"), tf.Variable(tf.ones([3 if odd else 2]), name="weight_two")
    dist.broadcast_variables([one, two])


def fewer_variables(odd):
    one, two = tf.Variable(1.0, name="weight_one"), tf.Variable(1.0, name="weight_two")
    dist.broadcast_variables([one] if odd else [one, two])


def shutdown_in_flight(odd):
    """One rank shuts down while its own operation and others' are in flight."""
    if not odd:
        return dist.allreduce(tf.ones([2]), name="loss")
    threading.Timer(1.0, dist.shutdown).start()
    return dist.allreduce(tf.ones([2]), name="something else")


#: The others run eagerly.
IN_FUNCTIONS = ("dtype", "op", "shape_in_a_group", "shape_of_rows", "missing")


def main(path):
    faulthandler.enable()
    results = {}
    host = int(Path(os.environ["HDP_SERVER_SOCKET"]).name[1:])
    for name, sockets, secret in json.loads(Path(path).read_text()):
        case = globals()[name]
        os.environ["HDP_SERVER_SOCKET"] = sockets[host]
        os.environ["HDP_SECRET_FILE"] = secret
        dist.init()
        odd = dist.rank() == dist.size() - 1
        assert float(dist.allreduce(tf.constant(1.0), op=dist.Sum)) == dist.size()
        started = time.monotonic()
        run = tf.function(case) if name in IN_FUNCTIONS else case
        try:
            run(odd)
            results[name] = ["", ""]
        except (tf.errors.OpError, CollectiveMismatch) as exc:
            results[name] = [type(exc).__name__, getattr(exc, "message", "") or str(exc)]
        results[name].append(time.monotonic() - started)
        dist.shutdown()
    print("RESULTS " + json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
