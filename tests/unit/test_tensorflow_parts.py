"""Parts of hdp.tensorflow that need no other rank."""

import pytest

from hdp.contract.errors import InvalidCollective

pytest.importorskip("tensorflow", reason="TensorFlow isn't installed")

from hdp.tensorflow import buckets
from hdp.tensorflow.agreement import difference
from hdp.tensorflow.buckets import FIRST_BUCKET_BYTES, Gradient
from hdp.tensorflow.refusals import refuse
from hdp.tensorflow.sequence import tag_of

MIB = 1 << 20


def dense(name, size_bytes, dtype="float32"):
    return Gradient(name, dtype, (size_bytes // 4,), "dense", size_bytes)


def cut(gradients, most):
    return buckets._cut(gradients, most)


def test_buckets_begin_with_the_last_variable():
    """The first is small; the others hold as much as they may."""
    gradients = [dense(str(i), MIB // 2) for i in range(10)]
    assert cut(gradients, 2 * MIB) == ((9, 8), (7, 6, 5, 4), (3, 2, 1, 0))


def test_every_gradient_is_in_one_bucket():
    gradients = [dense(str(i), 1000 * (i % 7 + 1), ("float32", "float16")[i % 3 == 0]) for i in range(100)]
    gradients[5] = Gradient("none", "", (), "none", 0)
    gradients[6] = Gradient("sparse", "float32", (None, 3), "sparse", 0)
    found = cut(gradients, 20_000)
    assert sorted(i for bucket in found for i in bucket) == [i for i in range(100) if i not in (5, 6)]
    for bucket in found:
        assert len({gradients[i].dtype for i in bucket}) == 1
        assert len(bucket) == 1 or sum(gradients[i].bytes for i in bucket) <= 20_000


def test_a_gradient_larger_than_a_bucket_has_its_own():
    gradients = [dense("small", 8), dense("large", 5 * FIRST_BUCKET_BYTES), dense("little", 8)]
    assert cut(gradients, MIB) == ((2,), (1,), (0,))


def test_no_gradients():
    assert cut([], MIB) == ()


@pytest.mark.parametrize("megabytes", [0, -1, True, "25", None, float("nan")])
def test_bucket_cap(megabytes):
    with pytest.raises(InvalidCollective, match="bucket_cap_mb is"):
        buckets.bucket_bytes_of(megabytes)


def test_least_bucket():
    assert buckets.bucket_bytes_of(1e-9) == 1


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ([["a", "x"], ["c", "y"]], "where rank 0 has 'b', rank 1 has 'c'"),
        ([["a", "x"], ["b", "z"]], "different gradients for 'b': rank 0 has y, rank 1 has z"),
        ([["a", "x"]], "rank 0 has 2, rank 1 has 1"),
        ([["a", "x"], ["b", "y"], ["c", "y"]], "rank 0 has 2, rank 1 has 3"),
        ([], "rank 0 has 2, rank 1 has 0"),
    ],
)
def test_difference_is_named(other, text):
    mine = [["a", "x"], ["b", "y"]]
    assert text in difference("gradients", [mine, other, mine])
    assert text.replace("rank 1", "rank 2") in difference("gradients", [mine, mine, other])


def test_difference_with_names_of_this_rank():
    """Where ranks compare by place, and each has a name of its own for it."""
    text = difference("values", [[["0", "x"], ["1", "y"]], [["0", "x"], ["1", "z"]]], ["kernel", "bias"])
    assert text == "ranks have different values for 'bias': rank 0 has y, rank 1 has z"


@pytest.mark.parametrize("value", [1, "gpu", [0], False])
def test_refused_by_name(value):
    with pytest.raises(InvalidCollective, match=r"f\(device_dense=.* isn't supported: operations run"):
        refuse("f", {"device_dense": (value, "")})


@pytest.mark.parametrize("value", ["", None])
def test_what_changes_nothing_is_taken(value):
    refuse("f", {"device_dense": (value, "")})


def test_tags_fit_and_differ():
    """The core takes 63 bytes, and up to 23 of them are added."""
    names = ["short", "a" * 40, "a" * 41, "a" * 42, "\u00fc" * 21, "\u00fc" * 300, "a" * 16 + "b" * 40]
    tags = [tag_of(name) for name in names]
    assert len(set(tags)) == len(names)
    assert all(len(tag.encode()) <= 40 for tag in tags)
    assert tags[:2] == names[:2]
