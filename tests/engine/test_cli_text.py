"""Tables and facts as text, for every kind of screen. Pure."""

from __future__ import annotations

import io

import pytest

from hdp.estimator.cli.text import Cell, Facts, Screen, Table, clean, lines, screen_of, width_of, wrap

NAME = "a" * 63
JOBS = Table(
    ("job", "status", "started", "took"),
    [
        (NAME, Cell("Completed", "green"), "2026-12-01 08:00:00", "12s"),
        ("b", "Failed", "2026-12-01 07:00:00", "1h 00m"),
    ],
)
FINDINGS = Table(
    ("what", "", "here"), [("core", Cell("no", "red"), "it can't be loaded\n-> install a wheel")], prose=True
)


def test_columns_are_beside_each_other_where_they_fit() -> None:
    head, first, second = lines(JOBS, Screen(105))
    assert head.split() == ["job", "status", "started", "took"]
    assert first == f"{NAME}  Completed  2026-12-01 08:00:00  12s"
    assert second.index("Failed") == first.index("Completed") == head.index("status") == 65


@pytest.mark.parametrize("columns", [40, 80, 102])
def test_a_row_that_does_not_fit_is_a_paragraph_with_whole_values(columns: int) -> None:
    shown = list(lines(JOBS, Screen(columns)))
    assert shown[0] == NAME
    assert all(len(line) <= columns or line == NAME for line in shown)
    text = " ".join(" ".join(shown).split())
    for part in ("status Completed", "started 2026-12-01 08:00:00", "took 12s", "b status Failed", "took 1h 00m"):
        assert part in text


def test_in_a_pipe_a_row_is_a_line_however_long_it_is() -> None:
    wide = Table(("a", "b"), [("x" * 500, "y\nz"), ("1", "2")])
    head, first, second = lines(wide, Screen())
    assert head == "a" + " " * 501 + "b"
    assert first == "x" * 500 + "  y z"
    assert second.endswith("  2")


def test_prose_is_wrapped_between_words_beside_the_other_columns() -> None:
    assert list(lines(FINDINGS, Screen(40))) == [
        "what      here",
        "core  no  it can't be loaded",
        "          -> install a wheel",
    ]
    assert list(lines(FINDINGS, Screen(17))) == [
        "core",
        "  no",
        "  it can't be",
        "  loaded",
        "  -> install a",
        "  wheel",
    ]
    assert list(lines(FINDINGS, Screen()))[1] == "core  no  it can't be loaded -> install a wheel"


def test_facts_are_beside_their_names_or_below_them() -> None:
    facts = Facts([("status", Cell("Failed", "red")), ("folder", "/a/" + "b" * 60), ("", "one two three")])
    assert list(lines(facts, Screen(80))) == ["status  Failed", "folder  /a/" + "b" * 60, "        one two three"]
    assert list(lines(facts, Screen(12))) == [
        "status", "  Failed", "folder", "  /a/" + "b" * 60, "  one two", "  three",
    ]  # fmt: skip
    assert list(lines(facts, Screen())) == list(lines(facts, Screen(80)))


def test_a_traceback_keeps_its_lines_and_their_indentation() -> None:
    facts = Facts([("reason", "rank 0 failed\n  File x\n    boom " + "long " * 20)])
    shown = list(lines(facts, Screen(60)))
    assert shown[:3] == [
        "reason  rank 0 failed",
        "          File x",
        "            boom long long long long long long long long",
    ]
    assert all(line.startswith("            long") for line in shown[3:])


def test_only_a_terminal_gets_colours() -> None:
    coloured = list(lines(JOBS, Screen(200, colour=True)))
    assert "\x1b[32mCompleted\x1b[0m" in coloured[1] and coloured[0].startswith("\x1b[1mjob\x1b[0m")
    assert "\x1b" not in "".join(lines(JOBS, Screen(200)))
    assert [line.index("2026") for line in coloured[1:]] == [len(NAME) + 4 + 9 + 9, len(NAME) + 4 + 9]


@pytest.mark.parametrize(
    ("environ", "colour"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, False)],
)
def test_what_a_terminal_has_is_asked_of_the_environment(environ: dict[str, str], colour: bool) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    assert screen_of(terminal, environ).colour is colour
    assert screen_of(io.StringIO(), environ) == Screen(None, colour=False)


def test_what_a_terminal_would_obey_is_left_out() -> None:
    """A title, a colour, a bell, a carriage return, a C1 control; ends of lines and letters stay."""
    assert clean("\x1b]0;title\x07a\x1b[31mb\x1b[0m\x07\rc\x9bd\r\ne\tf") == "abcd\ne   f"


def test_wide_letters_take_two_columns_and_accents_none() -> None:
    assert width_of("日本") == 4
    assert width_of("e\u0301") == 1
    assert list(lines(Table(("a", "b"), [("日本", "|"), ("abcd", "|")]), Screen()))[1:] == ["日本  |", "abcd  |"]


def test_words_are_never_taken_apart() -> None:
    assert list(wrap("  one " + "x" * 30 + " two", 10)) == ["  one", "  " + "x" * 30, "  two"]
