"""Numbers that tell calls apart: the n-th call of a tag on one rank meets the n-th on the others.

TensorFlow runs the operations of a graph in any order, and may merge or fold what looks the same each time. So a call
draws its number from a variable, in the order of the program: TensorFlow keeps accesses to a variable in that order,
in loops and in functions that call functions, and every rank runs the same program. The operation itself takes the
number as an input and is free to run whenever its data is there.

A second variable is given something of each result. It keeps TensorFlow from leaving out an operation whose result
one rank doesn't use: the other ranks would wait for it.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import Counter
from typing import Any

import tensorflow as tf

_LONGEST_TAG = 40

_lock = threading.Lock()
_counters: dict[str, Any] = {}
_in_graphs: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def tag_of(name: str) -> str:
    """`name`, or what stands for it where it is too long for the core."""
    if len(name.encode()) <= _LONGEST_TAG:
        return name
    return f"{name.encode()[:16].decode(errors='ignore')}~{hashlib.blake2s(name.encode(), digest_size=8).hexdigest()}"


def next_call(tag: str) -> tuple[str, Any]:
    """The tag and the number of this call of `tag`; the number is an int64 scalar.

    A graph of TensorFlow 1 has no such order, but runs each of its operations once in a session's run. There every
    call has a tag of its own, and the number -1: the core counts.
    """
    graph = _graph_of_tensorflow_1()
    if graph is None:
        with tf.device("CPU:0"):
            return tag, tf.identity(_counter(tag).assign_add(1))
    with _lock:
        calls = _in_graphs.setdefault(graph, Counter())
        calls[tag] += 1
        tag = f"{tag}@{calls[tag]}"
    with tf.device("CPU:0"):  # the time is read each time, so that nothing that depends on it is folded
        return tag, tf.minimum(tf.cast(tf.timestamp(), tf.int64), tf.constant(-1, tf.int64))


def ensure_run(result: Any) -> None:
    """Within a function: let what made `result` run, also where nobody uses it."""
    if tf.executing_eagerly() or _graph_of_tensorflow_1() is not None:
        return
    with tf.device("CPU:0"):  # by its value: what is only waited for is left out as well
        first = tf.cast(tf.reshape(result, [-1])[:1], tf.int64)
        _counter("used").assign(tf.reduce_sum(first), read_value=False)


def _graph_of_tensorflow_1() -> Any:
    """The graph into which operations go that run in a session; None: they run at once, or in a tf.function."""
    if tf.executing_eagerly():
        return None
    with tf.init_scope():
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _counter(tag: str) -> Any:
    with _lock:
        if tag not in _counters:
            with tf.init_scope():
                _counters[tag] = tf.Variable(0, dtype=tf.int64, trainable=False, name="hdp_sequence")
        return _counters[tag]


def restart() -> None:
    """All ranks begin again: a new communicator."""
    with _lock, tf.init_scope():
        for counter in _counters.values():
            counter.assign(0)
