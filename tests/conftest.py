"""What all tests need."""

import os
import signal
from pathlib import Path

import pytest
from browser import installed, opened
from docker_daemon import context, daemon  # noqa: F401  (fixtures: one daemon for all tests of a run)

# A shell gives programs that it runs in the background SIGINT ignored, and they and all their children keep it. Tests
# send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_logreport(report):
    """Keeps the end of each failure in the file $HDP_TEST_FAILURES, where tools/test.sh prints it when all is over."""
    file = os.environ.get("HDP_TEST_FAILURES")
    if file and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        lines = [line[:300] for line in report.longreprtext.splitlines()[-20:]]
        with Path(file).open("a") as failures:
            print(f"--- {report.nodeid} ({report.when})", *lines, sep="\n", file=failures)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """A tab of a headless browser."""
    browser = installed()
    if browser is None:
        pytest.skip("NO BROWSER, so nobody looks at the pages: apt-get install chromium")
    with opened(browser, tmp_path_factory.mktemp("profile")) as page:
        yield page
