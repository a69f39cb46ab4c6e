"""`Estimator`: what to train, where, how gradients travel; `fit` runs it, `plan` shows it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from hdp.contract.env import aws_region
from hdp.contract.errors import HdpError, SpecError
from hdp.estimator import prepare
from hdp.estimator.draft import Draft, Order, draft
from hdp.estimator.engines.base import Engine, Findings, Remote
from hdp.estimator.faults import seen, shown
from hdp.estimator.logs import LOGS_SHOWN
from hdp.estimator.plan import Plan
from hdp.estimator.settings import Settings
from hdp.estimator.spelling import did_you_mean

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hdp.estimator.arguments import EstimatorArguments
    from hdp.estimator.job import TrainingJob
    from hdp.estimator.preflight import Preflight

LOG = logging.getLogger(__name__)


class Estimator:
    """A training job: a script (or a container image), hosts to run it on, and a distribution.

    ::

        estimator = Estimator(entry_point="train.py", instance_count=2, distribution={"hdp": {"enabled": True}})
        estimator.fit({"training": "file:///data/digits/"})

    Names and meaning of the arguments are those of SageMaker's SDK v2, where CreateTrainingJob has a field for them.

    What runs: entry_point (script), source_dir (its folder, or s3://...tar.gz), dependencies (more files or folders),
    git_config (of the repository that has them all: repo, branch, commit, token, ...), hyperparameters (any JSON
    values; FLAG for a bare flag), environment, container_log_level, image_uri, container_entry_point,
    container_arguments.

    Where: instance_type ("local", "local_gpu", "docker", or "ml.*"; default "local") and instance_count, or
    instance_groups for hosts of several types; distribution; engine and engine_options (override what instance_type
    chooses), role (ARN or name; only where the engine needs one), boto_session (SageMaker: whose credentials and
    region), volume_size (GB), volume_kms_key, keep_alive_period_in_seconds, training_plan, instance_placement_config,
    subnets and security_group_ids, encrypt_inter_container_traffic, enable_network_isolation,
    training_repository_access_mode,
    training_repository_credentials_provider_arn.

    How long: max_run (seconds, default 86400), max_wait (seconds; spot only), use_spot_instances, max_retry_attempts.

    In and out: input_mode ("File", "FastFile", "Pipe"), output_path (s3:// or file://), output_kms_key,
    disable_output_compression, code_location, checkpoint_s3_uri, checkpoint_local_path, model_uri, model_channel_name,
    tensorboard_output_config, metric_definitions, enable_sagemaker_metrics. AWS's Debugger, profiler and compiler,
    where asked for: debugger_hook_config, rules, profiler_config, disable_profiler, compiler_config.

    Records: base_job_name, tags, enable_remote_debug, enable_session_tag_chaining, enable_infra_check.

    Raises SpecError that lists every fault of the call: misspelt names, wrong types, rules between arguments.
    """

    _refused: ClassVar[Mapping[str, str]] = {
        "framework_version": "it belongs to PyTorch and TensorFlow; leave it out, or use one of them",
        "py_version": "it belongs to PyTorch and TensorFlow; leave it out, or use one of them",
        "model_dir": "it belongs to TensorFlow; pass it as a hyperparameter",
    }
    _framework: ClassVar[str | None] = None

    def __init__(
        self,
        image_uri: str | None = None,
        role: str | None = None,
        instance_count: int | None = None,
        instance_type: str | None = None,
        **arguments: Unpack[EstimatorArguments],
    ) -> None:
        first = {"image_uri": image_uri, "role": role, "instance_count": instance_count, "instance_type": instance_type}
        self._prepare({**first, **arguments})

    def _prepare(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)
        self._prepared = prepare.prepare(given, self._refused, f"{type(self).__name__}(...)", self._framework)
        self._jobs: list[TrainingJob] = []

    @property
    def settings(self) -> Settings:
        """The arguments, checked; frozen."""
        return self._prepared.settings

    @property
    def latest_training_job(self) -> TrainingJob | None:
        """The job of the latest `fit`; None before the first."""
        return self._jobs[-1] if self._jobs else None

    @property
    def model_data(self) -> str | None:
        """URI of the latest job's model artifact; None where there is none yet.

        Raises HdpError before the first `fit`.
        """
        if self.latest_training_job is None:
            raise HdpError("there is no model yet: this estimator has started no job; call fit()")
        return self.latest_training_job.model_data

    @staticmethod
    def attach(name: str, engine: str = "local", boto_session: Any = None) -> TrainingJob:
        """The job called `name`, whoever started it. Doesn't wait for it (v2 does, and returns an estimator).

        Raises JobNotFound.
        """
        from hdp.estimator.job import TrainingJob

        return TrainingJob.attach(name, engine=engine, boto_session=boto_session)

    def plan(
        self,
        inputs: object = None,
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
    ) -> Plan:
        """What `fit` with these arguments would do: the request, every rank, and notes. Starts and uploads nothing.

        Raises SpecError with every fault of inputs, job_name and the code.
        """
        return self._draft(inputs, job_name, [], experiment_config).plan

    def preflight(self, inputs: object = None, job_name: str | None = None) -> Preflight:
        """What speaks against this job before it is paid for. Starts, uploads and changes nothing.

        All that `plan` refuses; and on SageMaker role, buckets and their region, the data's objects, hosts against
        ranks. `fit` looks too, and refuses where there are faults.
        """
        from hdp.estimator.preflight import Preflight

        try:
            checked = self._draft(inputs, job_name, [])
        except SpecError as exc:
            return Preflight(exc.faults)
        found = self._findings(checked)
        return Preflight(found.faults, found.warnings)

    @overload
    def fit(
        self,
        inputs: object = None,
        wait: bool = True,
        logs: str | bool | None = "All",
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
        *,
        dry_run: Literal[False] = False,
    ) -> TrainingJob: ...

    @overload
    def fit(
        self,
        inputs: object = None,
        wait: bool = True,
        logs: str | bool | None = "All",
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
        *,
        dry_run: Literal[True],
    ) -> Plan: ...

    def fit(
        self,
        inputs: object = None,
        wait: bool = True,
        logs: str | bool | None = "All",
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
        *,
        dry_run: bool = False,
    ) -> TrainingJob | Plan:
        """Start the job, and with `wait` follow it to its end. Returns its handle (v2 returns None).

        inputs: None, a URI (the channel "training"), a TrainingInput, or a dictionary of channel names to either.
        logs: "All" or True shows the log while waiting; None, "None" or False doesn't.
        job_name: letters, digits and inner hyphens, at most 63; None makes one from the time.
        experiment_config: of SageMaker's experiments: ExperimentName, TrialName, TrialComponentDisplayName, RunName.
        dry_run: check everything that `fit` checks offline, send and upload nothing, and return the plan.

        Raises SpecError before anything is uploaded or started; EngineError for what this engine can't do here;
        with `wait`, TrainingJobFailed and TrainingJobStopped.
        """
        faults = self._fit_faults(wait, logs)
        checked = self._draft(inputs, job_name, faults, experiment_config, fetch=not dry_run)
        if dry_run:
            return checked.plan
        engine = self._prepared.engine
        found = self._findings(checked)
        for warning in (*checked.warnings, *found.warnings):
            LOG.warning("%s", warning)
        if found.faults:
            raise SpecError(found.faults, f"{type(self).__name__}.fit, seen from {engine.name}")
        job = self._submit(engine, checked)
        if wait:
            job.wait(logs=logs)
        return job

    def _findings(self, checked: Draft) -> Findings:
        """What can be seen of the job's surroundings, of an engine elsewhere; nothing here."""
        if not isinstance(self._prepared.engine, Remote):
            return Findings()
        from hdp.estimator.preflight import device_lines

        found = self._prepared.engine.preflight(checked.plan.request)
        return Findings(found.faults, (*device_lines(self._prepared), *found.warnings))

    def _varied(self, changes: Mapping[str, Any]) -> Estimator:
        """The same estimator with other arguments, and without jobs. Raises SpecError."""
        twin = copy.copy(self)
        twin._prepare({**self._given, **changes})
        return twin

    def _startable(self, inputs: object) -> Plan:
        """The plan, if `fit` would start it. Raises SpecError and EngineError, as `fit` would."""
        return self._draft(inputs, None, self._fit_faults(True, None)).plan

    def _submit(self, engine: Engine, checked: Draft) -> TrainingJob:
        from hdp.estimator.job import TrainingJob

        if checked.bundle:
            digest, archive = checked.bundle.digest, checked.bundle.archive
            engine.put_bundle(digest, archive, checked.code_base, self.settings.output_kms_key)
        engine.submit(checked.plan.request)
        self._jobs.append(TrainingJob(engine, checked.plan.request.name))
        return self._jobs[-1]

    def _fit_faults(self, wait: object, logs: object) -> list[str]:
        """What only `fit` refuses: it can't wait or show the log that way."""
        faults = []
        if not isinstance(wait, bool):
            faults.append(f"wait is {seen(wait)}; expected True or False")
        if not isinstance(logs, (str, bool, type(None))) or logs not in LOGS_SHOWN:
            faults.append(
                f"logs is {shown(logs)}; expected 'All' or None{did_you_mean(logs, ['All', 'None', 'Training'])}"
            )
        return faults

    def _draft(
        self, given: object, job_name: str | None, faults: list[str], experiment: object = None, fetch: bool = False
    ) -> Draft:
        order = Order(given, job_name, datetime.now(timezone.utc), aws_region(), self._defaults, experiment, fetch)
        return draft(self._prepared, order, faults, f"{type(self).__name__}.fit")

    def _defaults(self, job_name: str) -> Mapping[str, Any]:  # noqa: ARG002 (subclasses use it)
        """Hyperparameters that this class adds where the user has none of that name."""
        return {}
