"""Sizes, rates and times as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdp.contract.errors import SpecError
from hdp.contract.units import format_rate, format_size, format_time, parse_rate, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("64KiB", 65536), ("64k", 65536), ("1.5 GB", 1_500_000_000), ("64MiB", 64 << 20), ("0", 0)],
)
def test_sizes(text, count):
    assert parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "bits"), [("1gbit", 1e9), ("250mbit", 2.5e8), ("3.2Tbit/s", 3.2e12), ("10 Gbit", 1e10)]
)
def test_rates(text, bits):
    assert parse_rate(text) == bits


@pytest.mark.parametrize(("text", "seconds"), [("50us", 5e-5), ("50µs", 5e-5), ("1.5ms", 1.5e-3), ("0s", 0.0)])
def test_times(text, seconds):
    assert parse_time(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_size, "64Mi"), (parse_size, "-1"), (parse_size, ""), (parse_size, "1e3"), (parse_size, "64 apples"),
        (parse_rate, "1gb"), (parse_rate, "0gbit"), (parse_rate, "1"), (parse_rate, "1gbps"),
        (parse_time, "5"), (parse_time, "fast"), (parse_size, "9" * 400),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_with_an_example(parse, text):
    """``1gbps`` among them: tc means bytes by it, others bits."""
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)


@given(st.integers(1, 1 << 50))
def test_a_formatted_size_reads_back_within_its_three_digits(count):
    assert parse_size(format_size(count).replace(" ", "")) == pytest.approx(count, rel=0.006, abs=0.6)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5621, "562 ms"), (0.0, "0 s"), (1.0, "1 s"), (59e-9, "59 ns"), (0.00099996, "1 ms")]
)
def test_times_as_text(seconds, text):
    assert format_time(seconds) == text


def test_rates_as_text():
    assert [format_rate(bits) for bits in (1e9, 2.5e8, 3.2e12)] == ["1 Gbit/s", "250 Mbit/s", "3.2 Tbit/s"]
