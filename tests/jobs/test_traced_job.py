"""`environment={"HDP_TIMELINE": "1"}` reaches ranks and servers; `hdp timeline` and reports read what they leave."""

import json
import subprocess
import sys
from collections import Counter
from xml.etree import ElementTree

import pytest

from hdp.estimator import Estimator

#: Rank 1 is late by 20 ms in each of 20 steps.
SCRIPT = """
import time

import numpy as np

import hdp.collectives as hc
from hdp import metrics

comm = hc.init()
for step in range(20):
    time.sleep(0.02 * comm.rank)
    hc.allreduce(np.ones(1_000_000 if step else 10, np.float32), comm.world, tag="x").wait()
    if comm.rank == 0:
        metrics.log(step=step, loss=1 / (step + 1), samples=8)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Two hosts with a rank each; the small operation goes by cells, the large one through both servers."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDP_HOME", str(folder / "home"))
        yield Estimator(
            entry_point="train.py",
            source_dir=str(folder / "code"),
            instance_type="local",
            instance_count=2,
            distribution={"hdp": {"enabled": True, "processes_per_host": 1}},
            environment={"HDP_TIMELINE": "1", "HDP_TOPOLOGY": "1"},
        ).fit(logs=False)


def test_a_jobs_timeline_has_all_ranks_and_servers(job, tmp_path):
    command = [sys.executable, "-m", "hdp.estimator.cli", "timeline", job.name, "-o", str(tmp_path / "trace.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "of 2 ranks on 2 hosts" in done.stdout
    assert done.stderr == ""  # all files are whole
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    seen = Counter(
        (e["pid"], rows[e["pid"], e["tid"]], e["name"], e["args"].get("by"))
        for e in events
        if e.get("args", {}).get("status") and e["name"] in ("allreduce 'x' #1", "allreduce 'x' #2")
    )
    assert seen == Counter(
        {
            **{(n, f"rank {n - 1}", "allreduce 'x' #1", "cells"): 1 for n in (1, 2)},
            **{(n, f"rank {n - 1}", "allreduce 'x' #2", "slots"): 1 for n in (1, 2)},
            **{(n, "server", "allreduce 'x' #2", None): 1 for n in (1, 2)},
        }
    )


def test_a_report_says_what_a_step_was_spent_on_and_who_is_late(job):
    report = job.report()
    assert report.gaps == ()
    assert [step.number for step in report.steps] == list(range(1, 20))  # the first has no begin
    for step in report.steps:
        assert step.exposed > 0.005  # rank 0 waits 20 ms and more, rank 1 maybe not at all
        assert step.seconds == pytest.approx(step.compute + step.exposed + step.input)
    assert [one.rank for one in report.lateness] == [0, 1]
    page = report.to_html()
    assert "The others wait for rank 1" in page
    assert "from server to server" in page and "algo-2" in page


def test_a_report_is_one_file_that_needs_no_other(job, tmp_path):
    command = [sys.executable, "-m", "hdp.estimator.cli", "report", job.name, "-o", str(tmp_path / "report.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "open it in a browser" in done.stdout
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page and "src=" not in page
    assert all(link.startswith("#") for link in page.split('href="')[1:])
    pictures = page.split("<svg ")[1:]
    assert len(pictures) == 4
    for picture in pictures:
        ElementTree.fromstring("<svg " + picture[: picture.index("</svg>") + 6])
