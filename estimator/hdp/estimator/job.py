"""The handle on a job, running or ended, in this process's hands or not.

It holds an engine and a name and nothing else: everything it says is asked of the engine, so that any number of
handles in any number of processes agree.
"""

from __future__ import annotations

import html
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import JobNotFound, SpecError, TrainingJobFailed, TrainingJobStopped
from hdp.estimator import logs as log_view
from hdp.estimator import metrics as metric_view
from hdp.estimator.engines.base import TERMINAL, Engine, LogLine, Status
from hdp.estimator.progress import Progress

if TYPE_CHECKING:
    from hdp.estimator.report.facts import JobReport

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 1.0


class TrainingJob:
    """A training job of an engine."""

    def __init__(self, engine: Engine, name: str) -> None:
        """engine: where the job is. name: TrainingJobName. Nothing is asked or checked here."""
        self.engine = engine
        self.name = name

    @classmethod
    def attach(cls, name: str, engine: str = "local") -> TrainingJob:
        """The handle on a job that was started earlier or elsewhere. Doesn't wait for it.

        engine: its name. Raises JobNotFound with the names that come near.
        """
        from hdp.estimator.engines.registry import get_engine

        job = cls(get_engine(engine), name)
        job.describe()
        return job

    def describe(self) -> dict[str, Any]:
        """The job in DescribeTrainingJob's shape; what SageMaker has no place for is under ``Hdp``."""
        return self.engine.describe(self.name)

    @property
    def status(self) -> Status:
        """InProgress, Stopping, Completed, Failed or Stopped."""
        answer: Status = self.describe()["TrainingJobStatus"]
        return answer

    @property
    def model_data(self) -> str | None:
        """URI of model.tar.gz; None where the job has left none (yet)."""
        uri: str | None = self.describe().get("ModelArtifacts", {}).get("S3ModelArtifacts")
        return uri

    @property
    def output_data(self) -> str | None:
        """URI of output.tar.gz; None where the job wrote nothing to output/data (yet)."""
        uri: str | None = self.describe().get("Hdp", {}).get("output_artifacts")
        return uri

    def wait(self, logs: str | bool | None = "All") -> None:
        """Return when the job has completed.

        logs: "All" shows its log and what happens to it meanwhile; None or "None" shows nothing.
        Raises TrainingJobFailed, TrainingJobStopped. Ctrl-C ends the waiting, not the job.
        """
        follower = _Follower(self, log_view.to_stdout if _shown(logs) else _nowhere)
        with self._kept_running():
            answer = follower.to_the_end()
        _raise_unless_completed(self.name, answer)

    def logs(self, follow: bool = False, host: str | None = None, rank: int | None = None) -> None:
        """Show the job's log so far; with `follow`, go on until the job has ended.

        host, rank: show only these lines. A failed job is no error here.
        """
        follower = _Follower(self, log_view.to_stdout, log_view.Filter(host, rank), transitions=False)
        if not follow:
            follower.drain()
            return
        with self._kept_running():
            follower.to_the_end()

    def metrics(self) -> Any:
        """What the job has said so far in numbers, as a pandas DataFrame with one row a value.

        From `hdp.metrics.log` in the script and from the estimator's `metric_definitions`. Columns: timestamp (Unix
        seconds), metric_name and value, as in SageMaker's TrainingJobAnalytics; then host, rank and step, missing
        where nobody knows. Raises HdpError: there is no pandas.
        """
        return metric_view.as_frame(self.metric_values())

    def metric_values(self) -> tuple[metric_view.Metric, ...]:
        """What `metrics` shows, without pandas."""
        definitions = self.describe().get("AlgorithmSpecification", {}).get("MetricDefinitions", ())
        return tuple(metric_view.metrics_of(metric_view.log_lines(self.engine, self.name), definitions))

    def report(self) -> JobReport:
        """All that is known of the job, for one page: ``job.report().save("job.html")``. A notebook shows it.

        Curves from its metrics; with HDP_TIMELINE=1 and HDP_TOPOLOGY=1 in its environment also where the time of a step
        goes, which rank is late, and the speed of links.
        """
        from hdp.estimator.report.facts import gather

        return gather(self.engine, self.name)

    def stop(self, wait: bool = False) -> None:
        """Ask the job to stop: every rank gets SIGTERM and its deadline. An ended job is left as it is.

        wait: return only when it has ended.
        """
        self.engine.stop(self.name)
        if wait:
            _Follower(self, _nowhere).to_the_end()

    @contextmanager
    def _kept_running(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            log_view.to_stdout(
                f"\njob {self.name} goes on without you. Follow it: hdp logs -f {self.name}   "
                f"Stop it: hdp stop {self.name}   In Python: TrainingJob.attach({self.name!r})"
            )
            raise

    def __repr__(self) -> str:
        return f"TrainingJob({self.name!r}, engine={self.engine.name!r})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else f"{self!r}: {_one_line(self.describe())}")

    def _repr_html_(self) -> str:
        answer = self.describe()
        rows = {
            "status": _one_line(answer),
            "model": answer.get("ModelArtifacts", {}).get("S3ModelArtifacts", ""),
            "logs": answer.get("Hdp", {}).get("log_dir", ""),
        }
        cells = "".join(f"<tr><th>{k}</th><td>{html.escape(v)}</td></tr>" for k, v in rows.items() if v)
        return f"<table><caption>job {html.escape(self.name)}</caption>{cells}</table>"


def completed(job: TrainingJob) -> dict[str, Any]:
    """The description of `job`, once it has completed. As `TrainingJob.wait`, but Ctrl-C is the caller's."""
    answer = _Follower(job, _nowhere).to_the_end()
    _raise_unless_completed(job.name, answer)
    return answer


@dataclass
class _Follower:
    """Reads one job's log on from where it was, and notes what happens to the job."""

    job: TrainingJob
    sink: log_view.Sink
    wanted: log_view.Filter = field(default_factory=log_view.Filter)
    transitions: bool = True
    _cursor: Mapping[str, int] = field(default_factory=dict)
    _transitions_seen: int = 0
    _waiting: list[Mapping[str, Any]] = field(default_factory=list)
    _progress: Progress = field(default_factory=Progress)

    def to_the_end(self) -> dict[str, Any]:
        """Show everything until the job has ended. Returns its last description."""
        pause, seen = _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                answer = self.job.describe()
                seen = True
                news = self._show_news(answer)
            except JobNotFound as exc:
                raise self._removed() if seen else exc from exc
            if answer["TrainingJobStatus"] in TERMINAL:
                return answer
            self._show(self._progress.due(time.time()))
            pause = _FIRST_PAUSE_SECONDS if news else min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
            time.sleep(pause)

    def drain(self) -> None:
        """Show what there is, page by page."""
        while self._show_page():
            pass
        self._show(self._progress.flush())

    def _removed(self) -> JobNotFound:
        name = self.job.name
        return JobNotFound(
            f"job {name} was removed while it was followed (hdp clean {name} --all?); its log is gone too"
        )

    def _show_news(self, answer: Mapping[str, Any]) -> int:
        """Show what is new in the log and what happened to the job, by time. Returns how many lines that were.

        What happened is known before the log is read. So every line from before it is in the pages that follow, and
        it is shown where a line is later, or where there are no more lines. Whoever sees the end sees a whole log.
        """
        self._note_transitions(answer)
        ended, shown = answer["TrainingJobStatus"] in TERMINAL, len(self._waiting)
        while lines := self._show_page():
            shown += lines
            if not (self._waiting or ended):
                return shown
        self._show_transitions()
        return shown

    def _show_page(self) -> int:
        """Show one page. Returns how many lines it had, wanted or not."""
        if self.sink is _nowhere:
            return 0
        page = self.job.engine.logs(self.job.name, self._cursor)
        self._cursor = page.cursor
        for line in page.lines:
            self._show_transitions(until=line.time)
            if self.wanted(line):
                self._show(self._progress.lines_for(line))
        return len(page.lines)

    def _show(self, lines: Iterable[LogLine]) -> None:
        log_view.show(lines, self.sink, colour=log_view.has_colour(sys.stdout))

    def _note_transitions(self, answer: Mapping[str, Any]) -> None:
        steps = answer.get("SecondaryStatusTransitions", []) if self.transitions else []
        self._waiting += steps[self._transitions_seen :]
        self._transitions_seen = len(steps)

    def _show_transitions(self, until: float = math.inf) -> None:
        """Show those that wait and happened before `until`, Unix seconds."""
        while self._waiting and self._waiting[0]["StartTime"].timestamp() <= until:
            self._show(self._progress.flush())
            step = self._waiting.pop(0)
            at = step["StartTime"].astimezone().strftime("%H:%M:%S")
            # A failure's traceback comes with the exception; here its first line is enough.
            self.sink(f"{at} {step['Status']} - {step['StatusMessage'].splitlines()[0]}")


def _nowhere(text: str) -> None:
    """Sink for what nobody wants to see."""


def _shown(logs: str | bool | None) -> bool:
    if isinstance(logs, (str, bool, type(None))) and logs in log_view.LOGS_SHOWN:
        return log_view.LOGS_SHOWN[logs]
    raise SpecError([f'logs={logs!r} is unknown; expected "All", or None to show nothing'], "wait()")


def _raise_unless_completed(name: str, answer: Mapping[str, Any]) -> None:
    """Turn the end of a job into an exception, unless it is the good one."""
    status = answer["TrainingJobStatus"]
    logs = [f"its logs: {answer['Hdp']['log_dir']}"] if "Hdp" in answer else []
    if status == "Failed":
        hint = "\n".join([*logs, f"next: hdp logs {name}"])
        raise TrainingJobFailed(name, answer.get("FailureReason", "no reason was recorded"), hint)
    if status == "Stopped":
        hint = "\n".join([_checkpoints(answer), *failures_at_stop(answer), *logs, f"next: hdp describe {name}"])
        raise TrainingJobStopped(name, answer["SecondaryStatusTransitions"][-1]["StatusMessage"], hint)


def failures_at_stop(answer: Mapping[str, Any]) -> list[str]:
    """A line for each rank of a stopped job that failed while it stopped, e.g. in its SIGTERM handler.

    Ranks that failed only because another one was gone are left out.
    """
    failures = [f for f in answer.get("Hdp", {}).get("failures", ()) if not f["collateral"]]
    return [f"{_who(failure)} failed: {_what(failure)}" for failure in failures]


def _who(failure: Mapping[str, Any]) -> str:
    return f"host {failure['host']}" if failure["rank"] is None else f"rank {failure['rank']} on {failure['host']}"


def _what(failure: Mapping[str, Any]) -> str:
    return str(failure["exception"] or failure["signal"] or f"exit code {failure['exit_code']}")


def _checkpoints(answer: Mapping[str, Any]) -> str:
    extras = answer.get("Hdp", {})
    by_host = {host: files for host, files in extras.get("checkpoints", {}).items() if files}
    if not by_host:
        return "no checkpoint was written after it was told to stop"
    unknown = extras.get("checkpoints_of_unknown_rank", {})
    shown = {
        host: " ".join(f"{file} (unknown rank)" if file in unknown.get(host, ()) else file for file in files)
        for host, files in by_host.items()
    }
    return "checkpoints: " + ", ".join(f"{host}: {files}" for host, files in shown.items())


def _one_line(answer: Mapping[str, Any]) -> str:
    reason = answer.get("FailureReason", "").split("\n", 1)[0]
    status, secondary = str(answer["TrainingJobStatus"]), str(answer["SecondaryStatus"])
    return status + (f" ({secondary})" if secondary != status else "") + (f": {reason}" if reason else "")
