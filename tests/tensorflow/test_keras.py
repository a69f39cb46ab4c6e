"""Keras: its callbacks, and what ranks are told when one of them leaves `fit`."""

import re

import pytest
from versions import interpreter
from world import run, together

pytestmark = pytest.mark.timeout(300)  # where much else runs
PATIENCE = {"HDP_TIMEOUT_SECONDS": "8"}


@pytest.mark.slow
def test_callbacks(tmp_path):
    """Variables, metrics, rates, checkpoints, and the check; on 2 hosts of 1 rank."""
    outputs = together("keras_ranks.py", "callbacks", tmp_path, sizes=(1, 1))
    assert all("callbacks are fine" in output for output in outputs)
    assert "finished gradual learning rate warmup to 0.8." in outputs[0]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_callbacks_with_keras_2(tmp_path):
    together("keras_ranks.py", "callbacks", tmp_path, sizes=(1, 1), python=interpreter("2.15"))


def caught(way, sizes=(1, 1, 1), **options):
    """What each rank's fit raised: (class, collateral, text), by rank; None: it raised nothing. And exit codes."""
    outputs, codes = run("keras_ranks.py", way, sizes=sizes, environ=PATIENCE, seconds=120, **options)
    found = []
    for output in outputs:
        said = re.search(r"CAUGHT (\w+) collateral=(\w+): (.*)", output)
        found.append((said[1], said[2] == "True", said[3]) if said else None)
    assert -9 not in codes, f"a process didn't end: {codes}\n" + "\n----\n".join(outputs)
    return found, codes


def test_a_mistake_of_one_rank_is_the_cause():
    """Rank 1 raises in its fourth step: the others name it, and know that they aren't the cause."""
    found, codes = caught("exception", (1, 1))
    assert found[1][:2] == ("ValueError", False)
    kind, collateral, text = found[0]
    assert kind == "AbortedError" and collateral and re.search("PeerLost: .*rank 1 ", text), found
    assert all(codes)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "code"), [("exit", 3), pytest.param("exit at once", 3, marks=pytest.mark.exhaustive)])
def test_a_rank_that_exits(way, code):
    """Rank 1 exits in its fourth step: the others are told who."""
    found, codes = caught(way)
    assert codes[1] == code and codes[0] and codes[2]
    for rank in (0, 2):
        assert found[rank][1] and re.search("PeerLost: .*rank 1 ", found[rank][2]), found


@pytest.mark.slow
def test_a_rank_with_fewer_steps():
    """Rank 1 has left fit and waits elsewhere: everybody is told who is missing where, after the timeout."""
    found, codes = caught("fewer steps")
    assert all(codes), codes
    assert all(said and said[1] and re.search("CollectiveTimeout|PeerLost", said[0] + said[2]) for said in found), found
    # Whoever waits longest: they for rank 1's gradients, or rank 1 for them at its barrier.
    assert any(re.search(r"rank 1|barrier .* for ranks? 0", found[rank][2]) for rank in (0, 2)), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("shape", "ranks have different gradients for 'first/kernel"),
        ("none", "rank 1 has no gradient"),
    ],
)
def test_gradients_that_differ(way, words):
    """Every rank is told the first variable whose gradient isn't alike, and what each has; nobody waits."""
    found, codes = caught(way)
    assert all(codes), codes
    for kind, collateral, text in found:
        assert kind == "CollectiveMismatch" and not collateral and words in text, found


@pytest.mark.slow
def test_a_gradient_that_is_missing_later():
    """Eagerly, in rank 1's third step: after the timeout, rank 1 is told what has changed, and the others that it isn't
    their fault."""
    found, codes = caught("late none")
    assert all(codes), codes
    kind, collateral, text = found[1]
    assert kind == "CollectiveMismatch" and not collateral and "gradient for 'late:0' has changed" in text, found
    assert found[0][1] and found[2][1], found
