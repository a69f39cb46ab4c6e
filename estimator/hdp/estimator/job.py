"""The handle on a job, running or ended, in this process's hands or not.

It holds an engine and a name and nothing else: everything it says is asked of the engine, so that any number of
handles in any number of processes agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from hdp.contract.channels import ChannelStatistics
from hdp.contract.channels import from_json as channels_from_json
from hdp.contract.errors import SpecError
from hdp.estimator import card
from hdp.estimator import logs as log_view
from hdp.estimator import metrics as metric_view
from hdp.estimator.ending import raise_unless_completed
from hdp.estimator.engines.base import Engine, Remote, Status
from hdp.estimator.following import Follower, nowhere

if TYPE_CHECKING:
    from hdp.estimator.cost import Cost
    from hdp.estimator.report.facts import JobReport


class TrainingJob:
    """A training job of an engine."""

    def __init__(self, engine: Engine, name: str) -> None:
        """engine: where the job is. name: TrainingJobName. Nothing is asked or checked here."""
        self.engine = engine
        self.name = name

    @classmethod
    def attach(cls, name: str, engine: str | Engine = "local", boto_session: Any = None) -> TrainingJob:
        """The handle on a job that was started earlier or elsewhere, by whatever client. Doesn't wait for it.

        engine: its name, or an engine. boto_session: whose account and region, for "sagemaker".
        Raises JobNotFound with the names that come near.
        """
        from hdp.estimator.engines.registry import get_engine

        arguments = {} if boto_session is None else {"boto_session": boto_session}
        job = cls(get_engine(engine, **arguments) if isinstance(engine, str) else engine, name)
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

    def wait(self, logs: str | bool | None = "All", resume: bool = False) -> None:
        """Return when the job has completed.

        logs: "All" shows its log and what happens to it meanwhile; None or "None" shows nothing.
        resume: don't show what was shown before, in this process or another (of jobs elsewhere).
        Raises TrainingJobFailed, TrainingJobStopped. Ctrl-C ends the waiting, not the job.
        """
        follower = Follower(self, log_view.to_stdout if _shown(logs) else nowhere, resume=resume, with_bar=_shown(logs))
        with self._kept_running():
            answer = follower.to_the_end()
        raise_unless_completed(self, answer)

    def logs(
        self, follow: bool = False, host: str | None = None, rank: int | None = None, resume: bool = False
    ) -> None:
        """Show the job's log so far; with `follow`, go on until the job has ended.

        host, rank: show only these lines. resume: as in `wait`. A failed job is no error here.
        """
        wanted = log_view.Filter(host, rank)
        follower = Follower(self, log_view.to_stdout, wanted, transitions=False, resume=resume, with_bar=follow)
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

    def cost(self, prices: Mapping[str, float] | None = None) -> Cost:
        """What the job has cost so far: billable seconds, spot savings, and dollars where list prices are known.

        prices: dollars an hour by instance type, instead of the package's table.
        """
        from hdp.estimator.cost import cost_of

        return cost_of(self.describe(), datetime.now(timezone.utc), prices)

    def channel_statistics(self) -> tuple[ChannelStatistics, ...]:
        """What each channel did on each host: bytes, requests, first byte, what was waited for. A row a host.

        There once the job has ended, of the engines whose hosts provide their channels themselves (local, docker). On
        SageMaker the service does it, and says nothing: then it is empty. Raises JobNotFound.
        """
        return tuple(map(channels_from_json, self.describe().get("Hdp", {}).get("channels", ())))

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
            Follower(self, nowhere).to_the_end()

    @contextmanager
    def _kept_running(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            log_view.to_stdout(_ways_back(self))
            raise

    def __repr__(self) -> str:
        return f"TrainingJob({self.name!r}, engine={self.engine.name!r})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self) if cycle else f"{self!r}: {card.one_line(self.describe())}")

    def _repr_html_(self) -> str:
        return card.card_of(self.engine, self.name)


def completed(job: TrainingJob) -> dict[str, Any]:
    """The description of `job`, once it has completed. As `TrainingJob.wait`, but Ctrl-C is the caller's."""
    answer = Follower(job, nowhere).to_the_end()
    raise_unless_completed(job, answer)
    return answer


def _shown(logs: str | bool | None) -> bool:
    if isinstance(logs, (str, bool, type(None))) and logs in log_view.LOGS_SHOWN:
        return log_view.LOGS_SHOWN[logs]
    raise SpecError([f'logs={logs!r} is unknown; expected "All", or None to show nothing'], "wait()")


def _ways_back(job: TrainingJob) -> str:
    """What to say to somebody who no longer waits."""
    name = job.name
    if not isinstance(job.engine, Remote):
        return (
            f"\njob {name} goes on without you. Follow it: hdp logs -f {name}   "
            f"Stop it: hdp stop {name}   In Python: TrainingJob.attach({name!r})"
        )
    option = f"--engine {job.engine.name}"
    return (
        f"\njob {name} goes on without you, and costs money. Follow it: hdp logs -f {name} --resume {option}   "
        f"Stop it: hdp stop {name} {option}   In Python: TrainingJob.attach({name!r}, engine={job.engine.name!r})"
    )
