"""``hdp report``: all that is known of a job, as one page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdp.estimator.cli.options import EngineOption, NameArgument


def report(
    name: NameArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write: by default NAME-report.html, here.")
    ] = None,
    engine: EngineOption = "local",
) -> None:
    """Write one HTML page about a job.

    It has curves, where a step's time goes, late ranks, links, channels, the first cause of a failure.

    Times of steps and links are in it where the job's environment has HDP_TIMELINE=1 and HDP_TOPOLOGY=1.
    """
    from hdp.estimator.job import TrainingJob

    made = TrainingJob.attach(name, engine).report()
    typer.echo(f"{made.save(output or Path(f'{name}-report.html'))}: open it in a browser; it needs no other file")
    for gap in made.gaps:
        typer.echo(gap)
