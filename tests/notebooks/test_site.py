"""The site, looked at in headless Chromium: a broken image, an error or text that leaves the page is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from notebooks_support import NAMES, ROOT, alone_with, common

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(executed, tmp_path_factory):
    """The folder of the site, made from the executed notebooks; a warning of Sphinx fails."""
    for module in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(module, reason=f"there is no {module}: pip install -e '.[docs]'")
    notebooks = [executed(name) for name in NAMES]
    folder = common(tmp_path_factory, "site")
    with alone_with(folder / "lock"):
        if not (folder / "html" / "index.html").exists():
            command = [sys.executable, "tools/docs.py", "--executed", str(notebooks[0].parent)]
            command += ["--to", str(folder / "html")]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def pages(site: Path) -> list[Path]:
    return [path for path in sorted(site.rglob("*.html")) if path.name not in ("genindex.html", "search.html")]


def test_the_site_has_every_notebook_and_the_reference(site):
    names = {str(path.relative_to(site)) for path in pages(site)}
    assert {"index.html", "api/1_estimator.html", "CHANGELOG.html"} | {f"notebooks/{n}.html" for n in NAMES} <= names


def test_the_reference_has_every_public_name_of_the_client(site):
    import hdp.estimator

    text = (site / "api" / "1_estimator.html").read_text()
    assert [name for name in hdp.estimator.__all__ if f'id="hdp.estimator.{name}"' not in text] == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["desktop", "phone, dark"])
def test_every_page_is_whole(site, tab, width, dark):
    """No error on the console, no broken image, no text that leaves the page."""
    faults = []
    for path in pages(site):
        tab.open(path, width, dark)
        faults += [f"{path.relative_to(site)}: {fault}" for fault in tab.faults()]
    assert faults == []
