"""Reports and comparisons, looked at in headless Chromium: light and dark, wide and as narrow as a phone.

HDP_TEST_PICTURES names a folder to keep the pictures in, for somebody to look at.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from hdp.contract.errors import TrainingJobFailed
from hdp.estimator import Estimator, TrainingJob, compare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Rank 1 is late; rank 2 of a job that is told to fail does, with a line that is too long for any page.
SCRIPT = """
import sys
import time

import numpy as np

import hdp.collectives as hc
from hdp import metrics

comm = hc.init()
for step in range(30):
    time.sleep(0.005 if comm.rank == 1 else 0.001)
    hc.allreduce(np.ones(100_000, np.float32), comm.world, tag="x").wait()
    if comm.rank == 0:
        metrics.log(step=step, loss=1 / (step + 1), accuracy=step / 30, samples=8, input_seconds=0.0005)
    if comm.rank == 2 and step == 20 and "fail" in sys.argv[-1]:
        raise ValueError("no such class: " + "x" * 400)
"""
NARROW, WIDE = 400, 1280
LOOKS = [(width, dark) for width in (WIDE, NARROW) for dark in (False, True)]
KINDS = ("finished", "failed", "comparison")


def _estimator(folder: Path, **more) -> Estimator:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "train.py").write_text(SCRIPT)
    kind = {"entry_point": "train.py", "source_dir": str(folder / "code"), "instance_type": "local"}
    return Estimator(**kind, instance_count=2, environment={"HDP_TIMELINE": "1", "HDP_TOPOLOGY": "1"}, **more)


def _hdp(ranks: int) -> dict:
    return {"hdp": {"enabled": True, "processes_per_host": ranks}}


def _report(job: TrainingJob, path: Path) -> None:
    command = [sys.executable, "-m", "hdp.estimator.cli", "report", job.name, "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Three pages: `hdp report` of a job that finished on 2 x 2 ranks, of one that failed, and a comparison as a
    notebook has it."""
    folder = tmp_path_factory.mktemp("looks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDP_HOME", str(folder / "home"))
        _report(_estimator(folder, distribution=_hdp(2)).fit(logs=False), folder / "finished.html")
        job = _estimator(folder, distribution=_hdp(2), hyperparameters={"then": "fail"}).fit(wait=False)
        with pytest.raises(TrainingJobFailed):
            job.wait(logs=False)
        _report(job, folder / "failed.html")
        found = compare(_estimator(folder), {"two ranks": _hdp(1), "four ranks": _hdp(2)}, repeats=2, baselines=False)
    found.plot(folder / "plot.svg")
    shown = f'<div style="overflow-x: auto">{found._repr_html_()}</div><img src="plot.svg" style="max-width: 100%">'
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += "<style>:root { color-scheme: light dark }</style>"
    (folder / "comparison.html").write_text(f"<!doctype html>{head}{shown}")
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Where pictures go."""
    folder = Path(os.environ.get("HDP_TEST_PICTURES") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize(("width", "dark"), LOOKS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole(pages, tab, pictures, kind, width, dark):
    """No error on the console, no broken image, no text that leaves the page, all of which is in the picture."""
    tab.open(pages / f"{kind}.html", width, dark)
    assert tab.faults() == []
    picture = pictures / f"{kind}-{width}{'-dark' if dark else ''}.png"
    tab.picture(picture)
    shown = tab.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
    assert list(struct.unpack(">II", picture.read_bytes()[16:24])) == shown


#: Relative luminance (WCAG 2) of the colours of text that is shown, against what is behind it: the least contrast.
_CONTRAST = """(() => {
  const channel = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const rgba = text => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = rgba(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest('style, svg') || !parent.checkVisibility()) continue;
    const [a, b] = [luminance(rgba(getComputedStyle(parent).color)), luminance(behind(parent))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(node.data.trim().slice(0, 40) + ': ' + contrast.toFixed(1));
  }
  return found;
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", ["finished", "failed"])
def test_text_can_be_told_from_its_ground(pages, tab, kind, dark):
    """At least 4.5 to 1, what WCAG 2 asks for."""
    tab.open(pages / f"{kind}.html", WIDE, dark)
    assert tab.evaluate(_CONTRAST) == []


def test_dark_is_dark(pages, tab):
    """The ground of the page and of the report in it."""
    grounds = "[...document.querySelectorAll('body, .hdp')].map(e => getComputedStyle(e).backgroundColor)"
    tab.open(pages / "finished.html", WIDE)
    light = tab.evaluate(grounds)
    tab.open(pages / "finished.html", WIDE, dark=True)
    assert (light, tab.evaluate(grounds)) == (["rgb(255, 255, 255)"] * 2, ["rgb(18, 21, 24)"] * 2)


#: Heights, in CSS pixels, of the digits at a plot's axes.
_DIGITS = "[...document.querySelectorAll('.plot text')].map(e => e.getBoundingClientRect().height)"
#: What a host's name would be broken into.
_LINES_OF_HOSTS = """[...document.querySelectorAll('.tight td')].filter(e => e.textContent.startsWith('algo-'))
  .map(e => e.clientHeight / parseFloat(getComputedStyle(e).lineHeight))"""


def test_a_phone_can_read_plots_and_hosts(pages, tab):
    """At 400 px: no text of a plot is smaller than 9 px, no name of a host takes two lines."""
    tab.open(pages / "finished.html", NARROW)
    assert min(tab.evaluate(_DIGITS)) >= 9
    found = tab.evaluate(_LINES_OF_HOSTS)
    assert len(found) == 4 and max(found) < 2


def test_ranks_in_the_picture_can_be_told_from_their_dots(pages, tab):
    """White on the light scheme's blue, dark on the dark scheme's."""
    fills = "['.net .inside', '.net .rank'].map(s => getComputedStyle(document.querySelector(s)).fill)"
    tab.open(pages / "finished.html", WIDE)
    assert tab.evaluate(fills) == ["rgb(255, 255, 255)", "rgb(0, 114, 178)"]
    tab.open(pages / "finished.html", WIDE, dark=True)
    assert tab.evaluate(fills) == ["rgb(18, 21, 24)", "rgb(86, 180, 233)"]
