"""What the tests that look at pages find out about a page."""

import pytest


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
    assert fault in str(tab.faults())


def test_text_in_a_box_that_scrolls_is_no_fault(tab, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(f'<!doctype html><body><div style="overflow-x: auto">{"x" * 400}</div></body>')
    tab.open(path, 390)
    assert tab.faults() == []
