"""The site, looked at in headless Chromium: a broken image, an error or text that leaves the page is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from browser import installed, opened
from notebooks_support import NAMES, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Images that are there and have no pixels.
_BROKEN = "[...document.images].filter(i => i.complete && !i.naturalWidth || !i.complete).map(i => i.src)"
#: Text outside the page that can't be scrolled to by scrolling the box that it's in; the page itself mustn't scroll
#: sideways. What a narrow page moves out of sight on purpose (menus) is not shown text.
_OUTSIDE = """(() => {
  const found = [], width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) found.push('the page: ' + document.documentElement.scrollWidth);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    const parent = node.parentElement;
    if (!node.data.trim() || !parent.checkVisibility({visibilityProperty: true}) || parent.closest('[class*=drawer]'))
      continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (!box.width || box.right <= width + 1) continue;
    let around = parent;
    while (around && !['auto', 'scroll'].includes(getComputedStyle(around).overflowX)) around = around.parentElement;
    if (!around || around === document.body || around === document.documentElement)
      found.push(node.data.trim().slice(0, 60) + ': ' + Math.round(box.right));
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def site(executed, tmp_path_factory):
    """The folder of the site, made from the executed notebooks; a warning of Sphinx fails."""
    for module in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(module, reason=f"there is no {module}: pip install -e '.[docs]'")
    notebooks = [executed(name) for name in NAMES]
    to = tmp_path_factory.mktemp("site") / "html"
    command = [sys.executable, "tools/docs.py", "--executed", str(notebooks[0].parent), "--to", str(to)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return to


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """A tab of a headless browser."""
    browser = installed()
    if browser is None:
        pytest.skip("NO BROWSER: nobody looks at the pages here. apt-get install chromium")
    with opened(browser, tmp_path_factory.mktemp("profile")) as page:
        yield page


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
        found = [*tab.complaints(), *tab.evaluate(_BROKEN), *tab.evaluate(_OUTSIDE)]
        faults += [f"{path.relative_to(site)}: {fault}" for fault in found]
    assert faults == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<img src="nowhere.png">', "nowhere.png"),
        ("<script>console.error('alas')</script>", "alas"),
        ("<script>throw new Error('alas')</script>", "alas"),
        (f"<p>{'x' * 400}</p>", "the page"),
    ],
    ids=["image", "console", "exception", "overflow"],
)
def test_a_page_that_is_not_whole_is_found_out(tab, tmp_path, body, fault):
    path = tmp_path / "page.html"
    path.write_text(f"<!doctype html><body>{body}</body>")
    tab.open(path, 390)
    assert fault in str([*tab.complaints(), *tab.evaluate(_BROKEN), *tab.evaluate(_OUTSIDE)])


def test_text_in_a_box_that_scrolls_is_no_fault(tab, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(f'<!doctype html><body><div style="overflow-x: auto">{"x" * 400}</div></body>')
    tab.open(path, 390)
    assert tab.evaluate(_OUTSIDE) == []
