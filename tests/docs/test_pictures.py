"""The README's pictures: they are XML, need nothing else, and say what the README's table says."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs/pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_has_a_title_and_a_dark_face_and_loads_nothing(picture):
    text = picture.read_text()
    assert ElementTree.fromstring(text).find(f"{SVG}title").text
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)|href=|<script|@import", text) == []


def test_the_bars_are_the_medians_of_the_readmes_table():
    """Width 500 for 1,800 ms, in the order of the picture."""
    table = re.findall(
        r"^    (hdp|mpi|horovod|gloo|apart) +([\d,]+) +[\d,]+-[\d,]+ ", (ROOT / "README.md").read_text(), re.M
    )
    medians = {name: float(value.replace(",", "")) for name, value in table}
    tree = ElementTree.parse(ROOT / "docs/pictures/comparison.svg")
    widths = [float(bar.get("width")) for bar in tree.iter(f"{SVG}rect")]
    expected = [medians[name] * 500 / 1800 for name in ("hdp", "mpi", "gloo", "horovod", "apart")]
    assert widths == pytest.approx(expected, abs=0.06)
