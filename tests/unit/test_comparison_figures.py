"""Times of steps from what ranks said, and the figures and verdicts made of them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from hdp.contract.metrics import Record, encode
from hdp.estimator.comparison import figures as rules
from hdp.estimator.comparison.figures import Figures, Spread, figures_of, spread, verdict
from hdp.estimator.comparison.model import Run, Variant
from hdp.estimator.comparison.steps import Steps, steps_of
from hdp.estimator.engines.base import LogLine


def said(rank: int, clock: float, step: int | None, **values: float) -> LogLine:
    return LogLine(clock, "algo-1", rank, encode(Record(clock, clock, values, step, "algo-1", rank)))


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_a_step_takes_the_time_since_the_call_before_and_the_mean_of_the_ranks() -> None:
    """Rank 0 at 0, 1, 3 and rank 1 at 10, 12, 14: steps 1 and 2 take 1 and 2, and 2 and 2."""
    lines = [said(0, 0, 0), said(1, 10, 0), said(0, 1, 1), said(1, 12, 1), said(0, 3, 2), said(1, 14, 2)]
    assert steps_of(lines) == Steps((1, 2), (1.5, 2.0), count=3)


def test_seconds_that_the_script_gives_count_and_the_first_step_has_some_then() -> None:
    lines = [said(0, 0, 0, seconds=0.25), said(0, 9, 1, seconds=0.5), said(0, 10, 2)]
    assert steps_of(lines) == Steps((0, 1, 2), (0.25, 0.5, 1.0), count=3)


def test_every_tenth_step_shares_the_time_and_what_is_of_no_step_ends_none() -> None:
    """Steps 0, 10, 20 at 0, 1, 3, and an accuracy in between. Expected: a tenth of 1, a tenth of 2."""
    lines = [said(0, 0, 0), said(0, 1, 10), said(0, 1.5, None, accuracy=1), said(0, 3, 20)]
    assert steps_of(lines) == Steps((10, 20), (0.1, 0.2), count=21)


def test_steps_that_are_counted_anew_in_each_epoch_are_steps_of_their_own() -> None:
    """0, 1, 2 and again 0, 1, 2 on two ranks: the step back has no time, the others do."""
    lines = [said(rank, 10 * e + s, s) for e in (0, 1) for s in range(3) for rank in (0, 1)]
    assert steps_of(lines) == Steps((1, 2, 1, 2), (1.0, 1.0, 1.0, 1.0), count=6)


def test_what_is_said_again_of_a_step_belongs_to_it() -> None:
    """Step 1 ends at 1; its loss is said at 1.9. Expected: 1 s; the samples and the loss of both."""
    lines = [said(0, 0, 0), said(0, 1, 1, samples=8), said(0, 1.9, 1, loss=0.5), said(0, 2, 2, samples=8)]
    assert steps_of(lines) == Steps((1, 2), (1.0, 1.0), 8.0, 0.5, 3)


def test_samples_of_ranks_are_added_and_losses_averaged() -> None:
    """32 and 64 samples a step, losses 1 and 3 at the end; a rank that says none adds none."""
    lines = [said(r, s, s, samples=n, loss=n / 32 + r) for s in (0, 1) for r, n in ((0, 32), (1, 64))]
    found = steps_of([*lines, said(2, 1, 1)])
    assert (found.samples, found.loss) == (96.0, 2.0)


def test_other_processes_than_ranks_do_not_count() -> None:
    """A host without ranks feeds the others, and says its own samples. Expected: those of the ranks, 8 each."""
    lines = [said(rank, s, s, samples=8, loss=1) for s in range(3) for rank in (0, 1)]
    fed = [
        LogLine(s, "algo-3", None, encode(Record(s, s * 7.0, {"samples": 8, "loss": 9}, s, "algo-3"))) for s in range(9)
    ]
    ranks = steps_of(lines)
    assert ranks == Steps((1, 2), (1.0, 1.0), 16.0, 1.0, 3)
    assert steps_of([*fed, *lines]) == ranks and steps_of([*fed, *lines], without={"algo-3"}) == ranks
    assert steps_of(fed, without={"algo-3"}) == Steps() and steps_of(fed).samples == 8
    printed = [LogLine(1, "algo-1", 0, "took 2 s"), LogLine(1, "algo-3", None, "took 50 s")]
    assert steps_of(printed, [{"Name": "seconds", "Regex": "took (.+) s"}]).seconds == (2.0,)


def test_numbers_without_an_end_are_no_error() -> None:
    """Losses inf and -inf, and of 1e308 twice; times of 1e308 s. Expected: nan, 1e308, 1e308; no interval fails."""
    assert math.isnan(steps_of([said(0, 1, 1, loss=math.inf), said(1, 1, 1, loss=-math.inf)]).loss or 0)
    assert steps_of([said(0, 1, 1, loss=1e308, seconds=1e308), said(1, 1, 1, loss=1e308, seconds=1e308)]) == (
        Steps((1,), (1e308,), None, 1e308, 1)
    )
    took = [LogLine(1, "algo-1", 0, f"took {text} s") for text in ("nan", "inf", "-1", "2")]
    assert steps_of(took, [{"Name": "seconds", "Regex": "took (.+) s"}]).seconds == (2.0,)
    found = verdict(figures([1e-300] * 9, [1.0] * 9), figures([1.0] * 9, [1e300] * 9, label="b"))
    assert found.high == math.inf and not found.apart


def test_metric_definitions_serve_a_script_that_only_prints() -> None:
    """``took 0.5 s, 32 samples, loss 2`` by two ranks."""
    texts = [("took 0.5 s, 32 samples", 0), ("took 1.5 s, 32 samples", 1), ("took 2 s, loss 7", 0)]
    lines = [LogLine(1.0, "algo-1", rank, text) for text, rank in texts]
    names = {"seconds": r"took ([\d.]+)", "samples": r"(\d+) samples", "loss": r"loss (\d+)"}
    definitions = [{"Name": name, "Regex": regex} for name, regex in names.items()]
    assert steps_of(lines, definitions) == Steps((0, 1), (1.0, 2.0), 64.0, 7.0, 2)


def test_a_silent_job_has_no_steps() -> None:
    assert steps_of([LogLine(1.0, "algo-1", 0, "hello")]) == Steps()


# ---- figures ---------------------------------------------------------------------------------------------------------


def runs(*jobs: Sequence[float], label: str = "a", **more: Any) -> list[Run]:
    return [
        Run(label, i + 1, f"job-{i}", Steps(tuple(range(len(job))), tuple(job), more.get("samples"), more.get("loss")))
        for i, job in enumerate(jobs)
    ]


def figures(*jobs: Sequence[float], label: str = "a", samples: float | None = None) -> Figures:
    return figures_of(label, runs(*jobs, label=label, samples=samples), 0)


def noisy(middle: float, seed: int, sigma: float = 0.02, count: int = 50) -> list[float]:
    draw = random.Random(seed)
    return [middle * math.exp(draw.gauss(0, sigma)) for _ in range(count)]


def test_median_and_quartiles_are_of_all_repeats_and_each_repeat_has_its_median() -> None:
    found = figures([1, 2, 3], [4, 5], samples=10)
    assert (found.step, found.steps, found.repeat_medians) == (Spread(3, 2, 4), 5, (2, 4.5))
    assert found.samples_per_second == pytest.approx(10 / 3)
    assert spread([7.0]) == Spread(7, 7, 7)


@pytest.mark.parametrize(("given", "left"), [(None, 40), (0, 50), (7, 43), (50, 0)])
def test_the_warmup_is_left_out(given: int | None, left: int) -> None:
    """50 steps: a fifth of them, at most 10; or as many as asked for."""
    assert figures_of("a", runs([1.0] * 50), given).steps == left
    assert figures_of("a", runs([1.0] * 200), None).steps == 190


def test_bytes_are_those_of_a_whole_job_and_of_a_step() -> None:
    """600 and 400 bytes in jobs of 4 steps, two of them timed. Expected: the median, 500, and 125 a step."""
    jobs = [Run("a", i, "j", Steps((1, 2), (1.0, 1.0), count=4), sent) for i, sent in enumerate((600, 400))]
    found = figures_of("a", jobs, 0)
    assert (found.sent_bytes, found.sent_bytes_per_step) == (500, 125)
    assert figures_of("a", runs([1.0]), 0).sent_bytes is None


def test_exposed_is_the_step_less_the_step_apart() -> None:
    """4 ranks, 64 samples together in 10 ms; 4 processes apart, 16 each in 7 ms. Expected: 3 ms, no estimate."""
    found = rules.exposed(figures([0.010], samples=64), 4, figures([0.007], samples=64), 4)
    assert found is not None
    assert (found.seconds, found.estimate) == (pytest.approx(0.003), "")


def test_exposed_is_scaled_and_marked_where_the_work_is_not_the_same() -> None:
    """Apart, each process took the whole batch of 64 in 20 ms. Expected: 10 ms - 20 ms / 4, marked."""
    found = rules.exposed(figures([0.010], samples=64), 4, figures([0.020], samples=256), 4)
    assert found is not None
    assert found.seconds == pytest.approx(0.005)
    assert found.estimate == (
        "rather too much: 16 samples a process and step, apart 64; all of the time apart is scaled by that"
    )


def test_exposed_without_samples_is_marked_and_without_steps_is_none() -> None:
    found = rules.exposed(figures([0.010]), 4, figures([0.007]), 4)
    assert found is not None and found.estimate == "the script said no samples, so the work may differ"
    assert rules.exposed(figures([0.010]), 4, figures(), 4) is None


def test_efficiency_is_a_share_of_as_many_lone_processes() -> None:
    """4 ranks: 300 samples a second; one process: 100. Expected: 75%."""
    four, one = figures([1.0], samples=300), figures([1.0], samples=100)
    assert rules.efficiency(four, Variant("a", ranks=4), one) == 0.75
    assert rules.efficiency(four, Variant("a", ranks=4), figures([1.0])) is None


# ---- verdicts --------------------------------------------------------------------------------------------------------


def test_a_difference_outside_the_spread_is_named_with_its_interval() -> None:
    """Three jobs of each, one twice as slow. Expected: 2 times, an interval around it, either way round."""
    a = figures(*(noisy(1.0, seed) for seed in range(3)))
    b = figures(*(noisy(2.0, seed) for seed in range(3, 6)), label="b")
    found, back = verdict(a, b), verdict(b, a)
    assert found.apart and found.low is not None and found.high is not None and found.ratio is not None
    assert found.low < found.ratio < found.high and found.ratio == pytest.approx(2, rel=0.02)
    assert back.ratio == pytest.approx(1 / found.ratio)
    assert str(found).startswith(f"b: {found.ratio:.2f} times a's step time (95% interval 1.9")


def test_a_difference_inside_the_spread_is_not_named() -> None:
    a = figures(*(noisy(1.0, seed) for seed in range(3)))
    b = figures(*(noisy(1.002, seed) for seed in range(3, 6)), label="b")
    found = verdict(a, b)
    assert not found.apart
    assert str(found).endswith("within the spread, no difference is named: the quartiles of their steps overlap")


def test_jobs_that_differ_among_themselves_hide_a_difference_between_variants() -> None:
    """Quartiles of 1,000 steps are apart, but one of b's jobs is among a's. Expected: the interval has 1 in it."""
    a = figures([1.0] * 500, [1.01] * 500, [0.99] * 500)
    b = figures([1.3] * 500, [1.31] * 500, [1.0] * 100, label="b")
    assert a.step is not None and b.step is not None and not a.step.overlaps(b.step)
    found = verdict(a, b)
    assert not found.apart
    assert "the 95% interval of the ratio, 0." in found.reason and found.reason.endswith("has 1 in it")


def test_one_repeat_names_nothing() -> None:
    found = verdict(figures([1.0] * 100), figures([9.0] * 100, label="b"))
    assert (found.apart, found.ratio) == (False, 9.0)
    assert "one repeat has no spread between jobs; repeat it" in str(found)


def test_nothing_is_said_of_a_variant_without_steps() -> None:
    assert str(verdict(figures([1.0], [1.0]), figures(label="b"))) == "b and a: one of them has no steps"


def test_equal_variants_are_seldom_called_different() -> None:
    """200 pairs of equal variants whose jobs differ by 3% among themselves. Expected: at most 5% are named."""
    named = 0
    for trial in range(200):
        draw = random.Random(trial)
        jobs = [noisy(math.exp(draw.gauss(0, 0.03)), draw.randrange(10**9), 0.01) for _ in range(6)]
        named += verdict(figures(*jobs[:3]), figures(*jobs[3:], label="b")).apart
    assert named <= 10


@pytest.mark.parametrize(
    ("values", "agree"),
    [((1.0, 1.009), True), ((1.0, 1.02), False), ((-1.0, -1.009), True), ((0.0, 0.0), True), ((1.0, math.nan), False)],
)
def test_losses_agree_within_the_tolerance(values: tuple[float, float], agree: bool) -> None:
    of_variants = [figures_of("a", runs([1.0], loss=loss), 0) for loss in values]
    found = rules.losses(of_variants, 0.01)
    assert found is not None and found.agree is agree
    assert str(found).startswith("final losses agree" if agree else "final losses DO NOT agree")
    assert rules.losses(of_variants[:1], 0.01) is None
