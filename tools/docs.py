"""Make the site: the README, the notebooks with what they show, and the API's reference.

    python tools/docs.py [--full] [--executed FOLDER] [--to build/docs/html]

--full: the notebooks' own settings, instead of the small ones that tests use (minutes longer).
--executed: a folder of notebooks that were executed before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from notebooks import SMALL, execute, named
from sphinx.cmd.build import build_main

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "docs"
#: What is beside the sources of the site in the repository's root.
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def assembled(executed: Path, to: Path) -> Path:
    """A folder, made anew, with all that Sphinx reads. Returns it."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(ROOT / "docs", to)
    for page in PAGES:
        shutil.copy(ROOT / page, to)
    shutil.copytree(ROOT / "docs" / "pictures", to / "docs" / "pictures")  # where the README has them
    shutil.copytree(executed, to / "notebooks")
    return to


def main() -> int:
    """Execute what has to be, and build. Returns Sphinx's exit status; a warning is an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--executed", type=Path)
    parser.add_argument("--to", type=Path, default=BUILD / "html")
    arguments = parser.parse_args()
    executed = arguments.executed or _executed(arguments.full)
    source = assembled(executed, arguments.to.parent / "source")
    status = build_main(["-q", "-E", "-W", "--keep-going", "-b", "html", str(source), str(arguments.to)])
    if not status:
        print(f"open {arguments.to / 'index.html'}")
    return status


def _executed(full: bool) -> Path:
    if not full:
        os.environ.update(SMALL)
    to = BUILD / "notebooks"
    shutil.rmtree(to, ignore_errors=True)
    for path in named([]):
        print(f"executing {path.name}", flush=True)
        execute(path, to)
    return to


if __name__ == "__main__":
    sys.exit(main())
