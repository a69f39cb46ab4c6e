"""`compare`: runs the variants' jobs one after another, and gathers what they said.

Order: in each repeat all of them, begun one further on than in the repeat before. So whatever changes slowly on the
machine meets all of them alike, and none always follows the same other one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import ComparisonFailed, HdpError
from hdp.estimator.comparison.figures import counted
from hdp.estimator.comparison.machine import machine, versions
from hdp.estimator.comparison.model import Run, Setting
from hdp.estimator.comparison.report import Comparison
from hdp.estimator.comparison.steps import Steps, steps_of
from hdp.estimator.comparison.table import digits
from hdp.estimator.comparison.variants import Entry, entries_of, plain
from hdp.estimator.faults import seen
from hdp.estimator.job import TrainingJob, completed
from hdp.estimator.logs import to_stdout
from hdp.estimator.metrics import log_lines

if TYPE_CHECKING:
    from hdp.estimator.estimator import Estimator


class ComparisonInterrupted(KeyboardInterrupt):
    """Ctrl-C while jobs were compared. ``comparison`` has what was run until then."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        super().__init__("what was run until then: .comparison of this exception")


def compare(
    estimator: Estimator,
    variants: Mapping[str, Mapping[str, Any]],
    inputs: object = None,
    repeats: int = 3,
    *,
    baselines: bool | Mapping[str, Mapping[str, Any]] = True,
    warmup: int | None = None,
    keep_going: bool = False,
    price_per_hour: float | None = None,
    loss_tolerance: float = 0.01,
    quiet: bool = False,
) -> Comparison:
    """Run the same job several ways, one after another, and compare them. ``print`` the result.

    ::

        compare(estimator, {"hdp": {"hdp": {"enabled": True}}, "horovod": {"horovod": {"enabled": True}}}, inputs)

    The script says when a step ends: ``hdp.metrics.log(step=..., loss=..., samples=...)``.

    variants: a distribution by label; or, by label, what else differs from the estimator: any of distribution,
    hyperparameters, environment, engine_options (these three are put on top of the estimator's), instance_count,
    instance_groups, entry_point, source_dir, dependencies.
    inputs: as `Estimator.fit` takes them.
    repeats: jobs of each variant. A difference is only ever named with two or more.
    baselines: also run one process alone (for the scaling efficiency) and, for each number of hosts and ranks, as many
    processes that don't communicate (for the time of communication that compute doesn't hide). A dictionary says what
    they change, by "one process" and "apart": where a script shares one batch among its ranks, give the processes
    apart a rank's part of it, ``{"apart": {"hyperparameters": {"batch-size": 16}}}``, or their time is an estimate.
    warmup: steps at the begin of each job that don't count; None: a fifth, at most 10.
    keep_going: a job that fails is noted, and the others go on.
    price_per_hour: of one host, for the cost of a job.
    loss_tolerance: how far final losses may be apart, relative to the largest, and still agree.
    quiet: no line a job on standard output.

    Raises SpecError with every fault of all variants, and then no job was started. Raises ComparisonFailed where a job
    fails, and ComparisonInterrupted (a KeyboardInterrupt) on Ctrl-C, which stops the job that runs; what was run until
    then is its `comparison`.
    """
    faults = _faults(repeats, warmup, price_per_hour, loss_tolerance)
    entries = entries_of(estimator, variants, inputs, baselines, faults)
    say = _nowhere if quiet else to_stdout
    labels = [entry.variant.label for entry in entries]
    total = repeats * len(entries)
    say(f"{total} jobs one after another on the {entries[0].engine} engine: {', '.join(labels)}; {repeats} of each")
    setting = _setting(estimator, entries)
    runs: list[Run] = []

    def so_far() -> Comparison:
        of_all = tuple(entry.variant for entry in entries)
        return Comparison(setting, of_all, tuple(runs), repeats, warmup, price_per_hour, loss_tolerance)

    for number, (repeat, entry) in enumerate(in_order(entries, repeats), 1):
        try:
            runs.append(_run(entry, repeat, inputs, warmup))
        except KeyboardInterrupt as exc:
            raise ComparisonInterrupted(so_far()) from exc
        except HdpError as exc:
            job = entry.estimator.latest_training_job
            runs.append(Run(entry.variant.label, repeat, job.name if job else "", failure=str(exc)))
            if not keep_going:
                raise ComparisonFailed(entry.variant.label, repeat, str(exc), so_far()) from exc
        say(f"{number} of {total}: {_told(runs[-1], repeats, warmup)}")
    return so_far()


def in_order(entries: Sequence[Entry], repeats: int) -> Iterator[tuple[int, Entry]]:
    """Number of the repeat, from 1, and what to run: see the top of this file."""
    for repeat in range(repeats):
        begin = repeat % len(entries)
        for entry in [*entries[begin:], *entries[:begin]]:
            yield repeat + 1, entry


def _run(entry: Entry, repeat: int, inputs: object, warmup: int | None) -> Run:
    """Run one job to its end. Raises HdpError: it failed, or it said nothing to compare by."""
    job = entry.estimator.fit(inputs, wait=False, logs=None)
    try:
        answer = completed(job)
    except KeyboardInterrupt:
        job.stop()
        raise
    definitions = answer.get("AlgorithmSpecification", {}).get("MetricDefinitions", ())
    run = Run(
        label=entry.variant.label,
        repeat=repeat,
        job=job.name,
        steps=steps_of(log_lines(job.engine, job.name), definitions, entry.without_ranks),
        sent_bytes=_sent(answer),
        training_seconds=_training_seconds(answer),
    )
    if not counted(run, warmup):
        raise HdpError(_no_steps(job, run.steps, warmup))
    return run


def _no_steps(job: TrainingJob, steps: Steps, warmup: int | None) -> str:
    if steps.seconds:
        said = f"job {job.name} said the times of {len(steps.seconds)} steps, and warmup={warmup} leaves none of them"
        return f"{said}; train more steps, or give a smaller warmup"
    return (
        f"job {job.name} said no time of a step: its script calls hdp.metrics.log(step=...) at the end of each step, "
        "at least twice, or prints seconds that a metric definition named 'seconds' finds"
    )


def _sent(answer: Mapping[str, Any]) -> int | None:
    """What the host that sent most sent, where the engine counts."""
    hosts = ((answer.get("Hdp") or {}).get("network") or {}).get("hosts") or {}
    counts = [host["sent_bytes"] for host in hosts.values() if host.get("sent_bytes") is not None]
    return max(counts, default=None)


def _training_seconds(answer: Mapping[str, Any]) -> float | None:
    start, end = answer.get("TrainingStartTime"), answer.get("TrainingEndTime")
    return (end - start).total_seconds() if start and end else None


def _told(run: Run, repeats: int, warmup: int | None) -> str:
    """One line about a job that has ended."""
    head = f"{run.label}, repeat {run.repeat} of {repeats}"
    if run.failure is not None:
        return f"{head}: FAILED: {run.failure.splitlines()[0]}"
    times = sorted(counted(run, warmup))
    return f"{head}: {digits(1e3 * times[len(times) // 2])} ms a step ({len(run.steps.seconds)} steps, job {run.job})"


def _setting(estimator: Estimator, entries: Sequence[Entry]) -> Setting:
    s = estimator.settings
    options = s.engine_options or {}
    found = versions(str(options.get("python") or sys.executable))
    for entry in entries:  # a variant may have an interpreter of its own, for the library that it uses
        own = (entry.estimator.settings.engine_options or {}).get("python")
        found = {**versions(str(own)), **found} if own and own != options.get("python") else found
    groups = ", ".join(sorted({g.instance_type for g in s.groups}))
    return Setting(
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        script=PurePath(s.entry_point).name if s.entry_point else s.image_uri or "",
        engine=entries[0].engine,
        instance_type=groups,
        network=plain(options.get("network")),
        machine=machine(),
        versions=found,
    )


def _faults(repeats: object, warmup: object, price: object, tolerance: object) -> list[str]:
    faults = []
    if not _whole(repeats) or int(str(repeats)) < 1:
        faults.append(f"repeats is {seen(repeats)}; expected a whole number, 1 or more")
    if warmup is not None and (not _whole(warmup) or int(str(warmup)) < 0):
        faults.append(f"warmup is {seen(warmup)}; expected a whole number of steps, 0 or more")
    for name, value in {"price_per_hour": price, "loss_tolerance": tolerance}.items():
        if value is not None and not _amount(value):
            faults.append(f"{name} is {seen(value)}; expected a number, 0 or more")
    return faults


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _amount(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _nowhere(text: str) -> None:
    """For whoever wants to see nothing."""
