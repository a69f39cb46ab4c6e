"""What the commands show: values to rich tables. Pure, but for the console itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from hdp.estimator.ending import failures_at_stop

if TYPE_CHECKING:
    from hdp.estimator.cli.doctor import Finding
    from hdp.estimator.engines.docker.images import Image
    from hdp.estimator.engines.local.cleaning import Cleaned

_STYLES = {
    "Completed": "green",
    "Failed": "red",
    "Stopped": "yellow",
    "Stopping": "yellow",
    "InProgress": "cyan",
    "yes": "green",
    "no": "red",
    "note": "yellow",
}


def out() -> Console:
    """Standard output. Where it is no terminal, lines aren't cut to a width."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, width=400)


def jobs_table(rows: Sequence[Mapping[str, Any]], now: datetime) -> Table:
    """One line a job."""
    table = _table("job", "status", "started", "took")
    for row in rows:
        end = row.get("TrainingEndTime", now)
        table.add_row(
            Text(row["TrainingJobName"], overflow="fold"),
            _styled(row["TrainingJobStatus"]),
            _clock(row["CreationTime"]),
            duration(end - row["CreationTime"]),
        )
    return table


def job_report(answer: Mapping[str, Any]) -> Group:
    """One job: facts, then its hosts, then its ranks."""
    facts = Table.grid(padding=(0, 2))
    for key, value in _facts(answer):
        facts.add_row(Text(key, style="bold"), value)
    extras = answer.get("Hdp", {})
    parts: list[Any] = [facts]
    if extras.get("hosts"):
        parts += ["", _hosts_table(extras["hosts"])]
    if extras.get("ranks"):
        parts += ["", _ranks_table(extras["ranks"], extras.get("checkpoints_of_unknown_rank", {}))]
    return Group(*parts)


def cleaned_table(rows: Sequence[Cleaned]) -> Table:
    """One line a job that was looked at."""
    table = _table("job", "freed", "")
    for row in rows:
        table.add_row(Text(row.name, overflow="fold"), size(row.freed_bytes), row.what)
    return table


def images_table(rows: Sequence[Image], now: datetime) -> Table:
    """One line an image; digests are cut, as Docker shows them."""
    table = _table("image", "kind", "digest", "size", "age", "has")
    for row in rows:
        age = now - datetime.fromtimestamp(row.created, tz=now.tzinfo)
        has = ", ".join(f"{name} {version}" for name, version in row.versions.items())
        digest = row.digest.removeprefix("sha256:")[:12]
        table.add_row(Text(row.name, overflow="fold"), row.kind, digest, size(row.size_bytes), duration(age), has)
    return table


def doctor_table(findings: Sequence[Finding]) -> Table:
    """One line a finding; what to do below it."""
    table = _table("what", "", "here")
    for finding in findings:
        text = Text(finding.detail, overflow="fold")
        if finding.remedy:
            text.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(finding.what, _styled(finding.grade), text)
    return table


def size(count: int) -> str:
    """Bytes as a person reads them."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def duration(length: timedelta) -> str:
    """A length of time as a person reads it."""
    seconds = max(0, int(length.total_seconds()))
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {seconds % 60:02}s" if minutes else f"{seconds}s"


def _facts(answer: Mapping[str, Any]) -> Iterator[tuple[str, Text]]:
    status, secondary = answer["TrainingJobStatus"], answer["SecondaryStatus"]
    yield "job", Text(answer["TrainingJobName"])
    yield "status", Text(status if secondary == status else f"{status} ({secondary})", style=_STYLES.get(status, ""))
    if "FailureReason" in answer:
        yield "reason", Text(answer["FailureReason"])
    for step in answer.get("SecondaryStatusTransitions", ()):
        said = (str(step.get("StatusMessage", "")).splitlines() or [""])[0]
        yield "", Text(f"{_clock(step['StartTime'])}  {step['Status']}: {said}")
    extras = answer.get("Hdp", {})
    yield "model", Text(answer.get("ModelArtifacts", {}).get("S3ModelArtifacts", "none"))
    yield "output", Text(extras.get("output_artifacts") or "none")
    if "job_dir" in extras:
        yield "folder", Text(extras["job_dir"])
    yield from _elsewhere(answer)
    yield from _links(extras.get("network") or {})
    for metric in answer.get("FinalMetricDataList", ()):
        yield "last " + metric["MetricName"], Text(f"{metric['Value']:.6g}")
    stopped = status in ("Stopping", "Stopped")
    for host, files in extras.get("checkpoints", {}).items() if stopped else ():
        yield f"checkpoints of {host}", Text(" ".join(files) or "none after it was told to stop")
    for line in failures_at_stop(answer) if stopped else ():
        yield "while stopping", Text(line)
    for note in extras.get("notes", ()):
        yield "note", Text(note)
    for difference in extras.get("environment_differences", ()):
        yield "unlike a cluster", Text(difference)


def _elsewhere(answer: Mapping[str, Any]) -> Iterator[tuple[str, Text]]:
    """What a job of SageMaker's has: an address in the console, and a price."""
    if "TrainingJobArn" not in answer:
        return
    from hdp.estimator.cost import cost_of

    yield "cost", Text(str(cost_of(answer, datetime.now(timezone.utc))))
    for key, link in (("console", "console"), ("logs", "log_dir")):
        if link in answer.get("Hdp", {}):
            yield key, Text(answer["Hdp"][link])


def _links(network: Mapping[str, Any]) -> Iterator[tuple[str, Text]]:
    """Each host's link, where hosts have a network of their own."""
    for host, rate in network.get("rates", {}).items():
        counted = network["hosts"].get(host)
        traffic = "what went over it isn't known (yet)"
        if counted is not None:
            sent, received = size(counted["sent_bytes"]), size(counted["received_bytes"])
            traffic = f"sent {sent}, received {received}, {counted['dropped']} packets dropped"
        yield f"link of {host}", Text(f"{rate or 'no set rate'}: {traffic}")


def _hosts_table(hosts: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("host", "address", "pid", "exit", "log")
    for host in hosts:
        row = (host["host"], host["address"], _or_dash(host["agent_pid"]), _or_dash(host["exit_code"]))
        table.add_row(*row, Text(host["log"], overflow="fold"))
    return table


def _ranks_table(ranks: Sequence[Mapping[str, Any]], of_unknown_rank: Mapping[str, Sequence[str]]) -> Table:
    table = _table("rank", "host", "exit", "after stop", "checkpoints")
    for rank in ranks:
        late = rank["seconds_after_stop"]
        after = "-" if late is None else f"{late:.1f} s" + (" (killed)" if rank["killed_at_deadline"] else "")
        how = rank["signal"] or _or_dash(rank["exit_code"])
        table.add_row(_or_dash(rank["rank"]), rank["host"], how, after, " ".join(rank["checkpoints"]) or "-")
    for host, files in of_unknown_rank.items():
        if files:
            table.add_row("unknown rank", host, "", "", " ".join(files))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def _clock(when: datetime) -> str:
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
