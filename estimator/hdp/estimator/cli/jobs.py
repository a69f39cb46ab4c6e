"""`hdp jobs`, `describe`, `logs`, `stop` and `clean`. Each loads what it needs, so that `hdp jobs` answers at once."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdp.estimator.cli import completing
from hdp.estimator.cli.options import EngineOption, NameArgument
from hdp.estimator.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

_RECENT = timedelta(days=1)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def jobs(
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Also those that ended more than a day ago.")] = False,
    engine: EngineOption = "local",
) -> None:
    """List jobs, newest first."""
    from hdp.estimator.cli.tables import jobs_table
    from hdp.estimator.cli.text import show
    from hdp.estimator.engines.registry import get_engine

    found = get_engine(engine).list()
    now = datetime.now(timezone.utc)
    shown = [row for row in found if show_all or now - row.get("TrainingEndTime", now) < _RECENT]
    if shown:
        show(jobs_table(shown, now))
    if not found:
        typer.echo("no jobs yet: Estimator(...).fit(...) starts one")
    elif len(shown) < len(found):
        typer.echo(f"{len(found) - len(shown)} older: hdp jobs --all")


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
    from hdp.estimator.cli.tables import job_report
    from hdp.estimator.cli.text import show

    show(*job_report(answer))


def logs(
    name: NameArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.", show_default=False)] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Only this host.", show_default=False, autocompletion=completing.hosts)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Leave out what was shown before (of jobs on SageMaker).")
    ] = False,
    engine: EngineOption = "local",
) -> None:
    """Show a job's log."""
    from hdp.estimator.job import TrainingJob

    job = TrainingJob.attach(name, engine)
    check_place(job.describe(), host, rank)
    try:
        job.logs(follow=follow, host=host, rank=rank, resume=resume)
    except KeyboardInterrupt:  # the way back has been said
        raise typer.Exit(130) from None


def stop(
    name: NameArgument,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Return when it has ended.")] = False,
    engine: EngineOption = "local",
) -> None:
    """Stop a job; its ranks get time to write a checkpoint.

    Every rank on every host gets SIGTERM, and SIGKILL at the deadline.
    """
    from hdp.estimator.engines.base import TERMINAL
    from hdp.estimator.job import TrainingJob

    job = TrainingJob.attach(name, engine)
    if job.status in TERMINAL:
        typer.echo(f"job {name} has ended already: {job.status}")
        return
    try:
        job.stop(wait=wait)
    except KeyboardInterrupt:
        typer.echo(f"\nstop was sent to job {name}, and it ends without you: hdp describe {name}")
        raise
    if wait:
        typer.echo(f"job {name}: {job.status}")
        return
    option = "" if engine == "local" else f" --engine {engine}"
    typer.echo(
        f"stop sent to job {name}: every rank gets SIGTERM and time to write a checkpoint; then the job is Stopped\n"
        f"watch it: hdp logs -f {name}{option}   see which rank wrote what: hdp describe {name}{option}"
    )


def clean(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Only these jobs.", show_default=False, autocompletion=completing.several_job_names),
    ] = None,
    older_than: Annotated[
        str,
        typer.Option(
            help="Only jobs that ended so long ago: 30m, 12h, 7d, 2w.",
            autocompletion=completing.of("1h", "12h", "1d", "7d", "4w"),
        ),
    ] = "0s",
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

    from hdp.estimator.cli.tables import cleaned_table, size
    from hdp.estimator.cli.text import show
    from hdp.estimator.engines.local.cleaning import Cleaning
    from hdp.estimator.engines.local.engine import LocalEngine

    if whole_jobs and not dry_run and not yes and sys.stdin.isatty():
        typer.confirm("Remove ended jobs with their logs and artifacts?", abort=True)
    what = Cleaning(tuple(names or ()), parse_duration(older_than), whole_jobs, dry_run)
    rows = LocalEngine().clean(what)
    if rows:
        show(cleaned_table(rows))
    typer.echo(f"{'would free' if dry_run else 'freed'} {size(sum(row.freed_bytes for row in rows))}")


def check_place(answer: Mapping[str, Any], host: str | None, rank: int | None) -> None:
    """Refuse a host or a rank that the job, an ended one, doesn't have. Raises EngineError that names those it has."""
    from hdp.contract.errors import EngineError

    extras, name = answer.get("Hdp", {}), answer["TrainingJobName"]
    hosts = [known["host"] for known in extras.get("hosts", ())]
    ranks = [known["rank"] for known in extras.get("ranks", ()) if known["rank"] is not None]
    if host is not None and hosts and host not in hosts:
        raise EngineError(f"job {name} has no host {host!r}{did_you_mean(host, hosts)} (there are {', '.join(hosts)})")
    if rank is not None and ranks and rank not in ranks:
        raise EngineError(f"job {name} has no rank {rank}; its ranks are {min(ranks)} to {max(ranks)}")


def parse_duration(text: str) -> timedelta:
    """``7d`` as a timedelta. Raises typer.BadParameter for what isn't a number and one of s, m, h, d, w."""
    match = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if match is None:
        message = f"{text!r} isn't a duration; expected e.g. 30m, 12h, 7d or 2w"
        raise typer.BadParameter(message, param_hint="--older-than")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
