"""What the commands show: values to tables and facts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from hdp.contract.channels import ChannelStatistics, from_json
from hdp.contract.units import format_time
from hdp.estimator.cli.text import Block, Cell, Facts, Table
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


def jobs_table(rows: Sequence[Mapping[str, Any]], now: datetime) -> Table:
    """One line a job."""
    return Table(
        ("job", "status", "started", "took"),
        [
            (
                row["TrainingJobName"],
                _styled(row["TrainingJobStatus"]),
                _clock(row["CreationTime"]),
                duration(row.get("TrainingEndTime", now) - row["CreationTime"]),
            )
            for row in rows
        ],
    )


def job_report(answer: Mapping[str, Any]) -> list[Block]:
    """One job: facts, then its hosts, then its ranks."""
    extras = answer.get("Hdp", {})
    parts: list[Block] = [Facts(list(_facts(answer)))]
    if extras.get("hosts"):
        parts.append(_hosts_table(extras["hosts"]))
    if extras.get("channels"):
        parts.append(_channels_table(extras["channels"]))
    if extras.get("ranks"):
        parts.append(_ranks_table(extras["ranks"], extras.get("checkpoints_of_unknown_rank", {})))
    return parts


def cleaned_table(rows: Sequence[Cleaned]) -> Table:
    """One line a job that was looked at."""
    return Table(("job", "freed", ""), [(row.name, size(row.freed_bytes), row.what) for row in rows], prose=True)


def images_table(rows: Sequence[Image], now: datetime) -> Table:
    """One line an image; digests are cut, as Docker shows them."""
    return Table(("image", "kind", "digest", "size", "age", "has"), [_image(row, now) for row in rows])


def _image(row: Image, now: datetime) -> tuple[str, ...]:
    age = now - datetime.fromtimestamp(row.created, tz=now.tzinfo)
    has = ", ".join(f"{name} {version}" for name, version in row.versions.items())
    digest = row.digest.removeprefix("sha256:")[:12]
    return row.name, row.kind, digest, size(row.size_bytes), duration(age), has


def doctor_table(findings: Sequence[Finding]) -> Table:
    """One line a finding; what to do below it."""
    rows = []
    for finding in findings:
        remedy = f"\n-> {finding.remedy}" if finding.remedy else ""
        rows.append((finding.what, _styled(finding.grade), finding.detail + remedy))
    return Table(("what", "", "here"), rows, prose=True)


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


def _facts(answer: Mapping[str, Any]) -> Iterator[tuple[str, str | Cell]]:
    status, secondary = answer["TrainingJobStatus"], answer["SecondaryStatus"]
    yield "job", answer["TrainingJobName"]
    yield "status", Cell(status if secondary == status else f"{status} ({secondary})", _STYLES.get(status, ""))
    if "FailureReason" in answer:
        yield "reason", answer["FailureReason"]
    for step in answer.get("SecondaryStatusTransitions", ()):
        said = (str(step.get("StatusMessage", "")).splitlines() or [""])[0]
        yield "", f"{_clock(step['StartTime'])}  {step['Status']}: {said}"
    extras = answer.get("Hdp", {})
    yield "model", answer.get("ModelArtifacts", {}).get("S3ModelArtifacts", "none")
    yield "output", extras.get("output_artifacts") or "none"
    if "job_dir" in extras:
        yield "folder", extras["job_dir"]
    yield from _elsewhere(answer)
    yield from _links(extras.get("network") or {})
    for metric in answer.get("FinalMetricDataList", ()):
        yield "last " + metric["MetricName"], f"{metric['Value']:.6g}"
    stopped = status in ("Stopping", "Stopped")
    for host, files in extras.get("checkpoints", {}).items() if stopped else ():
        yield f"checkpoints of {host}", " ".join(files) or "none after it was told to stop"
    for line in failures_at_stop(answer) if stopped else ():
        yield "while stopping", line
    for note in extras.get("notes", ()):
        yield "note", note
    for difference in extras.get("environment_differences", ()):
        yield "unlike a cluster", difference


def _elsewhere(answer: Mapping[str, Any]) -> Iterator[tuple[str, str | Cell]]:
    """What a job of SageMaker's has: an address in the console, and a price."""
    if "TrainingJobArn" not in answer:
        return
    from hdp.estimator.cost import cost_of

    yield "cost", str(cost_of(answer, datetime.now(timezone.utc)))
    for key, link in (("console", "console"), ("logs", "log_dir")):
        if link in answer.get("Hdp", {}):
            yield key, answer["Hdp"][link]


def _links(network: Mapping[str, Any]) -> Iterator[tuple[str, str | Cell]]:
    """Each host's link, where hosts have a network of their own."""
    for host, rate in network.get("rates", {}).items():
        counted = network["hosts"].get(host)
        traffic = "what went over it isn't known (yet)"
        if counted is not None:
            sent, received = size(counted["sent_bytes"]), size(counted["received_bytes"])
            traffic = f"sent {sent}, received {received}, {counted['dropped']} packets dropped"
        yield f"link of {host}", f"{rate or 'no set rate'}: {traffic}"


def _hosts_table(hosts: Sequence[Mapping[str, Any]]) -> Table:
    rows = [(h["host"], h["address"], _or_dash(h["agent_pid"]), _or_dash(h["exit_code"]), h["log"]) for h in hosts]
    return Table(("host", "address", "pid", "exit", "log"), rows)


def _channels_table(channels: Sequence[Mapping[str, Any]]) -> Table:
    head = ("channel", "host", "mode", "files", "size", "ready in", "fetched", "requests", "first byte", "waited")
    return Table(head, [_channel(from_json(channel)) for channel in channels])


def _channel(channel: ChannelStatistics) -> tuple[str, ...]:
    first, waited = channel.first_byte_seconds, channel.waited_seconds
    return (
        channel.channel,
        channel.host,
        channel.mode,
        str(channel.files),
        size(channel.size_bytes),
        format_time(channel.seconds),
        size(channel.fetched_bytes),
        str(channel.requests),
        "-" if first is None else format_time(first),
        "-" if waited is None else format_time(waited),
    )


def _ranks_table(ranks: Sequence[Mapping[str, Any]], of_unknown_rank: Mapping[str, Sequence[str]]) -> Table:
    rows = [_rank(rank) for rank in ranks]
    unknown = [("unknown rank", host, "", "", " ".join(files)) for host, files in of_unknown_rank.items() if files]
    return Table(("rank", "host", "exit", "after stop", "checkpoints"), [*rows, *unknown])


def _rank(rank: Mapping[str, Any]) -> tuple[str, ...]:
    late = rank["seconds_after_stop"]
    after = "-" if late is None else f"{late:.1f} s" + (" (killed)" if rank["killed_at_deadline"] else "")
    how = rank["signal"] or _or_dash(rank["exit_code"])
    return _or_dash(rank["rank"]), rank["host"], how, after, " ".join(rank["checkpoints"]) or "-"


def _styled(word: str) -> Cell:
    return Cell(word, _STYLES.get(word, ""))


def _clock(when: datetime) -> str:
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
