"""The bar of a job that is followed: in a terminal, here a pseudo-terminal; what a notebook shows of it."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from hdp.estimator.bar import Face, bar_for, merged
from hdp.estimator.progress import Mark, Standing

SCRIPT = """
import time
from hdp import metrics
print("a line of the script " + "x" * 120)
for number in range(500):
    print("line", number)
for step in range(1, 9):
    metrics.log(step=step, steps=8, loss=1 / step, samples=4)
    time.sleep(0.4)
"""
FIT = """
import sys
from hdp.estimator import Estimator
Estimator(entry_point=sys.argv[1], instance_type="local", instance_count=1).fit(job_name="barred")
"""


def in_terminal(program: list[str], columns: int, environment: dict[str, str]) -> tuple[int, str]:
    """Exit code, and all that `program` wrote to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        while chunk := _read(ours):
            written += chunk
        code = process.wait(timeout=60)
    os.close(ours)
    return code, written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nobody has the other end any more
        return b""


def fit_in_terminal(folder: Path, columns: int, **environment: str) -> str:
    (folder / "train.py").write_text(SCRIPT)
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    settings = {**kept, "TERM": "xterm", "HDP_HOME": str(folder / "home"), **environment}
    code, text = in_terminal([sys.executable, "-c", FIT, str(folder / "train.py")], columns, settings)
    assert code == 0, text
    return text


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a terminal of 120 columns gets of a job with 8 steps."""
    return fit_in_terminal(tmp_path_factory.mktemp("bar"), 120)


def test_a_terminal_has_a_bar_with_the_status_the_step_and_the_time_left(seen: str) -> None:
    assert re.search(r"barred +Training +━.* step \d of 8  loss [\d.]+ .*left", without_colours(seen))


def test_the_bar_is_overwritten_and_gone_at_the_end(seen: str) -> None:
    """Each bar is erased (carriage return, erase line) before the next; the cursor is shown again."""
    bars = without_colours(seen).count("━ ") + without_colours(seen).count("━\r")
    assert 2 <= bars <= seen.count("\x1b[2K")
    assert seen.rindex("\x1b[?25h") > seen.rindex("━")


def test_lines_of_the_log_stay_whole_above_the_bar(seen: str) -> None:
    """152 characters in 120 columns: the terminal wraps them, so no newline is put between."""
    assert "algo-1:0 | a line of the script " + "x" * 120 + "\r\n" in without_colours(seen)


def test_500_lines_at_once_are_all_shown_and_the_bar_is_not_drawn_for_each(seen: str) -> None:
    """Drawing it takes a terminal's client a millisecond."""
    lines = re.findall(r"[\r\n]algo-1:0 \| line (\d+)(?=\r\n)", without_colours(seen))
    assert list(map(int, lines)) == list(range(500))
    assert without_colours(seen).count("Training ━") < 100


def test_the_last_progress_stays(seen: str) -> None:
    assert re.search(r"step 8 of 8  loss 0.125 .* 0:00 left\s*$", without_colours(seen))


def test_a_line_a_second_is_not_shown_beside_a_bar(seen: str) -> None:
    assert "algo-1:0 | step" not in without_colours(seen)


def test_a_narrow_terminal_has_no_line_of_the_bar_that_wraps(tmp_path: Path) -> None:
    """60 columns: the step without the bar and the job's name, each at most 60 wide."""
    text = without_colours(fit_in_terminal(tmp_path, 60))
    shown = [line for line in re.split(r"[\r\n]+", text) if line.startswith("Training")]
    assert shown
    assert max(map(len, shown)) <= 60
    assert not any("━" in line for line in shown)
    assert any(re.search(r"step \d of 8 .* left", line) for line in shown)


def test_a_dumb_terminal_has_lines_instead(tmp_path: Path) -> None:
    text = fit_in_terminal(tmp_path, 100, TERM="dumb")
    assert "\x1b" not in text
    assert "algo-1:0 | step" in text


def test_without_a_terminal_there_is_no_bar() -> None:
    """Under pytest standard output is a file."""
    assert bar_for("digits") is None


def test_a_notebook_shows_how_far_the_job_is() -> None:
    standing = Standing(29, {"loss": 0.5}, 1024.0, Mark(30, 120, 42.0))
    text = Face("digits", "Training", standing)._repr_html_()
    assert re.search(r'<progress [^>]*value="30" max="120"', text)
    assert "Training &middot; step 29 of 120 &middot; loss 0.5 &middot; 1,024 samples/s &middot; 0:42 left" in text


def test_a_notebook_shows_motion_until_the_end_where_nobody_says_how_many_steps_there_are() -> None:
    running = Face("digits", "Training", Standing(29, {}, None, None))
    assert re.search(r"<progress [^>]*aria-label=\"progress of digits\"></progress>", running._repr_html_())
    assert "<progress" not in Face("digits", "Completed", running.standing, ended=True)._repr_html_()


def test_what_a_script_names_is_text_not_html() -> None:
    assert "<b>loss" not in Face("digits", "Training", Standing(1, {"<b>loss": 1.0}, None, None))._repr_html_()


def test_a_metric_that_is_said_seldom_stays_on_the_bar() -> None:
    before = Standing(9, {"accuracy": 0.5, "loss": 2.0}, 8.0, None)
    assert merged(before, Standing(10, {"loss": 1.0}, 9.0, None)) == Standing(
        10, {"accuracy": 0.5, "loss": 1.0}, 9.0, None
    )
