"""Hyperparameters keep their types; what can't travel is refused with its path."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdp.contract.hyperparameters import decode, encode
from hdp.estimator import FLAG
from hdp.estimator.hyperparameters import encode_all, parse, shadowed


def cyclic() -> list[Any]:
    """A list that holds a dictionary that holds the list."""
    outer: list[Any] = [1]
    outer.append({"a": outer})
    return outer


def nested(depth: int) -> list[Any]:
    """[[...[]...]]."""
    out: list[Any] = []
    for _ in range(depth):
        out = [out]
    return out


def shared(levels: int) -> list[Any]:
    """No cycle, yet 2**levels lists when it is spelt out."""
    out: list[Any] = []
    for _ in range(levels):
        out = [out, out]
    return out


def sent(values: dict[str, Any]) -> dict[str, str]:
    plain, faults = parse(values)
    assert faults == []
    return encode_all(plain, script=True)


SCALARS = [True, False, None, 0, -7, 10**30, 0.1, 1e-300, "1.10", "it's", '"', "", "true", "null", "é\n\t漢"]


@pytest.mark.parametrize("value", [*SCALARS, [1, "a", None], {"a": {"b": [1.5, False]}}, [], {}])
def test_a_value_arrives_as_it_was_given(value: object) -> None:
    """Encoded by the client, decoded by the runtime's function: same value, same type."""
    arrived = decode(sent({"x": value})["x"])
    assert arrived == value
    assert type(arrived) is type(value)


_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(_json)
def test_any_json_value_round_trips(value: object) -> None:
    """Whatever JSON can say, within the length limit."""
    if len(encode(value)) <= 2500:
        assert decode(sent({"x": value})["x"]) == value


def test_a_flag_arrives_as_the_flag() -> None:
    """FLAG is a marker, not a value."""
    assert decode(sent({"verbose": FLAG})["verbose"]) is FLAG


def test_a_tuple_arrives_as_a_list() -> None:
    """JSON has no tuples; documented."""
    assert decode(sent({"x": (1, (2,))})["x"]) == [1, [2]]


@pytest.mark.parametrize(
    ("value", "plain"),
    [(np.float64(0.5), 0.5), (np.int64(3), 3), (np.bool_(True), True), (np.array(7), 7), ([np.int32(1)], [1])],
)
def test_numpy_scalars_become_python_numbers(value: object, plain: object) -> None:
    """By .item(), also inside lists."""
    arrived = decode(sent({"x": value})["x"])
    assert arrived == plain
    assert type(arrived) is type(plain)


def test_2500_characters_are_fine() -> None:
    """The limit itself: 2,498 letters and two quotes."""
    assert len(sent({"x": "a" * 2498})["x"]) == 2500


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"x": "a" * 2499}, "hyperparameters['x'] has 2501 characters as JSON; at most 2500"),
        ({"x": math.inf}, "hyperparameters['x'] is inf, which JSON can't say; send it as text, e.g. 'inf'"),
        ({"x": [1, {"y": math.nan}]}, "hyperparameters['x'][1]['y'] is nan, which JSON can't say"),
        ({"x": {1: 2}}, "hyperparameters['x'] has the key 1 (int); JSON keeps only text keys: write '1'"),
        ({"x": {1, 2}}, "hyperparameters['x'] is {1, 2} (set), which JSON can't say; use a sorted list"),
        ({"x": b"a"}, "hyperparameters['x'] is b'a' (bytes), which JSON can't say; decode it to text"),
        ({"x": Path("a")}, "hyperparameters['x'] is PosixPath('a') (PosixPath), which JSON can't say; use str(...)"),
        ({"x": np.zeros(2)}, "hyperparameters['x'] is array([0., 0.]) (ndarray), which JSON can't say; use .tolist()"),
        ({"x": [FLAG]}, "hyperparameters['x'][0] holds FLAG inside a list or dictionary; FLAG is a whole value"),
        ({"x": "a\0b"}, "hyperparameters['x'] holds a NUL character, which no command line can carry"),
        ({"x": "\ud800"}, "hyperparameters['x'] isn't valid Unicode text"),
        ({"x": cyclic()}, "hyperparameters['x'][1]['a'] is the very list that it is in, which JSON can't say"),
        ({"x": nested(10_000)}, "[0] is in more than 100 lists and dictionaries; make it flatter"),
        ({"x": shared(60)}, "comes after 2500 others; one hyperparameter has at most 2500 characters"),
        ({"x": 10**5000}, "hyperparameters['x'] is a whole number of more than 2500 digits; at most 2500"),
        ({"x": [-(10**5000)]}, "hyperparameters['x'][0] is a whole number of more than 2500 digits"),
        (
            {"x": {"$hdp": "flag"}},
            "hyperparameters['x'] is {'$hdp': 'flag'}, which stands for FLAG in the container; use FLAG, or another",
        ),
        (nested(10_000), "hyperparameters is <a list that can't be shown> (list); expected a dictionary"),
        ({"": 1}, "hyperparameters['']: the name is empty; give it one"),
        ({"k" * 257: 1}, "the name has 257 characters; at most 256"),
        ({"sagemaker_x": 1}, "names that start with 'sagemaker_' are the launcher's own"),
        ({"a b": 1}, "hyperparameters['a b']: the name can't be a command line option"),
        ({"-lr": 1}, "hyperparameters['-lr']: the name can't be a command line option"),
        ({"a=b": 1}, "hyperparameters['a=b']: the name can't be a command line option"),
        ({3: 1}, "hyperparameters[3]: the name is 3 (int); expected text"),
        ([1], "hyperparameters is [1] (list); expected a dictionary of names to values"),
    ],
)
def test_what_can_not_travel_is_refused_once(values: Any, fault: str) -> None:
    """One line, with the path to the value."""
    _, faults = parse(values)
    assert len(faults) == 1
    assert fault in faults[0]


@pytest.mark.parametrize("value", [10**2499, [[], []], [{"$hdp": "flag"}], {"$hdp": "flag", "n": 1}, nested(100)])
def test_what_only_looks_like_it_travels(value: object) -> None:
    """2,500 digits; one empty list twice; the flag's text below the top; 100 lists in each other."""
    assert decode(sent({"x": value})["x"]) == value


def test_one_list_in_two_places_is_no_cycle() -> None:
    """The same list twice, side by side."""
    inner = [1]
    assert decode(sent({"x": [inner, inner]})["x"]) == [[1], [1]]


def test_own_hyperparameters_count_too() -> None:
    """96 of the user's and 5 of the launcher's are 101."""
    _, faults = parse({f"k{i}": i for i in range(96)}, own_count=5)
    assert faults == [
        "hyperparameters has 96 entries, and the launcher adds 5; together at most 100: "
        "put some in one dictionary, or in a file of source_dir"
    ]
    assert parse({f"k{i}": i for i in range(95)}, own_count=5)[1] == []


def test_an_image_without_a_script_gets_plain_text() -> None:
    """As v2 sends to built-in algorithms: str() of scalars; lists as JSON."""
    plain, _ = parse({"a": True, "b": "text", "c": 0.5, "d": [1, "x"]})
    assert encode_all(plain, script=False) == {"a": "True", "b": "text", "c": "0.5", "d": '[1, "x"]'}


def test_names_that_share_a_variable_are_noted() -> None:
    """batch-size and batch_size differ as options, not as SM_HP_BATCH_SIZE."""
    assert shadowed({"batch-size": 1, "batch_size": 2, "lr": 3}) == [
        "hyperparameters 'batch-size' and 'batch_size' share the variable SM_HP_BATCH_SIZE; as arguments they differ"
    ]
