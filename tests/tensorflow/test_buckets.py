"""How large buckets of gradients are: none above the cap, and several of a small model."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from hdp.tensorflow.buckets import Gradient, _cut

MIB = 1 << 20


def cut(sizes, most=25 * MIB):
    """Bytes of the buckets of gradients of these sizes."""
    buckets = _cut([Gradient("v", "float32", (n // 4,), "dense", n) for n in sizes], most)
    return [sum(sizes[i] for i in bucket) for bucket in buckets]


def test_a_small_model_goes_in_eight_buckets():
    """32 MiB in parts of 1 MiB: 1, then 4 at a time, though 25 would fit."""
    assert cut([MIB] * 32) == [MIB] + [4 * MIB] * 7 + [3 * MIB]


def test_a_large_model_goes_in_buckets_of_the_cap():
    assert cut([5 * MIB] * 100)[:4] == [5 * MIB, 25 * MIB, 25 * MIB, 25 * MIB]
    assert max(cut([MIB] * 100, most=3 * MIB)) == 3 * MIB


def test_buckets_are_not_made_smaller_than_2_mib_for_it():
    assert cut([MIB // 2] * 8) == [MIB, 2 * MIB, MIB]
