"""What is free to check before a job is paid for: who asks, the role, the buckets and their region, the data.

A check that may not be made (a permission is missing) is a warning: the job's role may have what the caller lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hdp.contract import advice, delivery
from hdp.contract.errors import EngineError
from hdp.contract.hyperparameters import decode
from hdp.contract.uris import bucket_and_key
from hdp.estimator.engines.base import Findings
from hdp.estimator.engines.sagemaker import buckets, resolve
from hdp.estimator.engines.sagemaker.asking import GLANCE, Refused, Unanswered, ask
from hdp.estimator.engines.sagemaker.aws import Aws
from hdp.estimator.engines.sagemaker.uploads import channel_uri

_SERVICE = "sagemaker.amazonaws.com"
#: Of a channel's objects; a call lists a thousand.
_MOST_OBJECTS = 10_000
_GONE = ("404", "NoSuchBucket", "NotFound")


@dataclass
class _Look:
    aws: Aws
    job: Mapping[str, Any]
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unreachable: set[str] = field(default_factory=set)
    """Buckets that can't be looked into."""


def look(aws: Aws, training_job: Mapping[str, Any]) -> Findings:
    """Check a planned request. Changes nothing: a default bucket that isn't there yet is made by `fit`."""
    found = _Look(aws, training_job)
    try:
        account = buckets.account_of(aws, GLANCE)
    except Unanswered as exc:  # a network that reaches SageMaker and S3 alone is no fault
        found.warnings.append(f"the account couldn't be asked for: {exc}")
        account = ""
    except EngineError as exc:
        return Findings((f"credentials: {exc}",))
    _role(found, account)
    _buckets(found)
    _data(found)
    _archive(found)
    return Findings(tuple(found.faults), tuple(found.warnings))


def _role(found: _Look, account: str) -> None:
    arn = found.job["RoleArn"]
    name = resolve.role_name(arn) or arn.rpartition("/")[2]
    if resolve.role_name(arn) is None and account and arn.split(":")[4] != account:
        found.warnings.append(f"role {arn} is of account {arn.split(':')[4]}, and you are in account {account}")
        return
    try:
        role = ask(found.aws, "iam", "get_role", GLANCE, RoleName=name)["Role"]
    except Unanswered as exc:
        found.warnings.append(f"role {name!r} couldn't be looked at: {exc}")
        return
    except Refused as exc:
        _role_unseen(found, name, exc, by_name=resolve.role_name(arn) is not None)
        return
    if _SERVICE not in str(role.get("AssumeRolePolicyDocument", "")):
        found.warnings.append(
            f"role {name!r}: its trust policy doesn't name {_SERVICE}, so SageMaker may not take it; add the service"
        )


def _role_unseen(found: _Look, name: str, exc: Refused, by_name: bool) -> None:
    if exc.code == "NoSuchEntity":
        found.faults.append(f"role {name!r}: the account has no IAM role of that name; check it")
    elif by_name:
        found.faults.append(f"role {name!r}: IAM doesn't tell its ARN ({exc.code}); give the ARN itself")
    else:
        found.warnings.append(f"role {name!r} couldn't be looked at ({exc.code}): iam:GetRole is missing")


def _buckets(found: _Look) -> None:
    """Every bucket that the job names is there, and in the job's region."""
    uses: dict[str, list[str]] = {}
    for what, uri in _uris(found.job):
        uses.setdefault(bucket_and_key(uri)[0], []).append(what)
    for bucket, names in uses.items():
        where = " and ".join(dict.fromkeys(names))
        try:
            region = buckets.bucket_region(found.aws, bucket)
        except Unanswered as exc:
            found.unreachable.add(bucket)
            found.warnings.append(f"{where}: the bucket {bucket} couldn't be looked at: {exc}")
            continue
        except Refused as exc:
            found.unreachable.add(bucket)
            if exc.code in _GONE:
                found.faults.append(f"{where}: the bucket {bucket} doesn't exist; check its name")
            else:
                found.warnings.append(f"{where}: you may not look at the bucket {bucket} ({exc.code}); may the role?")
            continue
        if region is not None and region != found.aws.region:
            found.unreachable.add(bucket)
            found.faults.append(
                f"{where}: the bucket {bucket} is in {region}, the job in {found.aws.region}; a job's buckets must be "
                f"in its region: copy the data, or set AWS_REGION={region}"
            )


def _uris(job: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every S3 URI of the user's, and what it is for."""
    found = [(f"inputs[{c['ChannelName']!r}]", _source(c).get("S3Uri")) for c in _channels(job)]
    found += [("output_path", job.get("OutputDataConfig", {}).get("S3OutputPath"))]
    found += [("checkpoint_s3_uri", job.get("CheckpointConfig", {}).get("S3Uri"))]
    for what, uri in found:
        if uri and uri.startswith("s3://") and not resolve.needs_bucket(uri):
            yield what, uri


def _archive(found: _Look) -> None:
    """The user's own code archive, where source_dir names one; what `fit` uploads itself isn't there yet."""
    said = found.job.get("HyperParameters", {}).get("sagemaker_submit_directory", '""')
    carried = channel_uri(found.job, delivery.CODE_CHANNEL)
    uri = carried or str(decode(said))
    if not uri.startswith("s3://") or "/hdp-code/" in uri:
        return
    bucket, key = bucket_and_key(uri)
    try:
        ask(found.aws, "s3", "head_object", GLANCE, Bucket=bucket, Key=key)
    except Refused as exc:
        if exc.code in (*_GONE, "NoSuchKey"):
            found.faults.append(f"source_dir: there is no object at {uri}; check the key")
    except EngineError as exc:
        found.warnings.append(f"source_dir: {uri} couldn't be looked at: {exc}")


def _channels(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The user's own."""
    return [c for c in job.get("InputDataConfig", ()) if c["ChannelName"] not in delivery.CHANNELS]


def _source(channel: Mapping[str, Any]) -> Mapping[str, Any]:
    source: Mapping[str, Any] = channel.get("DataSource", {}).get("S3DataSource", {})
    return source


def _data(found: _Look) -> None:
    for channel in _channels(found.job):
        uri = _source(channel).get("S3Uri", "")
        theirs = uri.startswith("s3://") and not resolve.needs_bucket(uri)
        if theirs and bucket_and_key(uri)[0] not in found.unreachable:
            _channel(found, channel, uri)


def _channel(found: _Look, channel: Mapping[str, Any], uri: str) -> None:
    where = f"inputs[{channel['ChannelName']!r}]"
    bucket, key = bucket_and_key(uri)
    try:
        sizes = _sizes(found.aws, bucket, key)
    except EngineError as exc:
        found.warnings.append(f"{where}: {uri} couldn't be listed; may the role? {exc}")
        return
    if not sizes:
        found.faults.append(f"{where}: there is no object at {uri}; check the prefix")
    elif _source(channel).get("S3DataType", "S3Prefix") == "S3Prefix":
        found.warnings += [f"{where}: {line}" for line in _advice(found.job, channel, sizes)]


def _advice(job: Mapping[str, Any], channel: Mapping[str, Any], sizes: Sequence[int]) -> list[str]:
    """What the objects mean for this job. Of more than were listed, only what more of them wouldn't change."""
    mode = channel.get("InputMode") or job["AlgorithmSpecification"].get("TrainingInputMode", "File")
    sharded = _source(channel).get("S3DataDistributionType") == "ShardedByS3Key"
    shape = advice.Shape.of(sizes)
    record_io = channel.get("RecordWrapperType") == "RecordIO"
    lines = advice.before(shape, mode, _hosts_of(job, channel), sharded=sharded, record_io=record_io)
    if len(sizes) < _MOST_OBJECTS:
        return lines
    return [f"of the first {len(sizes):,} objects: {line}" for line in lines]


def _hosts_of(job: Mapping[str, Any], channel: Mapping[str, Any]) -> int:
    resources = job["ResourceConfig"]
    groups = resources.get("InstanceGroups") or [resources]
    wanted = _source(channel).get("InstanceGroupNames")
    return sum(g.get("InstanceCount", 1) for g in groups if not wanted or g.get("InstanceGroupName") in wanted) or 1


def _sizes(aws: Aws, bucket: str, prefix: str) -> list[int]:
    """Of the objects with this prefix, in bytes; folders' markers left out, and what is behind the first thousands."""
    sizes: list[int] = []
    more: dict[str, str] = {}
    while len(sizes) < _MOST_OBJECTS:
        answer = ask(aws, "s3", "list_objects_v2", GLANCE, Bucket=bucket, Prefix=prefix, **more)
        sizes += [item["Size"] for item in answer.get("Contents", ()) if not item["Key"].endswith("/")]
        if not answer.get("IsTruncated"):
            break
        more = {"ContinuationToken": answer["NextContinuationToken"]}
    return sizes[:_MOST_OBJECTS]
