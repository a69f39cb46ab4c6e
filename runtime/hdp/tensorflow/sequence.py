"""Numbers that tell calls apart: the n-th call of a tag on one rank meets the n-th on the others.

TensorFlow runs the operations of a graph in any order, and may merge or fold what looks the same each time. So a call
draws its number from a variable, in the order of the program: TensorFlow keeps accesses to a variable in that order,
in loops and in functions that call functions, and every rank runs the same program. The operation itself takes the
number as an input and is free to run whenever its data is there.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import tensorflow as tf

_LONGEST_TAG = 40

_lock = threading.Lock()
_counters: dict[str, Any] = {}


def tag_of(name: str) -> str:
    """`name`, or what stands for it where it is too long for the core."""
    if len(name.encode()) <= _LONGEST_TAG:
        return name
    return f"{name.encode()[:16].decode(errors='ignore')}~{hashlib.blake2s(name.encode(), digest_size=8).hexdigest()}"


def next_number(tag: str) -> Any:
    """The number of this call of `tag`: an int64 scalar. -1 in a graph of TensorFlow 1, where the core counts."""
    if not tf.executing_eagerly() and not tf.inside_function():
        return tf.constant(-1, tf.int64)
    with tf.device("CPU:0"):
        counter = _counter(tag)
        return tf.identity(counter.assign_add(1))


def _counter(tag: str) -> Any:
    with _lock:
        if tag not in _counters:
            with tf.init_scope():
                _counters[tag] = tf.Variable(0, dtype=tf.int64, trainable=False, name="hdp_sequence")
        return _counters[tag]


def restart() -> None:
    """All ranks begin again: a new communicator."""
    with _lock:
        for counter in _counters.values():
            counter.assign(0)
