"""The commands of `hdp`. Each imports what it needs, so that `hdp jobs` answers at once."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any

import typer

from hdp.estimator.cli import images, network
from hdp.estimator.cli.compare import compare
from hdp.estimator.cli.lint_input import lint_input
from hdp.estimator.cli.report import report
from hdp.estimator.cli.serve import serve
from hdp.estimator.cli.timeline import timeline

app = typer.Typer(
    name="hdp",
    help="Look at training jobs and their data, follow, stop and clean them; compare distributions; see what this "
    "machine can do.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
EngineOption = Annotated[
    str, typer.Option("--engine", help="Engine that has the job: local, or sagemaker (AWS_PROFILE, AWS_REGION).")
]
NameArgument = Annotated[str, typer.Argument(help="Name of the job.", show_default=False)]
_RECENT = timedelta(days=1)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@app.command()
def jobs(
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Also those that ended more than a day ago.")] = False,
    engine: EngineOption = "local",
) -> None:
    """List jobs, newest first."""
    from hdp.estimator.cli.tables import jobs_table, out
    from hdp.estimator.engines.registry import get_engine

    found = get_engine(engine).list()
    now = datetime.now(timezone.utc)
    shown = [row for row in found if show_all or now - row.get("TrainingEndTime", now) < _RECENT]
    if shown:
        out().print(jobs_table(shown, now))
    if not found:
        typer.echo("no jobs yet: Estimator(...).fit(...) starts one")
    elif len(shown) < len(found):
        typer.echo(f"{len(found) - len(shown)} older: hdp jobs --all")


@app.command()
def describe(
    name: NameArgument,
    as_json: Annotated[
        bool, typer.Option("--json", help="Everything, as DescribeTrainingJob has it; secrets hidden.")
    ] = False,
    engine: EngineOption = "local",
) -> None:
    """Show one job: what was asked, how it stands, what it left."""
    from hdp.contract.redact import redact
    from hdp.estimator.engines.registry import get_engine

    answer = get_engine(engine).describe(name)
    if as_json:
        typer.echo(json.dumps(redact(answer), indent=2, default=_plain))
        return
    from hdp.estimator.cli.tables import job_report, out

    out().print(job_report(answer))


@app.command()
def logs(
    name: NameArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", help="Only this rank.", show_default=False)] = None,
    host: Annotated[str | None, typer.Option("--host", help="Only this host.", show_default=False)] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Leave out what was shown before (of jobs on SageMaker).")
    ] = False,
    engine: EngineOption = "local",
) -> None:
    """Show a job's log."""
    from hdp.estimator.job import TrainingJob

    TrainingJob.attach(name, engine).logs(follow=follow, host=host, rank=rank, resume=resume)


@app.command()
def stop(
    name: NameArgument,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Return when it has ended.")] = False,
    engine: EngineOption = "local",
) -> None:
    """Stop a job: every rank gets SIGTERM and time to write a checkpoint."""
    from hdp.estimator.engines.base import TERMINAL
    from hdp.estimator.job import TrainingJob

    job = TrainingJob.attach(name, engine)
    if job.status in TERMINAL:
        typer.echo(f"job {name} has ended already: {job.status}")
        return
    job.stop(wait=wait)
    if wait:
        typer.echo(f"job {name}: {job.status}")
        return
    option = "" if engine == "local" else f" --engine {engine}"
    typer.echo(
        f"stop sent to job {name}: every rank gets SIGTERM and time to write a checkpoint; then the job is Stopped\n"
        f"watch it: hdp logs -f {name}{option}   see which rank wrote what: hdp describe {name}{option}"
    )


@app.command()
def clean(
    names: Annotated[list[str] | None, typer.Argument(help="Only these jobs.", show_default=False)] = None,
    older_than: Annotated[str, typer.Option(help="Only jobs that ended so long ago: 30m, 12h, 7d, 2w.")] = "0s",
    whole_jobs: Annotated[
        bool, typer.Option("--all", help="Remove the jobs altogether, with logs and artifacts.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be freed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Free the disk space that ended jobs hold. Running jobs are never touched.

    Host trees go; records, logs and artifacts stay, and the checkpoints of jobs that didn't complete.
    """
    import sys

    from hdp.estimator.cli.tables import cleaned_table, out, size
    from hdp.estimator.engines.local.cleaning import Cleaning
    from hdp.estimator.engines.local.engine import LocalEngine

    if whole_jobs and not dry_run and not yes and sys.stdin.isatty():
        typer.confirm("Remove ended jobs with their logs and artifacts?", abort=True)
    what = Cleaning(tuple(names or ()), parse_duration(older_than), whole_jobs, dry_run)
    rows = LocalEngine().clean(what)
    if rows:
        out().print(cleaned_table(rows))
    typer.echo(f"{'would free' if dry_run else 'freed'} {size(sum(row.freed_bytes for row in rows))}")


@app.command()
def doctor() -> None:
    """Say what this machine can and can't do, and the remedy for each thing that it can't."""
    from hdp.estimator.cli.doctor import examine
    from hdp.estimator.cli.tables import doctor_table, out

    findings = examine()
    out().print(doctor_table(findings))
    if any(finding.grade == "no" and finding.needed for finding in findings):
        raise typer.Exit(1)


app.command()(network.topology)
app.command()(network.explain)
app.command()(timeline)
app.command()(report)
app.command()(compare)
app.command("lint-input")(lint_input)
app.command()(images.build)
app.command()(images.images)
app.command()(serve)


@app.command()
def version() -> None:
    """Show the version of hdp."""
    from importlib.metadata import version as installed

    typer.echo(installed("hdp-train"))


def parse_duration(text: str) -> timedelta:
    """``7d`` as a timedelta. Raises typer.BadParameter for what isn't a number and one of s, m, h, d, w."""
    match = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if match is None:
        message = f"{text!r} isn't a duration; expected e.g. 30m, 12h, 7d or 2w"
        raise typer.BadParameter(message, param_hint="--older-than")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
