"""Where the time of steps goes, and who is late: computed by hand."""

import pytest

from hdp.contract.metrics import Record
from hdp.estimator.metrics import Metric, Said
from hdp.estimator.report.breakdown import lateness_of, only_asynchronous, slowest, steps_of
from hdp.estimator.traces import Operation


def _said(*ends, rank=0):
    return [Said("algo-1", rank, Record(time=end, clock=end, values={}, step=i)) for i, end in enumerate(ends)]


def _operation(begin, end, waited=0.0, rank=0, name="allreduce #1"):
    return Operation(rank, name, "all 2 ranks", "allreduce", 4, begin, end, waited, "OK")


def test_a_step_is_compute_hidden_and_exposed_communication():
    """From 10 to 11 s: in flight from 10.2 to 10.9, of which 0.3 were waited for."""
    (step,) = steps_of(_said(10, 11), [], [_operation(10.2, 10.9, waited=0.3)])
    assert (step.number, step.seconds) == (1, 1)
    assert (step.compute, step.hidden, step.exposed) == pytest.approx((0.7, 0.4, 0.3))


def test_operations_that_overlap_count_once():
    """In flight: 10.1 to 10.5 and 10.3 to 10.6, together 0.5 s."""
    (step,) = steps_of(_said(10, 11), [], [_operation(10.1, 10.5), _operation(10.3, 10.6)])
    assert step.hidden == pytest.approx(0.5)


def test_an_operation_over_the_end_of_a_step_counts_in_both_and_was_waited_for_where_it_ended():
    """Two steps of 1 s; in flight from 10.8 to 11.3."""
    first, second = steps_of(_said(10, 11, 12), [], [_operation(10.8, 11.3, waited=0.2)])
    assert (first.hidden, first.exposed) == pytest.approx((0.2, 0))
    assert (second.hidden, second.exposed) == pytest.approx((0.1, 0.2))


def test_what_was_before_the_first_and_after_the_last_step_does_not_count():
    (step,) = steps_of(_said(10, 11), [], [_operation(9, 9.5, 0.5), _operation(11.5, 12, 0.5)])
    assert (step.compute, step.hidden, step.exposed) == (1, 0, 0)


def test_a_step_is_the_mean_of_the_ranks():
    """Rank 0 waited 0.4 s, rank 1 none."""
    operations = [_operation(10.1, 10.5, 0.4), _operation(10.5, 10.5, 0.0, rank=1)]
    (step,) = steps_of(_said(10, 11), [], operations)
    assert step.exposed == pytest.approx(0.2)


def test_input_is_what_the_script_says():
    input_of_1 = Metric(10.9, "input_seconds", 0.25, "algo-1", 0, 1)
    (step,) = steps_of(_said(10, 11), [input_of_1], [_operation(10.1, 10.2, 0.1)])
    assert (step.input, step.compute) == pytest.approx((0.25, 0.65))


def test_steps_end_when_the_rank_with_the_lowest_number_says_so():
    (step,) = steps_of([*_said(50, 60, rank=1), *_said(10, 11)], [], [_operation(10.1, 10.2)])
    assert step.seconds == 1


@pytest.mark.parametrize("said", [[], _said(10)])
def test_without_two_ends_there_is_no_step(said):
    assert steps_of(said, [], [_operation(10, 11)]) == []


def test_without_a_trace_there_is_no_step():
    assert steps_of(_said(10, 11), [], []) == []


def test_the_rank_that_comes_last_is_the_slowest():
    """Three operations; rank 1 comes 20 ms after rank 0 each time, rank 2 1 ms."""
    operations = [
        _operation(10 + i + late, 11 + i, rank=rank, name=f"allreduce #{i}")
        for i in range(3)
        for rank, late in enumerate((0, 0.02, 0.001))
    ]
    lateness = lateness_of([], operations)
    assert [one.median_seconds for one in lateness] == pytest.approx([0, 0.02, 0.001])
    assert [one.last_share for one in lateness] == [0, 1, 0]
    assert slowest(lateness).rank == 1


def test_no_rank_is_named_where_two_are_equally_late():
    operations = [_operation(10 + late, 11, rank=rank) for rank, late in enumerate((0, 0.02, 0.019))]
    assert slowest(lateness_of([], operations)) is None


def test_what_was_before_the_end_of_the_first_step_says_nothing_about_lateness():
    """Rank 1 is late at the start, e.g. because it loads data; not afterwards."""
    operations = [
        _operation(begin + late, begin + 1, rank=rank, name=f"allreduce #{begin}")
        for begin, lates in ((5, (0, 0.9)), (11, (0.001, 0)))
        for rank, late in enumerate(lates)
    ]
    assert [one.median_seconds for one in lateness_of(_said(10, 11), operations)] == pytest.approx([0.001, 0])


def test_operations_of_one_rank_say_nothing_about_lateness():
    assert lateness_of([], [_operation(10, 11)]) == []


def test_nobody_waits_under_tensorflow():
    assert only_asynchronous([_operation(10, 11)])
    assert not only_asynchronous([_operation(10, 11, waited=0.1)])
    assert not only_asynchronous([])
