"""Execute notebooks from top to bottom, as a reader does, and keep what they show.

    python tools/notebooks.py [--small] [--to build/docs/notebooks] [01_first_job ...]

--small: the settings that tests use. The notebooks' files in git stay as they are.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
#: What a notebook reads instead of the settings in its cells.
SMALL = {"NOTEBOOK_EPOCHS": "1", "NOTEBOOK_STEPS": "4", "NOTEBOOK_REPEATS": "1", "NOTEBOOK_RANKS": "1"}
#: Tag of a cell that raises where the machine lacks what the rest of the notebook needs.
NEEDS = "needs"
_CELL_SECONDS, _START_SECONDS = 1800, 180


def execute(source: Path, to: Path) -> Path:
    """Execute `source` in its own folder. Returns the notebook with its outputs, below `to`.

    A cell with the tag `NEEDS` may raise: what it says is the notebook's last output, and it's printed here.

    Raises CellExecutionError, whose text has the cell and the traceback; RuntimeError where a cell warned.
    """
    notebook = nbformat.read(source, as_version=4)
    # Without folders of specifications the kernel is this very Python, whatever else the user has registered.
    specs = KernelSpecManager(kernel_dirs=[])
    kernel = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=specs)
    client = NotebookClient(
        notebook,
        km=kernel,
        timeout=_CELL_SECONDS,
        startup_timeout=_START_SECONDS,
        resources={"metadata": {"path": str(source.parent)}},
    )
    try:
        client.execute(env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    except CellExecutionError:
        if (why := lack(notebook)) is None:
            raise
        print(f"{source.stem}: NOT RUN PAST ITS BEGIN, since {why}", flush=True)
    to.mkdir(parents=True, exist_ok=True)
    path = to / source.name
    nbformat.write(notebook, path)
    if warned := warnings_in(notebook):
        raise RuntimeError(f"{source.name} warns; write it for today's API:\n" + "\n".join(warned))
    return path


def lack(notebook: nbformat.NotebookNode) -> str | None:
    """Why the notebook can't run on this machine, by its cell with the tag `NEEDS`; None: that cell didn't raise."""
    cells = [cell for cell in notebook.cells if NEEDS in cell.metadata.get("tags", ())]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    return next((f"{output.ename}: {output.evalue}" for output in outputs if output.output_type == "error"), None)


def warnings_in(notebook: nbformat.NotebookNode) -> list[str]:
    """Lines that Python's own warnings left in the outputs."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    lines = [line for output in outputs if output.get("name") == "stderr" for line in output.text.splitlines()]
    return [line for line in lines if "Warning: " in line]


def named(names: list[str]) -> list[Path]:
    """The notebooks with these names, in order; all, where none is named."""
    known = {path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no notebook is named {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in names or known]


def main() -> None:
    """Execute those that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--to", type=Path, default=NOTEBOOKS.parent / "build" / "docs" / "notebooks")
    arguments = parser.parse_args()
    if arguments.small:
        os.environ.update(SMALL)
    for path in named(arguments.names):
        start = time.monotonic()
        execute(path, arguments.to)
        print(f"{path.stem}: {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
