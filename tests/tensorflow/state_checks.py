"""Variables, sessions of TensorFlow 1, the process, and what it keeps."""

import atexit
import os
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from function_support import everybody, raises, rank, same, tensor, values, whole

import hdp.tensorflow as dist
from hdp.contract.errors import InvalidCollective


def variables(salt=0):
    dtypes = (tf.float32, tf.int64, tf.float16, tf.bool, tf.float64)
    shapes = ((4, 3), (), (5,), (2,), (0, 2))
    return [tf.Variable(tensor(s, d, i + salt)) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]


def check_broadcast_variables():
    for root in (0, dist.size() - 1):
        expected = [values(v.shape, v.dtype, root, i) for i, v in enumerate(variables())]
        eager, graph = variables(), variables()
        assert dist.broadcast_variables(eager, root_rank=root) is None
        tf.function(lambda graph=graph, root=root: dist.broadcast_variables(graph, root))()
        for one, two, array in zip(eager, graph, expected, strict=True):
            same(one, array, one.dtype, bits=True)
            same(two, array, two.dtype, bits=True)
    dist.broadcast_variables([])


def check_in_sync():
    mine = variables()
    message = raises(dist.OutOfSync, lambda: dist.check_in_sync(mine), "differs from rank 0's on rank")
    everywhere = dist.allgather(tf.constant([message.count("rank")]))
    assert len(set(everywhere.numpy().tolist())) == 1
    dist.broadcast_variables(mine)
    dist.check_in_sync(mine)
    named = tf.Variable([1.0, 2.0], name="the_odd_one")
    if rank() == dist.size() - 1:
        named.assign([1.0, np.nextafter(np.float32(2), np.float32(3))])
    raises(dist.OutOfSync, lambda: dist.check_in_sync([*mine, named]), "the_odd_one", f"rank {dist.size() - 1}")
    raises(dist.OutOfSync, lambda: dist.check_in_sync(mine[: 2 + (rank() == 0)]), "3, 2")


def check_tensorflow_1():
    """A graph and a session: the hook, several collectives of the same kind, and constants, which mustn't be folded."""
    me, v1 = rank(), tf.compat.v1

    def slow(x):
        time.sleep(0.02)
        return x

    with tf.Graph().as_default():
        first = v1.get_variable("first", initializer=tf.constant([1.0 + me, 2.0]))
        second = v1.get_variable("second", initializer=tf.constant(10 * me, tf.int64))
        inputs = [v1.placeholder(tf.float32, [3], name=f"in{i}") for i in range(6)]
        order = range(6) if me % 2 else range(5, -1, -1)
        delayed, last = {}, None
        for i in order:  # the first rank runs them in another order
            with tf.control_dependencies([] if last is None else [last]):
                delayed[i] = tf.ensure_shape(tf.numpy_function(slow, [inputs[i]], tf.float32), [3])
            last = delayed[i]
        sums = [dist.allreduce(delayed[i], op=dist.Sum) for i in range(6)]
        constants = [dist.allreduce(tf.constant([1.0, 2.0]), op=dist.Sum) for _ in range(3)]
        gathered = [dist.allgather(tf.fill([me + 1], float(i))) for i in range(2)]
        hook = dist.BroadcastGlobalVariablesHook(dist.size() - 1)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            one, two = session.run([first, second])
            same(one, [float(dist.size()), 2.0])
            same(two, 10 * (dist.size() - 1))
            for step in range(4):
                feed = {place: values([3], tf.float32, me, 7 * i + step) for i, place in enumerate(inputs)}
                wanted = [sums, constants, gathered]
                if dist.operations_name() == "native":
                    found, folded, pieces = session.run(wanted, feed)
                else:  # in Python several at once wait for each other
                    found, folded, pieces = ([session.run(one, feed) for one in part] for part in wanted)
                for i, result in enumerate(found):
                    same(result, whole([3], tf.float32, dist.Sum, 7 * i + step))
                for result in folded:
                    same(result, [dist.size(), 2.0 * dist.size()])
                for i, result in enumerate(pieces):
                    same(result, np.full(sum(r + 1 for r in everybody()), float(i)))
            everything = v1.global_variables()
        assert [v.op.name for v in everything] == ["first", "second"], "variables of our own in the user's graph"
    raises(InvalidCollective, lambda: dist.BroadcastGlobalVariablesHook(0, device="/cpu:0"), "(device='/cpu:0')")
    raises(InvalidCollective, dist.broadcast_global_variables, "broadcast_variables")


def check_barrier():
    folder = Path(os.environ["CHECK_FOLDER"])
    if rank() == 0:
        time.sleep(0.3)
    (folder / f"here-{rank()}").touch()
    dist.barrier()
    assert len(list(folder.glob("here-*"))) == dist.size()
    raises(InvalidCollective, tf.function(dist.barrier), "outside")


def check_process():
    assert dist.is_initialized()
    before = dist.communicator()
    dist.init()
    assert dist.communicator() is before
    assert (dist.rank(), dist.size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    assert dist.local_rank() == int(os.environ["LOCAL_RANK"])
    assert dist.local_size() == int(os.environ["LOCAL_WORLD_SIZE"])
    sizes = dist.allgather(tf.constant([[dist.cross_rank(), dist.local_size()]])).numpy()
    assert dist.cross_size() == len(set(sizes[:, 0]))
    assert dist.is_homogeneous() == (len(set(sizes[:, 1])) == 1)
    if dist.operations_name() == "native":
        maps = Path("/proc/self/maps").read_text().splitlines()
        lines = [line.split() for line in maps if "libhdp_core" in line]
        assert len({line[-1] for line in lines}) == 1, lines
        assert len([line for line in lines if "x" in line[1]]) == 1, "mapped more than once"


def check_refusals():
    x = tf.ones([4])
    for call, text in (
        (lambda: dist.init(comm=[0]), "init(comm=[0])"),
        (lambda: dist.init(process_sets=[1]), "init(process_sets=[1])"),
        (lambda: dist.allreduce(x, device_dense="/gpu:0"), "allreduce(device_dense='/gpu:0')"),
        (lambda: dist.allreduce(x, device_sparse="/gpu:0"), "allreduce(device_sparse='/gpu:0')"),
        (lambda: dist.allreduce(x, process_set=1), "allreduce(process_set=1)"),
        (lambda: dist.grouped_allreduce([x], process_set=1), "grouped_allreduce(process_set=1)"),
        (lambda: dist.allgather(x, process_set=1), "allgather(process_set=1)"),
        (lambda: dist.broadcast(x, 0, process_set=1), "broadcast(process_set=1)"),
        (lambda: dist.reducescatter(x, process_set=1), "reducescatter(process_set=1)"),
        (lambda: dist.alltoall(x, process_set=1), "alltoall(process_set=1)"),
        (lambda: dist.barrier(process_set=1), "barrier(process_set=1)"),
        (lambda: dist.broadcast_variables([], 0, process_set=1), "broadcast_variables(process_set=1)"),
        (lambda: dist.DistributedGradientTape(None, num_groups=2), "DistributedGradientTape(num_groups=2)"),
        (lambda: dist.DistributedGradientTape(None, device_dense="/cpu:0"), "device_dense='/cpu:0'"),
        (lambda: dist.DistributedGradientTape(None, scale_local_gradients=False), "scale_local_gradients=False"),
        (lambda: dist.DistributedGradientTape(None, op=dist.Max), "Average or Sum"),
        (lambda: dist.DistributedGradientTape(None, op=dist.Sum, gradient_predivide_factor=2.0), "predivide"),
        (lambda: dist.DistributedGradientTape(None, bucket_cap_mb=0), "bucket_cap_mb is 0"),
        (lambda: dist.DistributedGradientTape(None, compression="zip"), "compression='zip'"),
    ):
        raises(InvalidCollective, call, text)


def check_forked_child():
    """A child that ends, as a data loader's does, ends at once and leaves its parent's world alone."""
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()  # what is ours; all of Python's end takes TensorFlow seconds
        os._exit(0)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.05)
    assert ended[1] == 0, ended
    same(dist.allreduce(tensor([3], tf.float32), op=dist.Sum), whole([3], tf.float32))


def check_memory():
    """2,000 steps of many sizes; neither memory nor descriptors grow."""

    @tf.function
    def step(x, n):
        parts = [dist.allreduce(x[: n * (i + 1)], op=dist.Sum) for i in range(3)]
        gathered = dist.allgather(x[:n])
        return tf.add_n([tf.reduce_sum(p) for p in parts]) + tf.reduce_sum(gathered)

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    x = tf.ones([30_000])
    rng = np.random.RandomState(0)

    def steps(count):
        for n in rng.randint(1, 10_000, count):
            found = step(x, tf.constant(int(n)))
        return float(found)

    steps(300)
    before, open_before = resident(), descriptors()
    steps(2000)
    grown = resident() - before
    assert grown < 24 << 20, f"{grown} bytes more after 2,000 steps, which made {2000 * 140_000} bytes of results"
    assert descriptors() == open_before
    kept = [
        dist.allreduce(tf.fill([1000], float(i)), op=dist.Sum) for i in range(50)
    ]  # memory in use isn't given twice
    for i, value in enumerate(kept):
        same(value, np.full(1000, float(i * dist.size())))
