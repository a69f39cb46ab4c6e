"""A `JobReport` as HTML: one page that needs nothing else, and the same as a part of a notebook."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from hdp.contract.channels import ChannelStatistics, from_json
from hdp.contract.redact import redact, redact_text
from hdp.contract.units import format_time
from hdp.estimator.report import breakdown, figures, network
from hdp.estimator.report.breakdown import Step
from hdp.estimator.report.facts import JobReport

#: Okabe and Ito's palette, which the colour-blind can tell apart; on dark ground its lighter ones.
_STYLE = """
.hdp { --c0: #0072b2; --c1: #56b4e9; --c2: #d55e00; --c3: #b8860b; --grid: #e2e2e2; --soft: #f4f6f8; --line: #c9d0d6;
  color: #1c2024; background: #ffffff; font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto;
  padding: 1rem 1.25rem; }
@media (prefers-color-scheme: dark) { .hdp { --c0: #56b4e9; --c1: #2a7fb0; --c2: #f0824a; --c3: #f0c14b;
  --grid: #33383d; --soft: #1d2226; --line: #444c54; color: #e6e8ea; background: #121518; } }
.hdp h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
.hdp h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.hdp table { border-collapse: collapse; width: 100%; font-size: .92em; }
.hdp th, .hdp td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; color: inherit; background: none; }
.hdp th { font-weight: 600; white-space: nowrap; }
.hdp .tight th { white-space: normal; overflow-wrap: normal; } .hdp .tight td:not(:last-child) { white-space: nowrap; }
.hdp pre { background: var(--soft); padding: .75rem; overflow-x: auto; font-size: .85em; white-space: pre-wrap;
  overflow-wrap: anywhere; color: inherit; }
.hdp svg { display: block; width: 100%; height: auto; }
.hdp .plot { overflow-x: auto; } .hdp .plot svg { min-width: 36rem; }
.hdp .note { opacity: .75; font-size: .92em; }
.hdp .net text { fill: currentColor; font-size: 13px; } .hdp .net .mid { text-anchor: middle; }
.hdp .net .strong { font-weight: 600; } .hdp .net .small { font-size: 11px; }
.hdp .net .host, .hdp .net .bus { fill: var(--soft); stroke: var(--line); }
.hdp .net .link { stroke: var(--c0); stroke-width: 2; } .hdp .net .rank { fill: var(--c0); }
.hdp .net text.inside { fill: #fff; font-size: 11px; }
@media (prefers-color-scheme: dark) { .hdp .net text.inside { fill: #121518; } }
"""


def page(report: JobReport) -> str:
    """The whole page. Raises HdpError: there is no matplotlib."""
    title = escape(f"job {report.name}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    around = (
        "body { margin: 0; background: #fff; } @media (prefers-color-scheme: dark) { body { background: #121518; } }"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{around}</style></head>'
        f"<body>{fragment(report)}</body></html>\n"
    )


def fragment(report: JobReport) -> str:
    """What is in the page, with its styles."""
    sections = (
        _summary(report),
        _failure(report),
        _section("Metrics", figures.metrics(report)),
        _steps(report),
        _skew(report),
        _section("Hosts, ranks and links", _network(report)),
        _section("Ranks", _ranks(report.answer)),
        _section("Channels", _channels(report)),
        _section("What isn't here", _list(report.gaps)),
    )
    return f'<style>{_STYLE}</style><div class="hdp">{"".join(sections)}</div>'


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>{body}" if body else ""


def _summary(report: JobReport) -> str:
    answer = report.answer
    ended, started = answer.get("TrainingEndTime"), answer.get("TrainingStartTime")
    resources = answer.get("ResourceConfig", {})
    hosts = resources.get("InstanceCount") or sum(g["InstanceCount"] for g in resources.get("InstanceGroups", ()))
    kinds = resources.get("InstanceType") or ", ".join(g["InstanceType"] for g in resources.get("InstanceGroups", ()))
    ranks = len(answer.get("Hdp", {}).get("ranks", ()))
    rows = {
        "status": _status(answer["TrainingJobStatus"], answer["SecondaryStatus"]),
        "created": _time(answer.get("CreationTime")),
        "training": f"{_time(started)} to {_time(ended)}" if started and ended else _time(started),
        "training seconds": answer.get("TrainingTimeInSeconds"),
        "billable seconds": answer.get("BillableTimeInSeconds"),
        "hosts": f"{hosts} x {kinds}" + (f", {ranks} ranks" if ranks else ""),
        "distribution": _distribution(answer.get("HyperParameters", {})),
        "final metrics": ", ".join(
            f"{m['MetricName']} {m['Value']:.6g}" for m in answer.get("FinalMetricDataList", ())
        ),
        "model": answer.get("ModelArtifacts", {}).get("S3ModelArtifacts"),
        "output": answer.get("Hdp", {}).get("output_artifacts"),
        "logs": answer.get("Hdp", {}).get("log_dir"),
    }
    return f"<h1>{escape(report.name)}</h1>{_table((), [(k, str(v)) for k, v in rows.items() if v])}"


def _status(status: str, secondary: str) -> str:
    return status if secondary == status else f"{status} ({secondary})"


def _distribution(hyperparameters: Mapping[str, str]) -> str:
    marks = ("sagemaker_", "_enabled")
    on = [k for k, v in hyperparameters.items() if k.startswith(marks[0]) and k.endswith(marks[1]) and v == "true"]
    return ", ".join(name.removeprefix(marks[0]).removesuffix(marks[1]) for name in sorted(on))


def _time(value: Any) -> str:
    return value.astimezone().strftime("%Y-%m-%d %H:%M:%S") if isinstance(value, datetime) else ""


def _failure(report: JobReport) -> str:
    if report.answer["TrainingJobStatus"] != "Failed":
        return ""
    tail = "\n".join(f"{line.host}{'' if line.rank is None else f':{line.rank}'} | {line.text}" for line in report.tail)
    reason = escape(redact_text(report.answer.get("FailureReason", "no reason was recorded")))
    return f"<h2>First cause</h2><pre>{reason}</pre><h2>The log's end</h2><pre>{escape(redact_text(tail))}</pre>"


def _steps(report: JobReport) -> str:
    if not report.steps:
        return ""
    middle = {
        name: statistics.median(getattr(step, name) for step in report.steps)
        for name in ("seconds", "compute", "hidden", "exposed", "input")
    }
    words = (
        "Under TensorFlow operations run beside the program, so nothing says which of their time was exposed."
        if report.asynchronous
        else "Exposed: the program did nothing but wait for it. Hidden: under way while the program computed."
    )
    rows = [
        ("step", middle["seconds"]),
        ("compute", middle["compute"]),
        ("of it, with communication behind it", middle["hidden"]),
        ("exposed communication", middle["exposed"]),
        ("waiting for input" + ("" if _says_input(report.steps) else " (the script doesn't say input_seconds)"),
         middle["input"]),
    ]  # fmt: skip
    table = _table(("median of a step", "ms"), [(name, f"{1e3 * seconds:,.2f}") for name, seconds in rows])
    return _section("Where a step's time goes", f'{figures.breakdown(report.steps)}<p class="note">{words}</p>{table}')


def _says_input(steps: Iterable[Step]) -> bool:
    return any(step.input for step in steps)


def _skew(report: JobReport) -> str:
    if not report.lateness:
        return ""
    slow = breakdown.slowest(report.lateness)
    words = (
        f"The others wait for rank {slow.rank}: it comes {1e3 * slow.median_seconds:,.1f} ms after the first, in the "
        f"middle, and last to {slow.last_share:.0%} of the operations."
        if slow
        else "No rank stands out."
    )
    return _section("Skew of the ranks", f"<p>{words}</p>{figures.lateness(report.lateness)}")


def _network(report: JobReport) -> str:
    boxes = network.boxes_of(report.answer, report.topology)
    latency = (report.topology or {}).get("summary", {}).get("latency_seconds")
    return network.picture(boxes, latency) + _traffic(report.answer) if boxes else ""


def _traffic(answer: Mapping[str, Any]) -> str:
    links = answer.get("Hdp", {}).get("network") or {}
    rows = [
        (host, str(links.get("rates", {}).get(host, "")), f"{n['sent_bytes'] / 1e6:,.1f}",
         f"{n['received_bytes'] / 1e6:,.1f}")
        for host, n in links.get("hosts", {}).items()
    ]  # fmt: skip
    return _table(("emulated link of", "rate", "sent, MB", "received, MB"), rows, "tight") if rows else ""


def _ranks(answer: Mapping[str, Any]) -> str:
    rows = [
        (str(r["rank"]), r["host"], str(r["signal"] or ("" if r["exit_code"] is None else r["exit_code"])),
         ", ".join(r["checkpoints"]))
        for r in answer.get("Hdp", {}).get("ranks", ())
    ]  # fmt: skip
    return _table(("rank", "host", "exit code or signal", "checkpoints"), rows, "tight") if rows else ""


def _channels(report: JobReport) -> str:
    asked = [
        (c["ChannelName"], c.get("InputMode") or report.answer["AlgorithmSpecification"].get("TrainingInputMode", ""),
         redact(c["DataSource"]).get("S3DataSource", {}).get("S3Uri", ""))
        for c in report.answer.get("InputDataConfig", ())
    ]  # fmt: skip
    said = "\n".join(f"{host} | {text}" for host, text in report.channels)
    table = _table(("channel", "mode", "from"), asked, "tight") if asked else ""
    counted = [_counted(from_json(c)) for c in report.answer.get("Hdp", {}).get("channels", ())]
    table += _table(_COUNTED, counted) if counted else ""
    return table + (f"<pre>{escape(redact_text(said))}</pre>" if said else "")


_COUNTED = ("channel", "host", "as", "files", "MB", "ready in", "fetched, MB", "requests", "retries", "read, MB",
            "first byte", "waited")  # fmt: skip


def _counted(channel: ChannelStatistics) -> tuple[str, ...]:
    first, waited, read = channel.first_byte_seconds, channel.waited_seconds, channel.read_bytes
    return (
        channel.channel,
        channel.host,
        channel.mode,
        f"{channel.files:,}",
        f"{channel.size_bytes / 1e6:,.1f}",
        format_time(channel.seconds),
        f"{channel.fetched_bytes / 1e6:,.1f}",
        f"{channel.requests:,}",
        f"{channel.retries:,}",
        "" if read is None else f"{read / 1e6:,.1f}",
        "" if first is None else format_time(first),
        "" if waited is None else format_time(waited),
    )


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(redact_text(line))}</li>" for line in lines)
    return f'<ul class="note">{items}</ul>' if items else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """kind: "tight" where only the last column is of any length; the others are never broken."""
    head = f"<tr>{''.join(f'<th>{escape(h)}</th>' for h in heads)}</tr>" if heads else ""
    first = "td" if heads else "th"
    body = "".join(
        f"<tr><{first}>{escape(redact_text(row[0]))}</{first}>"
        f"{''.join(f'<td>{escape(redact_text(cell))}</td>' for cell in row[1:])}</tr>"
        for row in rows
    )
    return f'<table class="{kind}">{head}{body}</table>' if kind else f"<table>{head}{body}</table>"
