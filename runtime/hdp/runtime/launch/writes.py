"""What a rank writes below ``checkpoints/``: noted in the rank as it happens, read by the agent.

Two things in the rank's process tell. An audit hook sees every file that Python opens for writing, renames or links.
``torch.save`` with a path opens the file in C++, where no audit hook looks, and a small one is written between two
looks at the rank's descriptors; so `torch.save` is wrapped, when torch is imported, by a function that notes the path
and calls it. Each writes one line, JSON ``[Unix seconds, path]``, to the rank's list.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

Note = Callable[[object], None]
"""Takes what was given as a file: a path counts where it is below the folder, anything else doesn't."""

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
#: Audit events that give a file a new name -> which argument is the name.
_TARGETS = {"os.rename": 1, "os.link": 1}
_TORCH_MODULE = "torch.serialization"


def writes_file(error_file: Path) -> Path:
    """Where the rank with this error file keeps its list."""
    return error_file.with_suffix(".writes")


def record_writes(folder: Path, list_file: Path) -> None:
    """From now on, note in `list_file` what this process, and what it forks, writes below `folder`."""
    note = _noter(folder, list_file)
    sys.addaudithook(functools.partial(_audit, note))
    sys.meta_path.insert(0, _TorchImport(note))


def read_writes(list_file: Path) -> list[tuple[float, str]]:
    """Unix time and path of every write that was noted; nothing where there is no list."""
    try:
        lines = list_file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    writes = []
    for line in lines:
        try:
            seconds, name = json.loads(line)
        except ValueError:
            continue  # the rank was killed while it wrote, or the disk is full
        writes.append((float(seconds), str(name)))
    return writes


def _noter(folder: Path, list_file: Path) -> Note:
    # An engine may link the folder to one that all hosts share; a script may use either name.
    inside = (f"{folder}/", os.path.realpath(folder) + "/")

    def note(file: object) -> None:
        if not isinstance(file, (str, bytes, os.PathLike)):
            return
        name = os.path.abspath(os.fsdecode(file))  # noqa: PTH100 (links stay: resolving would open files)
        if not name.startswith(inside):
            return
        # What can't be noted (a full disk) must not keep the script from saving. No descriptor is held: a script may
        # close it, and the number would then be another file's.
        with contextlib.suppress(OSError):
            fd = os.open(list_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, json.dumps([time.time(), name]).encode() + b"\n")
            finally:
                os.close(fd)

    return note


def _audit(note: Note, event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, mode, flags = args
        if any(c in mode for c in "wax+") if isinstance(mode, str) else flags & _WRITE_FLAGS:
            note(path)
    elif event in _TARGETS:
        note(args[_TARGETS[event]])


class _TorchImport(MetaPathFinder):
    """Wraps `torch.save` while torch is imported; nothing is imported that the script doesn't import."""

    def __init__(self, note: Note) -> None:
        self._note = note

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002 (the protocol's)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The module's usual spec, whose loader wraps ``save`` once the module is there; None for other modules."""
        if name != _TORCH_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self._wrap(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec

    def _wrap(self, module: ModuleType) -> None:
        save = getattr(module, "save", None)
        if not callable(save):
            return

        @functools.wraps(save)
        def noting_save(obj: object, f: object, *args: Any, **options: Any) -> Any:
            self._note(f)
            return save(obj, f, *args, **options)

        module.__dict__["save"] = noting_save
