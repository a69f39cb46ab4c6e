"""A job as a notebook shows it: how it is, who runs it, its loss as a line, what it left, and how to attach to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from hdp.contract.errors import HdpError
from hdp.contract.redact import redact_text
from hdp.estimator.engines.base import Engine, Remote
from hdp.estimator.metrics import log_lines, metrics_of
from hdp.estimator.report.facts import Series, series_of

#: Not by colour alone: the status stands beside it. Okabe and Ito's palette.
_COLOURS = {"Completed": "#009E73", "Failed": "#D55E00", "Stopped": "#777777"}
_RUNNING = "#0072B2"
_WIDTH, _HEIGHT = 240, 36
#: More points than pixels show nothing more.
_MOST_POINTS = 200


def card_of(engine: Engine, name: str) -> str:
    """The job as HTML. Raises JobNotFound."""
    answer = engine.describe(name)
    definitions = answer.get("AlgorithmSpecification", {}).get("MetricDefinitions", ())
    if isinstance(engine, Remote):  # its log may be a thousand calls away; it keeps the last values itself
        return card(name, engine.name, answer)
    try:
        series = series_of(list(metrics_of(log_lines(engine, name), definitions)))
    except HdpError:  # the log is gone, or out of reach: all else is worth showing
        series = ()
    return card(name, engine.name, answer, series)


def card(name: str, engine: str, answer: Mapping[str, Any], series: Sequence[Series] = ()) -> str:
    """The job as HTML. answer: its description. series: what is known of its metrics."""
    rows = {
        "status": _status(answer),
        "hosts": _text(_hosts(answer)),
        "loss": _loss(series),
        "metrics": _text(_figures(answer, series)),
        "model": _code(answer.get("ModelArtifacts", {}).get("S3ModelArtifacts")),
        "output": _code(answer.get("Hdp", {}).get("output_artifacts")),
        "logs": _code(answer.get("Hdp", {}).get("log_dir")),
        "console": _link(answer.get("Hdp", {}).get("console")),
        "take up again": _code(_attach(name, engine)),
    }
    cell = 'style="text-align:left;vertical-align:top;overflow-wrap:anywhere"'
    cells = "".join(f"<tr><th {cell}>{head}</th><td {cell}>{body}</td></tr>" for head, body in rows.items() if body)
    caption = '<caption style="text-align:left;font-weight:bold">'
    return f"<table>{caption}job {escape(name)}</caption><tbody>{cells}</tbody></table>"


def one_line(answer: Mapping[str, Any]) -> str:
    """Status, what exactly, and the first line of the reason, if it failed."""
    reason = answer.get("FailureReason", "").split("\n", 1)[0]
    status, secondary = str(answer["TrainingJobStatus"]), str(answer["SecondaryStatus"])
    return status + (f" ({secondary})" if secondary != status else "") + (f": {reason}" if reason else "")


def _status(answer: Mapping[str, Any]) -> str:
    colour = _COLOURS.get(answer["TrainingJobStatus"], _RUNNING)
    seconds = answer.get("TrainingTimeInSeconds")
    time = "" if seconds is None else f", {seconds:,} s of training"
    return f'<span style="color:{colour}" aria-hidden="true">&#9679;</span> {_text(one_line(answer) + time)}'


def _hosts(answer: Mapping[str, Any]) -> str:
    """``2 x local, 4 ranks: algo-1: 0, 1; algo-2: 2, 3``."""
    resources = answer.get("ResourceConfig", {})
    groups = resources.get("InstanceGroups") or ([resources] if "InstanceCount" in resources else [])
    kinds = ", ".join(f"{group['InstanceCount']} x {group['InstanceType']}" for group in groups)
    ranks: dict[str, list[str]] = {}
    for rank in answer.get("Hdp", {}).get("ranks", ()):
        ranks.setdefault(rank["host"], []).append(str(rank["rank"]))
    places = "; ".join(f"{host}: {', '.join(of_host)}" for host, of_host in ranks.items())
    count = sum(map(len, ranks.values()))
    return kinds + (f", {count} rank{'s' * (count != 1)}: {places}" if count else "")


def _loss(series: Sequence[Series]) -> str:
    found = [one for one in series if "loss" in one.name.lower()]
    if not found:
        return ""
    loss = min(found, key=lambda one: (one.name != "loss", "val" in one.name.lower()))
    words = f"{loss.values[0]:.4g} to {loss.values[-1]:.4g} in {len(loss.values):,} step{'s' * (len(loss.values) != 1)}"
    return f"{_sparkline(loss.values, f'{loss.name}: {words}')} {_text(words)}"


def _sparkline(values: Sequence[float], words: str) -> str:
    """A line, as wide whatever the number of values; of many, every n-th and the last."""
    stride = -(-len(values) // _MOST_POINTS)
    chosen = [*values[::stride], *(values[-1:] if len(values) == 1 or (len(values) - 1) % stride else ())]
    low, high = min(chosen), max(chosen)
    points = " ".join(
        f"{_WIDTH * i / (len(chosen) - 1):.1f},{2 + (_HEIGHT - 4) * (high - value) / ((high - low) or 1):.1f}"
        for i, value in enumerate(chosen)
    )
    return (
        f'<svg role="img" aria-label="{escape(words)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" style="vertical-align:middle;max-width:100%">'
        f'<polyline points="{points}" fill="none" stroke="{_RUNNING}" stroke-width="1.5"/></svg>'
    )


def _figures(answer: Mapping[str, Any], series: Sequence[Series]) -> str:
    """The last value of every other metric: what the engine kept, or what the log says."""
    final = {m["MetricName"]: m["Value"] for m in answer.get("FinalMetricDataList", ())}
    known = final or {one.name: one.values[-1] for one in series if "loss" not in one.name.lower()}
    return ", ".join(f"{name} {value:.4g}" for name, value in known.items() if name not in ("samples", "seconds"))


def _attach(name: str, engine: str) -> str:
    where = "" if engine == "local" else f", engine={engine!r}"
    return f"TrainingJob.attach({name!r}{where})"


def _code(text: str | None) -> str:
    return f"<code>{_text(text)}</code>" if text else ""


def _link(address: str | None) -> str:
    return f'<a href="{escape(address)}">{escape(address)}</a>' if address else ""


def _text(text: str) -> str:
    return escape(redact_text(text))
