"""What a person should know about a job before it starts, a line each. Pure."""

from __future__ import annotations

from hdp.estimator import hyperparameters, instances, roles
from hdp.estimator.engines.base import Capabilities
from hdp.estimator.plan import Cluster, world_of
from hdp.estimator.prepare import Prepared
from hdp.estimator.request import DEFAULT_BUCKET

_OURS = ("hdp", "smdistributed")
_TENSORFLOWS = "multi_worker_mirrored_strategy"
_COUNTED = ("hdp", "mpi", "torch_distributed", "horovod", "smdistributed", "apart")
#: Their traffic is MPI's, torch's or Horovod's own.
_UNENCRYPTED = ("mpi", "torch_distributed", "horovod")


def notes_of(prepared: Prepared, can: Capabilities, cluster: Cluster) -> list[str]:
    """Everything that isn't a fault and yet not obvious. can: the engine's, for this very job."""
    lines = [*_launch(prepared, cluster), *_network(prepared), *_framework(prepared)]
    lines += hyperparameters.shadowed(prepared.hyperparameters)
    return lines + _stand_ins(prepared) + _cloud(prepared) + list(can.notes)


def _launch(p: Prepared, cluster: Cluster) -> list[str]:
    lines = []
    world = world_of(p.launch, cluster)
    if p.launch.kind in _COUNTED and p.launch.processes_per_host is None and not p.launch.processes_by_group:
        counts = ", ".join(map(str, dict.fromkeys(world.sizes)))
        lines.append(f"no processes_per_host: one rank a GPU, else one a host: {counts}")
    if p.launch.kind == "none" and len(cluster.hosts) > 1:
        lines.append(
            f"no distribution: each of {len(cluster.hosts)} hosts runs the script once; "
            "nothing combines their gradients unless the script does"
        )
    if p.launch.kind == "smdistributed" and not p.target.cloud:
        lines.append("smdistributed.dataparallel is served by hdp; Amazon's library isn't used")
    if p.launch.data_parallel and p.target.cloud:
        lines.append("smdistributed.dataparallel is Amazon's library, in the image; for ours write {'hdp': ...}")
    if p.launch.kind == "smdistributed" and p.launch.custom_mpi_options and not p.target.cloud:
        lines.append("custom_mpi_options is ignored: hdp starts the ranks, not mpirun; set variables with environment=")
    if p.launch.kind in _UNENCRYPTED and p.settings.encrypt_inter_container_traffic and not p.target.cloud:
        lines.append(f"what ranks under {p.launch.kind} send each other isn't encrypted, but for hdp.torch's")
    if len(world.hosts) < len(cluster.hosts):
        others = [g.instance_group_name for g in p.settings.groups if g.instance_group_name not in p.launch.groups]
        lines.append(
            f"ranks run on hosts of {' and '.join(p.launch.groups)} only; each host of {' and '.join(others)} runs the "
            "script once, as a plain process: SM_CURRENT_INSTANCE_GROUP tells it where it is"
        )
    return lines


def _network(p: Prepared) -> list[str]:
    lines = []
    ours = p.launch.kind == "hdp" or (p.launch.kind in _OURS and not p.target.cloud)
    for kind in _types(p) if ours else ():
        if instances.has_efa(kind):
            lines.append(f"transport between hosts: TCP; {kind} has EFA, which hdp doesn't use in this version")
    if p.settings.encrypt_inter_container_traffic and p.launch.kind in _OURS and not p.target.cloud:
        lines.append("between hosts: TLS 1.3 for hdp's own traffic; what goes by torch's store or gloo isn't encrypted")
    if p.settings.encrypt_inter_container_traffic and p.launch.kind == _TENSORFLOWS and not p.target.cloud:
        lines.append("what TensorFlow's workers send each other isn't encrypted")
    return lines


def _types(p: Prepared) -> list[str]:
    """The types of the hosts with ranks, each once."""
    ranked = [g for g in p.settings.groups if not p.launch.groups or g.instance_group_name in p.launch.groups]
    return list(dict.fromkeys(g.instance_type for g in ranked))


def _framework(p: Prepared) -> list[str]:
    s = p.settings
    given = [n for n in ("framework_version", "py_version") if getattr(s, n)]
    runs = {"local": "this machine's Python", "docker": "the image that image_uri names, or that of `hdp build`"}
    if p.target.name not in runs or not given:
        return []
    return [f"{' and '.join(given)} choose no image here: the {p.target.name} engine runs {runs[p.target.name]}"]


def _stand_ins(p: Prepared) -> list[str]:
    """What the request lacks, and what stands for it there."""
    s, lines = p.settings, []
    if p.target.can.needs_role and s.role and not roles.is_arn(s.role):
        lines.append(
            f"role {s.role!r} is a name: fit() has IAM resolve it; "
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
    unknown = [kind for kind in dict.fromkeys(g.instance_type for g in s.groups) if instances.gpus(kind) is None]
    return lines + [
        f"{kind} isn't in the table of GPU counts; the plan counts 0, the hosts count their own" for kind in unknown
    ]
