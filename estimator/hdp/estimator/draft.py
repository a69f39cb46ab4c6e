"""One job between the user's call and the engine: checked, its code packed, its request built. Uploads nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hdp.contract import env
from hdp.contract.errors import SpecError
from hdp.contract.files import host_names
from hdp.estimator import bundle, datanotes, git, inputs, instances, naming, notes, request, validate
from hdp.estimator.bundle import Bundle
from hdp.estimator.delivery.carriage import Carriage, Trip, carriage
from hdp.estimator.engines.base import Capabilities, JobRequest
from hdp.estimator.faults import seen
from hdp.estimator.groups import InstanceGroup, of_channels
from hdp.estimator.image_choice import choose
from hdp.estimator.plan import LATER, Cluster, Host, Plan, others_of, ranks_of, world_of
from hdp.estimator.prepare import Prepared, relaxed_for
from hdp.estimator.request import DEFAULT_BUCKET, Code, Job
from hdp.estimator.settings import Settings

#: What hosts install before the job's ranks start; it may bring an MPI.
_REQUIREMENTS = "requirements.txt"


@dataclass(frozen=True)
class Order:
    """What `fit` or `plan` was called with, and what the machine says about itself."""

    inputs: object
    job_name: object
    now: datetime
    region: str | None
    defaults: Callable[[str], Mapping[str, Any]]
    """From the job's name: hyperparameters that the estimator's class adds."""
    experiment: object = None
    """ExperimentConfig, as it was given."""
    fetch: bool = False
    """Whether the code of a git_config is cloned; a plan has a stand-in for it."""


@dataclass(frozen=True)
class Draft:
    """A job that can be submitted."""

    plan: Plan
    bundle: Bundle | None
    """None: no code, or code that is on S3 already."""
    code_base: str
    """URI of the folder below which an engine that has no store of its own keeps the bundle; empty: its choice."""
    warnings: Sequence[str]
    """Notes about the user's own files and data."""


def draft(prepared: Prepared, order: Order, faults: Sequence[str], what: str) -> Draft:
    """Check `order` and build the job. Raises SpecError with `faults` and every other fault found."""
    s = prepared.settings
    parsed, channel_faults, warnings = inputs.parse(order.inputs, s.input_mode, prepared.target.can)
    name, name_faults = _name(prepared, order)
    listing, packed, unreadable = _code_of(s, order.fetch)
    channel_faults += [] if channel_faults else of_channels(parsed.groups, s.instance_groups)
    channel_faults += inputs.unreachable(parsed, s.subnets)
    found = [*faults, *name_faults, *channel_faults, *(listing.faults if listing else ())]
    found += unreadable
    job = _job(prepared, order, name, packed, inputs.Inputs() if channel_faults else parsed)
    built = request.build(job)
    found += job.carriage.faults if job.carriage else ()
    found += [*job.image.faults, *_experiment_faults(order.experiment, prepared.target.cloud)]
    found += validate.faults_of(built.training_job, relaxed_for(prepared.target))
    can = _capabilities(prepared, built)
    found += can.faults
    if can.mpi_missing and not (listing and any(name.endswith(_REQUIREMENTS) for name in listing.members)):
        found.append(can.mpi_missing)
    if found:
        raise SpecError(found, what)
    warnings += packed.notes if packed else ()
    warnings += [git.LATER] if s.git_config is not None and not order.fetch else []
    return Draft(_plan(prepared, job, built, can, warnings), packed, _code_base(s), warnings)


def _experiment_faults(given: object, cloud: bool) -> list[str]:
    if given is not None and not isinstance(given, Mapping):
        return [f"experiment_config is {seen(given)}; expected a dictionary such as {{'ExperimentName': 'digits'}}"]
    return ["experiment_config is for ml.* instance types; leave it out"] if given and not cloud else []


def _capabilities(prepared: Prepared, built: JobRequest) -> Capabilities:
    """The engine's, for this very job. Asked even when other faults were found, so that all come together."""
    return prepared.engine.capabilities(built.training_job, built.engine_options)


def _name(prepared: Prepared, order: Order) -> tuple[str, list[str]]:
    """The job's name, and the faults of a given one (for which one made from the time then stands)."""
    s = prepared.settings
    fault = None if order.job_name is None else naming.fault(order.job_name)
    if order.job_name is not None and fault is None:
        return str(order.job_name), []
    made = naming.dated(naming.base_name(s.base_job_name, s.image_uri, s.entry_point), order.now)
    return made, [fault] if fault else []


def _code_of(s: Settings, fetch: bool) -> tuple[bundle.Listing | None, Bundle | None, list[str]]:
    """The files that would travel, their archive, and the faults of reading them."""
    try:
        with git.located(s, fetch) as here:
            listing = None if s.git_config is not None and not fetch else _listing(here)
            if listing and s.git_config is not None:
                listing.faults = [git.spoken(fault) for fault in listing.faults]
            return listing, *_packed(listing)
    except SpecError as exc:
        return None, None, list(exc.faults)


def _listing(s: Settings) -> bundle.Listing | None:
    """The files that would travel; None where none do."""
    if s.entry_point is None or _on_s3(s):
        return None
    return bundle.scan(s.entry_point, s.source_dir, s.dependencies)


def _packed(listing: bundle.Listing | None) -> tuple[Bundle | None, list[str]]:
    """The archive of what can be listed, and the faults of reading it."""
    if listing is None or listing.faults:
        return None, []
    try:
        return bundle.pack(listing), []
    except SpecError as exc:
        return None, list(exc.faults)


def _on_s3(s: Settings) -> bool:
    return (s.source_dir or "").startswith("s3://")


def _job(prepared: Prepared, order: Order, name: str, packed: Bundle | None, channels: inputs.Inputs) -> Job:
    code = _code(prepared, packed)
    region = prepared.target.can.region or order.region
    image = choose(prepared.settings, prepared.framework, prepared.launch, prepared.target, region)
    return Job(
        settings=prepared.settings,
        name=name,
        launch=prepared.launch,
        hyperparameters=prepared.hyperparameters,
        defaults=order.defaults(name),
        inputs=channels,
        code=code,
        carriage=_carriage(prepared, code, name, channels, image.uri or ""),
        engine_name=prepared.target.name,
        engine_options=prepared.engine_options,
        region=region,
        sagemaker_metrics=True if prepared.framework and prepared.settings.framework_version else None,
        image=image,
        experiment=order.experiment if isinstance(order.experiment, Mapping) else {},
    )


def _code(prepared: Prepared, packed: Bundle | None) -> Code | None:
    """The script and its archive's URI. Without an archive yet, because of faults, the URI is a stand-in."""
    s = prepared.settings
    if s.entry_point is None:
        return None
    if _on_s3(s):
        return Code(s.entry_point, str(s.source_dir))
    program = s.entry_point if s.source_dir else s.entry_point.replace("\\", "/").rpartition("/")[2]
    digest = packed.digest if packed else "0" * 64
    return Code(program, prepared.engine.bundle_uri(digest, _code_base(s)))


def _carriage(prepared: Prepared, code: Code | None, name: str, channels: inputs.Inputs, image: str) -> Carriage | None:
    if not prepared.target.cloud:
        return None
    base = (_code_base(prepared.settings) or DEFAULT_BUCKET).rstrip("/")
    trip = Trip(name, code.uri if code else "", base, [channel for channel, _ in channels.channels], image)
    return carriage(prepared.settings, prepared.launch.kind, prepared.engine_options, trip)


def _code_base(s: Settings) -> str:
    """code_location, or else output_path, where that is on S3."""
    given = getattr(s, "code_location", None) or s.output_path or ""
    return given if given.startswith("s3://") else ""


def _plan(prepared: Prepared, job: Job, built: JobRequest, can: Capabilities, warnings: Sequence[str]) -> Plan:
    cluster = _cluster(prepared, can)
    values, program = {**job.defaults, **job.hyperparameters}, job.code.program if job.code else ""
    return Plan(
        request=built,
        ranks=tuple(ranks_of(prepared.launch, cluster, program, values)),
        engine=prepared.target.name,
        launch=prepared.launch,
        notes=(
            *notes.notes_of(prepared, can, cluster),
            *job.image.notes,
            *datanotes.notes_of(job.inputs, prepared.settings.input_mode, world_of(prepared.launch, cluster)),
            *(job.carriage.notes if job.carriage else ()),
            *warnings,
        ),
        others=tuple(others_of(prepared.launch, cluster, program, values)),
    )


def _cluster(prepared: Prepared, can: Capabilities) -> Cluster:
    kinds = [g for g in prepared.settings.groups for _ in range(g.instance_count)]
    named = bool(prepared.settings.instance_groups)
    hosts = tuple(
        Host(name, _gpus(group, prepared, can), group.instance_group_name if named else "")
        for name, group in zip(host_names(len(kinds)), kinds, strict=True)
    )
    ours = not prepared.target.cloud
    return Cluster(hosts, LATER if can.chooses_master_port else env.MASTER_PORT.default, ours, can.mpi, can.interface)


def _gpus(group: InstanceGroup, prepared: Prepared, can: Capabilities) -> int:
    if prepared.target.cloud:
        return instances.gpus(group.instance_type) or 0
    return can.gpus_by_group.get(group.instance_group_name, can.gpus_per_host)
