"""Whether the native operations work with this TensorFlow: eagerly, and many in a function. Exits with 0 if so."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

from hdp.collectives import library
from hdp.collectives.alone import alone
from hdp.tensorflow.native import functions, library_path


def main() -> int:
    """Run a few operations in a world of one rank."""
    library.load()
    operations = tf.load_op_library(str(library_path()))
    comm = alone()
    text = library.ErrorText()
    text.check(functions().hdp_tf_attach(comm.handle, 1, 30_000, 0, *text.arguments))

    def reduced(tensors: list[tf.Tensor], number: tf.Tensor, tag: str) -> list[tf.Tensor]:
        return list(operations.hdp_allreduce(sequence=number, tensors=tensors, tag=tag, op=0, wire=0))

    @tf.function  # type: ignore[untyped-decorator]
    def many(number: tf.Tensor) -> list[tf.Tensor]:
        return [reduced([tf.fill([1000], float(i)), tf.ones([3, i])], number, f"t{i}") for i in range(8)]

    eager = reduced([tf.range(10.0)], tf.constant(1, tf.int64), "eager")
    results = many(tf.constant(1, tf.int64))
    right = np.array_equal(eager[0], np.arange(10.0)) and all(
        np.array_equal(found[0], np.full(1000, float(i))) and np.array_equal(found[1], np.ones((3, i)))
        for i, found in enumerate(results)
    )
    functions().hdp_tf_stop()
    comm.close()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
