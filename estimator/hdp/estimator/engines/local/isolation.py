"""Decides how a job's hosts are kept apart here, and says in plain words what differs from a real cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hdp.contract.uris import local_path
from hdp.estimator.engines.local.hostns import Support
from hdp.estimator.engines.local.trees import OPT_ML

_SHARED = "hosts are process groups of one machine: they share its CPUs, memory and /tmp"
_TREE = "SAGEMAKER_BASE_DIR and SM_* lead to each host's tree, /opt/ml does not"
_NAMES = "and host names don't resolve"
_USER = "hosts run in a user namespace: files of other users show as owned by nobody, and sudo doesn't work"
_HIDDEN = "this machine's own /opt/ml is hidden from the job by each host's tree"


def decide(wanted: str, support: Support, needed: Sequence[Path], opt_ml_exists: bool) -> Support:
    """What to do for the option ``namespaces``.

    support: what the machine allows. needed: paths that hosts must see as they are; none may be below ``/opt/ml``.
    """
    if wanted == "off":
        return Support("none", 'the engine option namespaces="off" was given')
    buried = [path for path in needed if opt_ml_exists and path.is_relative_to(OPT_ML)]
    if buried and support.means != "none":
        return Support("none", f"{buried[0]} would be hidden by the hosts' own {OPT_ML}")
    return support


def sources(training_job: Mapping[str, Any]) -> list[Path]:
    """Files of this machine that a job reads or keeps: its channels and its checkpoints."""
    channels = [c.get("DataSource", {}).get("S3DataSource", {}) for c in training_job.get("InputDataConfig") or ()]
    uris = [source.get("S3Uri", "") for source in [*channels, training_job.get("CheckpointConfig") or {}]]
    return [local_path(uri) for uri in uris if uri.startswith("file:///")]


def faults(wanted: str, decided: Support) -> tuple[str, ...]:
    """Why a job can't be kept apart as it was asked for, a line each."""
    if wanted != "required" or decided.means != "none":
        return ()
    reason = f'namespaces="required", but hosts can\'t have them here: {decided.reason}'
    return (f'engine_options: {reason}; see `hdp doctor`, or give "auto"',)


def differences(decided: Support, opt_ml_exists: bool, network: bool = False) -> tuple[str, ...]:
    """What differs from a real cluster, a line each. network: whether hosts have one of their own."""
    shared = _SHARED if network else f"{_SHARED}; and its loopback network"
    if decided.means == "none":
        missing = (
            _TREE
            if network
            else f"hosts have no mount and UTS namespaces of their own: {_TREE}, /dev/shm is shared, {_NAMES}"
        )
        return shared, f"{missing} ({decided.reason})"
    return (shared, *((_USER,) if decided.means == "user" else ()), *((_HIDDEN,) if opt_ml_exists else ()))
