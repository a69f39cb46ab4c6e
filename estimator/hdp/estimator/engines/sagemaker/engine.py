"""The SageMaker engine's face: what a client calls."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hdp.contract.errors import EngineError, JobNotFound, SpecError
from hdp.contract.files import JOB_NAME
from hdp.estimator.engines.base import TERMINAL, Capabilities, Findings, JobRequest, LogPage, Pace
from hdp.estimator.engines.sagemaker import buckets, console, resolve, submit, uploads
from hdp.estimator.engines.sagemaker.asking import BRIEF, LONG, Patience, Refused, Unanswered, ask
from hdp.estimator.engines.sagemaker.aws import Aws, Session
from hdp.estimator.engines.sagemaker.cloudwatch import LogReader
from hdp.estimator.engines.sagemaker.epilogue import lines_for
from hdp.estimator.request import DEFAULT_BUCKET

LOG = logging.getLogger(__name__)
#: `hdp jobs` shows what is recent; an account may have a hundred thousand jobs.
_PAGES_LISTED, _PAGE = 10, 100
_UNKNOWN = ("not found", "could not find", "does not exist")


class SageMakerEngine:
    """Runs jobs as SageMaker's training jobs, in the account and region that boto3 finds."""

    name = "sagemaker"

    def __init__(
        self, boto_session: Session | None = None, patience: tuple[Patience, Patience] = (BRIEF, LONG)
    ) -> None:
        """boto_session: whose credentials and region count; None: as boto3 finds them.

        patience: for what a person waits for, and for jobs that are known to run.
        """
        self.aws = Aws(boto_session)
        self._brief, self._long = patience
        self._bucket: str | None = None
        self._readers: dict[str, LogReader] = {}
        self._known: set[str] = set()
        self._tidied: set[str] = set()
        self._no_logs: set[str] = set()

    @property
    def region(self) -> str | None:
        """Where jobs run."""
        return self.aws.region

    def capabilities(
        self,
        training_job: Mapping[str, Any] | None = None,  # noqa: ARG002 (the service says more only when it is asked)
        options: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> Capabilities:
        """What a plan needs to know. Offline."""
        region = self.aws.region
        notes = () if region else ("no region is known: set AWS_REGION before fit()",)
        return Capabilities(needs_role=True, needs_image=True, resolves_names=True, region=region, notes=notes)

    def validate_options(self, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Options with defaults filled in, and the faults found."""
        from hdp.estimator.engines.sagemaker.options import parse

        return parse(options)

    def bundle_uri(self, digest: str, base: str = "") -> str:
        """Where the code archive with this digest is kept, below `base` or the default bucket."""
        return f"{(base or DEFAULT_BUCKET).rstrip('/')}/hdp-code/{digest}/sourcedir.tar.gz"

    def put_bundle(self, digest: str, archive: bytes, base: str = "", key_id: str | None = None) -> str:
        """Upload a code archive, unless it is there. Raises EngineError, ValueError where the digest is wrong."""
        if hashlib.sha256(archive).hexdigest() != digest:
            raise ValueError(f"the archive's SHA-256 isn't {digest}")
        uri = str(self._with_bucket(self.bundle_uri(digest, base)))
        buckets.put_once(self.aws, uri, archive, key_id)
        return uri

    def preflight(self, request: JobRequest) -> Findings:
        """Look at role, buckets and data of the planned request."""
        from hdp.estimator.engines.sagemaker.preflight import look

        return look(self.aws, request.training_job)

    def submit(self, request: JobRequest) -> None:
        """Send what the job needs, and have it made."""
        job = self.resolved(request).training_job
        if uploads.secret_uri(job) is not None:  # its place is the job's name: an earlier job's secret must stay
            submit.require_new(self.aws, request.name, self._brief)
        sent = False
        try:
            uploads.send(self.aws, job)
            sent = True
            submit.create(self.aws, job, self._brief)
        except BaseException as exc:
            # The job may yet come, or somebody was faster and has the name: a job needs its secret.
            if not (sent and isinstance(exc, (Unanswered, SpecError))):
                self._remove_secret(job)
            raise
        self._known.add(request.name)

    def resolved(self, request: JobRequest) -> JobRequest:
        """The request with the account's own names where a plan has stand-ins."""
        job = dict(self._with_bucket(request.training_job))
        job["RoleArn"] = resolve.role_arn(self.aws, job["RoleArn"])
        return replace(request, training_job=job)

    def describe(self, name: str) -> dict[str, Any]:
        """The job in DescribeTrainingJob's shape; links to the console are under ``Hdp``. Raises JobNotFound."""
        self.aws.leaving.clear()
        answer = self._ask_about(name, "sagemaker", "describe_training_job", TrainingJobName=name)
        answer.pop("ResponseMetadata", None)
        self._known.add(name)
        if answer["TrainingJobStatus"] in TERMINAL:
            self._note_end(name, answer)
        elif name in self._readers:
            self._readers[name].hosts = _hosts(answer)
        return {**answer, "Hdp": self._links(name)}

    def logs(self, name: str, cursor: Mapping[str, Any]) -> LogPage:
        """Lines since `cursor`."""
        self.aws.leaving.clear()
        if name not in self._known:
            self.describe(name)
        try:
            return self._reader(name).page(cursor)
        except Refused as exc:
            if "AccessDenied" not in exc.code:
                raise
            if name not in self._no_logs:
                self._no_logs.add(name)
                LOG.warning("the log of job %s can't be shown: %s", name, exc)
            return LogPage((), cursor)

    def stop(self, name: str) -> None:
        """Have the job stopped."""
        if self.describe(name)["TrainingJobStatus"] in (*TERMINAL, "Stopping"):
            return
        try:
            self._ask_about(name, "sagemaker", "stop_training_job", TrainingJobName=name)
        except Refused:
            if self.describe(name)["TrainingJobStatus"] not in (*TERMINAL, "Stopping"):  # it ended by itself
                raise

    def list(self) -> Sequence[dict[str, Any]]:
        """Summaries of the newest jobs, newest first; a thousand at most."""
        rows: list[dict[str, Any]] = []
        more: dict[str, Any] = {}
        for _ in range(_PAGES_LISTED):
            answer = ask(
                self.aws,
                "sagemaker",
                "list_training_jobs",
                self._brief,
                SortBy="CreationTime",
                SortOrder="Descending",
                MaxResults=_PAGE,
                **more,
            )
            rows += answer["TrainingJobSummaries"]
            if not answer.get("NextToken"):
                break
            more = {"NextToken": answer["NextToken"]}
        return rows

    def pace(self) -> Pace:
        """How jobs are followed."""
        return Pace(poll_seconds=5.0, log_lag_seconds=5.0)

    def epilogue(self, answer: Mapping[str, Any]) -> Sequence[str]:
        """The end of the failed rank's log, the console's page, and what to do about it."""
        return lines_for(answer, self._reader(str(answer["TrainingJobName"])))

    def _reader(self, name: str) -> LogReader:
        def call(operation: str, **arguments: Any) -> dict[str, Any]:
            return self._ask_about(name, "logs", operation, **arguments)

        return self._readers.setdefault(name, LogReader(call, name, leave=self.aws.leaving.set))

    def _ask_about(self, name: str, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Ask about one job: with patience if it is known to exist, and with the way back to it in every error."""
        if not JOB_NAME.fullmatch(name):
            raise JobNotFound(f"{name!r} can't be a job's name")
        patience = self._long if name in self._known else self._brief
        try:
            return ask(self.aws, service, operation, patience, **arguments)
        except Refused as exc:
            if service == "sagemaker" and _is_unknown(exc):
                raise JobNotFound(
                    f"no training job is called {name!r} in region {self.region}; `hdp jobs --all --engine sagemaker` "
                    "lists those of this account and region (AWS_PROFILE, AWS_REGION)"
                ) from exc
            raise
        except Unanswered as exc:
            raise EngineError(
                f"{exc}\njob {name} runs on. Take it up again: TrainingJob.attach({name!r}, engine='sagemaker'), or "
                f"hdp logs -f {name} --engine sagemaker"
            ) from exc

    def _with_bucket(self, value: Any) -> Any:
        if not resolve.needs_bucket(value):
            return value
        if self._bucket is None:
            self._bucket = buckets.default_bucket(self.aws)
        return resolve.with_bucket(value, self._bucket)

    def _links(self, name: str) -> dict[str, str]:
        if self.region is None or not self.aws.is_real("sagemaker"):
            return {}
        where = (name, self.region, self.aws.partition())
        return {"console": console.job_url(*where), "log_dir": console.logs_url(*where)}

    def _note_end(self, name: str, answer: Mapping[str, Any]) -> None:
        reader = self._reader(name)
        reader.hosts = _hosts(answer)
        if reader.ended_at is None:
            reader.ended_at = time.monotonic()
        if name not in self._tidied:
            self._tidied.add(name)
            self._remove_secret(answer)

    def _remove_secret(self, job: Mapping[str, Any]) -> None:
        uri = uploads.secret_uri(job)
        if uri is None or not uploads.is_our_secret(uri, str(job["TrainingJobName"])):
            return
        try:
            buckets.remove(self.aws, uri)
        except EngineError as exc:
            LOG.warning("the secret of job %s couldn't be removed from %s: %s", job["TrainingJobName"], uri, exc)


def _hosts(answer: Mapping[str, Any]) -> int:
    resources = answer.get("ResourceConfig", {})
    groups = resources.get("InstanceGroups") or [resources]
    return sum(int(group.get("InstanceCount", 1)) for group in groups)


def _is_unknown(exc: Refused) -> bool:
    named = exc.code in ("ResourceNotFound", "ResourceNotFoundException")
    return named or (exc.code == "ValidationException" and any(word in exc.said.lower() for word in _UNKNOWN))
