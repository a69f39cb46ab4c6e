"""`hdp serve`: the local engine behind SageMaker's HTTP API."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from hdp.estimator.cli import completing

DEFAULT_PORT = 8571


def serve(
    port: Annotated[int, typer.Option(min=0, max=65535, help="On loopback; 0: any that is free.")] = DEFAULT_PORT,
    instance_types: Annotated[
        str,
        typer.Option(
            help="What hosts of SageMaker's instance types run as: local or local_gpu.",
            autocompletion=completing.of("local", "local_gpu"),
        ),
    ] = "local",
    python: Annotated[
        str | None, typer.Option(help="Interpreter that stands for the image.", show_default="this one")
    ] = None,
    run_carried: Annotated[
        bool,
        typer.Option("--run-carried", help="Run the start script and the runtime that a request of ours carries."),
    ] = False,
    calls_per_second: Annotated[
        float | None,
        typer.Option(min=0.1, help="More are answered by ThrottlingException.", show_default="no limit"),
    ] = None,
) -> None:
    """Answer SageMaker's SDKs with jobs of this machine.

    To boto3 and the SDKs it is SageMaker and CloudWatch Logs.

    Ctrl-C ends it; jobs go on.
    """
    from hdp.contract.errors import EngineError, SpecError
    from hdp.estimator.engines.local.engine import LocalEngine
    from hdp.estimator.serve.calls import Serving
    from hdp.estimator.serve.server import Server
    from hdp.estimator.serve.throttle import Throttle

    engine = LocalEngine()
    options, faults = engine.validate_options(
        {
            "instance_types": instance_types,
            "run_carried": run_carried,
            **({} if python is None else {"python": python}),
        }
    )
    if faults:
        raise SpecError(faults, "hdp serve")
    try:
        server = Server(Serving(engine, options, Throttle(calls_per_second)), port)
    except OSError as exc:
        raise EngineError(f"port {port} of loopback can't be had: {exc.strerror}; give another with --port") from exc
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr, force=True)
    with server:
        try:
            typer.echo(_greeting(server.endpoint, str(engine.home.jobs)))
            sys.stdout.flush()
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("\nended; jobs go on: hdp jobs")


def _greeting(endpoint: str, jobs: str) -> str:
    """What is served, and what points clients at it."""
    return f"""\
SageMaker training jobs and their logs, at {endpoint}; jobs are in {jobs}.
Point boto3, SageMaker's SDKs or instance_type="ml.*" at it:

    export AWS_ENDPOINT_URL_SAGEMAKER={endpoint}
    export AWS_ENDPOINT_URL_CLOUDWATCH_LOGS={endpoint}

Any credentials do: signatures aren't checked, but only processes of this user are answered. S3 is the one that this
process's environment names (AWS_ENDPOINT_URL_S3, else Amazon's). Images aren't run. Ctrl-C ends this; jobs go on."""
