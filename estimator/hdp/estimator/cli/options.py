"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from hdp.estimator.cli import completing

EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Engine that has the job: local (Docker's too), or sagemaker (AWS_PROFILE, AWS_REGION).",
        autocompletion=completing.engines,
    ),
]
NameArgument = Annotated[
    str, typer.Argument(help="Name of the job.", show_default=False, autocompletion=completing.job_names)
]
