"""What a shell offers when Tab is pressed: names of jobs, hosts and engines, and the values that options take.

Only names on this disk are looked at, and no engine is loaded: it has to be there before the next key is pressed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import typer

Complete = Callable[[str], list[str]]


def of(*values: str) -> Complete:
    """Offers `values`."""

    def complete(incomplete: str) -> list[str]:
        return _beginning(incomplete, values)

    return complete


def job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Jobs of the local engine and of Docker; of another engine, where it was named, those followed from here."""
    from hdp.estimator.engines.local.home import home_from

    home, engine = home_from(), ctx.params.get("engine") or "local"
    if engine in ("local", "docker"):
        return _beginning(incomplete, _entries(home.jobs))
    followed = [Path(home.path, "cursors", place) for place in _entries(home.path / "cursors")]
    of_engine = [folder for folder in followed if folder.name.startswith(f"{engine}-")]
    return _beginning(incomplete, {name.removesuffix(".json") for folder in of_engine for name in _entries(folder)})


def several_job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """As `job_names`, without those that are there already."""
    given = ctx.params.get("names") or ()
    return [name for name in job_names(ctx, incomplete) if name not in given]


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """The hosts of the job that was named."""
    from hdp.estimator.engines.local.home import home_from

    home = home_from()
    # The parser doesn't get to the name when an option without its value comes behind it.
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()
    name = ctx.params.get("name") or next((word for word in words[2:] if home.job(word).logs.is_dir()), None)
    logs = _entries(home.job(name).logs) if name else []
    return _beginning(incomplete, [file.removesuffix(".log") for file in logs])


def engines(incomplete: str) -> list[str]:
    """Engines, those of plugins too."""
    from hdp.contract.errors import EngineError
    from hdp.estimator.engines.registry import engine_names

    with contextlib.suppress(EngineError):
        return _beginning(incomplete, engine_names())
    return []


def _entries(folder: Path) -> list[str]:
    """Names in a folder, hidden ones apart; none where it can't be read."""
    with contextlib.suppress(OSError):
        return [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    return []


def _beginning(incomplete: str, values: Iterable[str]) -> list[str]:
    return sorted(value for value in values if value.startswith(incomplete))
