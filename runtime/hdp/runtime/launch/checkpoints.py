"""Which checkpoint files were written after SIGTERM, and by which rank.

What was written is read from the file system: every file below ``checkpoints/`` whose status changed since. By whom is
pieced together: from the list that each rank keeps (`hdp.runtime.launch.writes`: what Python opens or renames, and
``torch.save``), from open descriptors sampled while the rank stops (what other libraries open in C++, and what other
programs write that the rank starts, where it takes them 20 ms or more), and, where there is one rank only, by
elimination. A file that nobody can be found for is listed for the host.

An engine may link the folder to one that all hosts share. Then the files of the other hosts are in it too: nothing is
eliminated then, and the host's list has them all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from hdp.runtime.launch.writes import read_writes

#: The kernel stamps files with a clock that ticks every 1 to 10 ms.
_CLOCK_TICK_SECONDS = 0.02
SAMPLE_SECONDS = 0.02


class CheckpointWatch:
    """Watches the folder `folder` from Unix time `since` on."""

    def __init__(self, folder: Path, since: float) -> None:
        self._shared = folder.is_symlink()
        self._folder = Path(os.path.realpath(folder))
        self._since = since
        self._seen: dict[int | None, set[str]] = {}

    def sample(self, processes: Mapping[int | None, Iterable[int]]) -> None:
        """Look at what the processes of each rank have open for writing now. processes: rank to process IDs."""
        for rank, pids in processes.items():
            for pid in pids:
                self._seen.setdefault(rank, set()).update(_open_below(pid, str(self._folder) + "/"))

    def written(self) -> tuple[str, ...]:
        """Files that were written since, relative to the folder, sorted."""
        found = []
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = Path(folder) / name
                try:
                    changed = path.stat().st_ctime
                except OSError:
                    continue  # a temporary file that is gone again
                if changed >= self._since - _CLOCK_TICK_SECONDS:
                    found.append(path.relative_to(self._folder).as_posix())
        return tuple(sorted(found))

    def by_rank(self, side_files: Mapping[int | None, Path]) -> dict[int | None, tuple[str, ...]]:
        """The files of `written`, for each rank those that it wrote. side_files: rank to its list of writes."""
        written = self.written()
        if len(side_files) == 1 and not self._shared:
            return dict.fromkeys(side_files, written)
        begun = {rank: self._begun(rank, path) for rank, path in side_files.items()}
        return {rank: tuple(w for w in written if self._wrote(rank, w, begun)) for rank in side_files}

    def _begun(self, rank: int | None, side_file: Path) -> dict[str, float]:
        """Relative name -> Unix time at which the rank last began to write it; infinity where it was seen open."""
        begun = {self._relative(name): seconds for seconds, name in read_writes(side_file)}
        return {**begun, **{self._relative(name): math.inf for name in self._seen.get(rank, ())}}

    def _wrote(self, rank: int | None, name: str, begun: Mapping[int | None, Mapping[str, float]]) -> bool:
        """Whether `rank` began it after SIGTERM or, where nobody did, was the last to begin it before."""
        own = begun[rank].get(name, -math.inf)
        return own > -math.inf and own >= min(self._since, max(of.get(name, -math.inf) for of in begun.values()))

    def _relative(self, name: str) -> str:
        return os.path.relpath(os.path.realpath(name), self._folder)


def _open_below(pid: int, inside: str) -> set[str]:
    found: set[str] = set()
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 (every 20 ms: names are enough)
    except OSError:
        return found
    for fd in descriptors:
        try:
            name = os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115 (see above)
            if name.startswith(inside) and _writable(pid, fd):
                found.add(name)
        except OSError:
            continue
    return found


def _writable(pid: int, fd: str) -> bool:
    for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines():
        if line.startswith("flags:"):
            return bool(int(line.split()[1], 8) & (os.O_WRONLY | os.O_RDWR))
    return False
