"""FastFile's face without a network: mounts FOLDER with one file, FILE's bytes, and serves them from memory.

fastfile_memory.py FOLDER FILE      ends when the mount is taken away

What is left of a mount when the store costs nothing: the kernel's messages, windows, parts, answers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hdp.runtime.channels.fastfile import mounting
from hdp.runtime.channels.fastfile.fs import FileSystem
from hdp.runtime.channels.fastfile.process import _SWITCH_SECONDS
from hdp.runtime.channels.fastfile.server import Server
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import MemoryStore, StoreError
from hdp.runtime.channels.fastfile.tree import Tree
from hdp.runtime.channels.keys import Entry

_BUDGET_BYTES = 384 << 20


def main(folder: str, file: str) -> None:
    """Mount, say so, serve."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    name, data = Path(file).name, Path(file).read_bytes()
    tree = Tree([Entry(name, name, len(data), None)])
    fs = FileSystem(tree, MemoryStore({name: data}), budget_bytes=_BUDGET_BYTES, stats=Stats(), on_error=_fail)
    fd = mounting.mount(Path(folder), subprocess.Popen)
    print("mounted", flush=True)
    Server(fd, fs).run()


def _fail(entry: Entry, error: StoreError) -> None:
    print(f"{entry.key}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
