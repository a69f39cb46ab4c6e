"""Logs: heads, merging by time, cursors, and lines that are still being written."""

from __future__ import annotations

import json
from pathlib import Path

from hdp.estimator.engines.base import LogLine
from hdp.estimator.engines.local import logfiles
from hdp.estimator.engines.local.home import JobDir


def job_with(folder: Path, **logs: str) -> JobDir:
    job = JobDir(folder)
    job.logs.mkdir(exist_ok=True)
    for host, text in logs.items():
        job.log(host.replace("_", "-")).write_text(text)
    return job


def test_hosts_are_merged_by_time(tmp_path: Path) -> None:
    job = job_with(tmp_path, algo_1="1.0 [algo-1:0] a\n3.0 [algo-1] c\n", algo_2="2.000000 [algo-2:12] b\n")
    assert logfiles.read_page(job, {}, final=False).lines == (
        LogLine(1.0, "algo-1", 0, "a"),
        LogLine(2.0, "algo-2", 12, "b"),
        LogLine(3.0, "algo-1", None, "c"),
    )


def test_a_line_without_a_head_takes_the_time_before_it(tmp_path: Path) -> None:
    """A crash's words after a rank's line, on two pages. Expected: both pages give time 5 and no rank."""
    job = job_with(tmp_path, algo_1="5.25 [algo-1:0] a\nSegmentation fault\n")
    first = logfiles.read_page(job, {}, final=False)
    with job.log("algo-1").open("a") as log:
        log.write("core dumped\n")
    second = logfiles.read_page(job, first.cursor, final=False)
    assert [*first.lines, *second.lines][1:] == [
        LogLine(5.25, "algo-1", None, "Segmentation fault"),
        LogLine(5.25, "algo-1", None, "core dumped"),
    ]


def test_a_cursor_is_json_and_goes_on_where_it_was(tmp_path: Path) -> None:
    job = job_with(tmp_path, algo_1="1.0 [algo-1:0] a\n")
    cursor = json.loads(json.dumps(logfiles.read_page(job, {}, final=False).cursor))
    assert logfiles.read_page(job, cursor, final=True).lines == ()
    job.log("algo-2").write_text("2.0 [algo-2:1] b\n")
    assert [line.text for line in logfiles.read_page(job, cursor, final=False).lines] == ["b"]


def test_an_unfinished_line_waits_until_the_job_has_ended(tmp_path: Path) -> None:
    job = job_with(tmp_path, algo_1="1.0 [algo-1:0] whole\n1.5 [algo-1:0] par")
    page = logfiles.read_page(job, {}, final=False)
    assert [line.text for line in page.lines] == ["whole"]
    assert [line.text for line in logfiles.read_page(job, page.cursor, final=True).lines] == ["par"]


def test_no_line_is_lost_over_pages(tmp_path: Path) -> None:
    """More than two pages of lines. Expected: all of them, in order, none twice."""
    text = "".join(f"{i}.0 [algo-1:0] line {i} {'x' * 1000}\n" for i in range(9000))
    cursor: dict[str, int] = {}
    job, found = job_with(tmp_path, algo_1=text), []
    while (page := logfiles.read_page(job, cursor, final=True)).lines:
        found += [line.text.split()[1] for line in page.lines]
        cursor = dict(page.cursor)
    assert found == [str(i) for i in range(9000)]


def test_text_that_looks_like_a_head_is_kept(tmp_path: Path) -> None:
    job = job_with(tmp_path, algo_1="1.0 [algo-1:0] 2.0 [algo-9:9] text\n1.0 [algo-1:0]   indented | bar\n\n")
    lines = logfiles.read_page(job, {}, final=False).lines
    assert [line.text for line in lines] == ["2.0 [algo-9:9] text", "  indented | bar", ""]


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    job.log("algo-1").write_bytes(b"1.0 [algo-1:0] \xff\xfeok\n")
    assert logfiles.read_page(job, {}, final=False).lines[0].text == "\ufffd\ufffdok"


def test_hosts_of_the_same_time_are_in_number_order(tmp_path: Path) -> None:
    logs = {f"algo_{i}": f"1.0 [algo-{i}:{i}] x\n" for i in (10, 2, 1)}
    job = job_with(tmp_path, **logs)
    assert [line.host for line in logfiles.read_page(job, {}, final=False).lines] == ["algo-1", "algo-2", "algo-10"]


def test_a_tail_has_no_heads_and_a_bound(tmp_path: Path) -> None:
    job = job_with(tmp_path, algo_1="1.0 [algo-1] first\n2.0 [algo-1:0] last\n")
    assert logfiles.tail(job.log("algo-1")) == "first\nlast"
    assert logfiles.tail(job.log("algo-1"), 8) == "...\nlast"
