"""What a person should know about a job before it starts, a line each. Pure."""

from __future__ import annotations

from hdp.estimator import distribution, hyperparameters, instances, roles
from hdp.estimator.engines.base import Capabilities
from hdp.estimator.plan import Cluster
from hdp.estimator.prepare import Prepared
from hdp.estimator.request import DEFAULT_BUCKET, IMAGE_STAND_IN

_OURS = ("hdp", "smdistributed")
_TENSORFLOWS = "multi_worker_mirrored_strategy"
_COUNTED = ("hdp", "mpi", "torch_distributed", "smdistributed")


def notes_of(prepared: Prepared, can: Capabilities, cluster: Cluster) -> list[str]:
    """Everything that isn't a fault and yet not obvious. can: the engine's, for this very job."""
    lines = [*_launch(prepared, cluster), *_network(prepared), *_framework(prepared)]
    lines += hyperparameters.shadowed(prepared.hyperparameters)
    return lines + _stand_ins(prepared) + _cloud(prepared) + _engine(prepared) + list(can.notes)


def _launch(p: Prepared, cluster: Cluster) -> list[str]:
    lines = []
    if p.launch.kind in _COUNTED and p.launch.processes_per_host is None:
        count = p.launch.ranks_on(cluster.gpus_per_host)
        lines.append(f"no processes_per_host: one rank a GPU, else one a host: {count}")
    if p.launch.kind == "none" and cluster.num_hosts > 1:
        lines.append(
            f"no distribution: each of {cluster.num_hosts} hosts runs the script once; "
            "nothing combines their gradients unless the script does"
        )
    if p.launch.kind == "smdistributed":
        lines.append("smdistributed.dataparallel is served by hdp; Amazon's library isn't used")
    if distribution.not_runnable(p.launch):
        lines.append(f"launcher {p.launch.kind} isn't in this version: the request is valid, fit() will refuse")
    return lines


def _network(p: Prepared) -> list[str]:
    kind, lines = p.settings.instance_type, []
    if p.launch.kind in _OURS and instances.has_efa(kind):
        lines.append(f"transport between hosts: TCP; {kind} has EFA, which hdp doesn't use in this version")
    if p.settings.encrypt_inter_container_traffic and p.launch.kind in _OURS and not p.target.cloud:
        lines.append("between hosts: TLS 1.3 for hdp's own traffic; what goes by torch's store or gloo isn't encrypted")
    if p.settings.encrypt_inter_container_traffic and p.launch.kind == _TENSORFLOWS and not p.target.cloud:
        lines.append("what TensorFlow's workers send each other isn't encrypted")
    return lines


def _framework(p: Prepared) -> list[str]:
    s = p.settings
    if p.target.name != "local":
        return []
    given = [n for n in ("framework_version", "py_version") if getattr(s, n)]
    return [f"{' and '.join(given)} choose no image here: the local engine runs this machine's Python"] if given else []


def _stand_ins(p: Prepared) -> list[str]:
    """What the request lacks, and what stands for it there."""
    s, lines = p.settings, []
    if p.image_stand_in:
        asked = f"framework_version {s.framework_version!r}" if s.framework_version else "framework_version"
        lines.append(
            f"image_uri is missing: this version doesn't look images up by {asked}; "
            f"{IMAGE_STAND_IN} stands for it in the request"
        )
    if p.target.can.needs_role and s.role and not roles.is_arn(s.role):
        lines.append(
            f"role {s.role!r} is a name: the version with the {p.target.name} engine resolves it through IAM at fit; "
            f"{roles.stand_in(s.role)} stands for it in the request"
        )
    if s.role and not p.target.can.needs_role:
        lines.append(f"role isn't used: the {p.target.name} engine needs none")
    return lines


def _cloud(p: Prepared) -> list[str]:
    if not p.target.cloud:
        return []
    s = p.settings
    lines = []
    if s.output_path is None:
        lines.append(f"no output_path: {DEFAULT_BUCKET} stands for the account's default bucket")
    if instances.gpus(s.instance_type) is None:
        lines.append(
            f"{s.instance_type} isn't in the table of GPU counts; the plan counts 0, the hosts count their own"
        )
    return lines


def _engine(p: Prepared) -> list[str]:
    if p.engine is not None:
        return []
    return [f"engine {p.target.name} isn't in this version: the request is valid, fit() will refuse"]
