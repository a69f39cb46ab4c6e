"""How the parts of a job on SageMaker reach containers whose image may not contain hdp. It reads our own files.

AWS's own toolkit serves ``mpi``, ``torch_distributed`` and ``smdistributed`` in AWS's images, and needs none of this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdp.contract import env
from hdp.contract.delivery import (
    CODE_CHANNEL,
    ENTRYPOINT,
    INSTALLED_ENTRYPOINT,
    OLDEST_PYTHON,
    RUNTIME_CHANNEL,
    SECRET_CHANNEL,
    Platform,
)
from hdp.contract.errors import EngineError
from hdp.estimator.settings import Settings

if TYPE_CHECKING:
    from hdp.estimator.delivery.parcel import Parcel

#: Launchers that are ours alone: no image has them unless it has hdp.
KINDS = ("hdp", "horovod", "apart")
MOST_CHANNELS = 20

_ARM = re.compile(r"[a-z]+\d+g[a-z]*|.*-gb\d+")
_AWS_IMAGE = re.compile(r"\d{12}\.dkr\.ecr\.[^/]+/(?:pytorch|tensorflow|huggingface-[a-z-]+)-training:(.+)")
#: glibc of the Ubuntu that an image's tag names (source: Ubuntu's package lists).
_UBUNTU = {"18.04": (2, 27), "20.04": (2, 31), "22.04": (2, 35), "24.04": (2, 39)}
#: The newest that AWS's images for these Pythons have, where the tag names no Ubuntu.
_PYTHON = {**dict.fromkeys(("py36", "py37", "py38", "py39"), (2, 31)), **dict.fromkeys(("py310", "py311"), (2, 35))}


@dataclass(frozen=True)
class Carriage:
    """What a request says about it."""

    entry_point: tuple[str, ...]
    channels: Mapping[str, str]
    """URIs by channel, in the order of the request."""
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trip:
    """What a job's parts travel by."""

    job_name: str
    code_uri: str
    """Of the archive; empty: the job has no code."""
    base: str
    """URI of the folder below which the engine keeps what it uploads, without a slash at its end."""
    channels: Sequence[str]
    """Names of the user's."""
    image: str
    """URI of the image: the user's, or the one that was looked up."""


def carriage(settings: Settings, kind: str, options: Mapping[str, Any], trip: Trip) -> Carriage | None:
    """How this job's parts travel; None: nothing of ours starts its ranks. kind: of launcher."""
    if kind not in KINDS:
        return None
    carried = options.get("runtime", "carried") == "carried"
    uris, faults, notes = {CODE_CHANNEL: trip.code_uri}, _clashes(settings, kind, carried), []
    if carried:
        made, missing = _parcel()
        faults += [missing] if made is None else _misfits(settings, trip.image, made.platform)
        notes += [] if made is None else [_note(made)]
        uris[RUNTIME_CHANNEL] = f"{trip.base}/hdp-runtime/{made.digest if made else '0' * 64}/"
    uris[SECRET_CHANNEL] = f"{trip.base}/hdp-secret/{trip.job_name}/"
    faults += _channel_faults(trip, uris)
    entry_point = ENTRYPOINT if carried else settings.container_entry_point or INSTALLED_ENTRYPOINT
    return Carriage(entry_point, uris, tuple(faults), tuple(notes))


def _parcel() -> tuple[Parcel | None, str]:
    from hdp.estimator.delivery.parcel import parcel

    try:
        return parcel(), ""
    except EngineError as exc:
        return None, str(exc)


def _note(made: Parcel) -> str:
    python = ".".join(map(str, OLDEST_PYTHON))
    return (
        f"hdp travels with the job ({made.size_bytes / 1e6:.1f} MB): its image needs python3 of {python} or newer, "
        f"NumPy for hdp.collectives, and {made.platform}"
    )


def _clashes(s: Settings, kind: str, carried: bool) -> list[str]:
    """Arguments that our entry point leaves no room for."""
    faults = []
    if s.entry_point is None:
        faults.append(f"distribution {kind!r} starts a script; give entry_point")
    for name in ("container_entry_point", "container_arguments") if carried else ():
        if getattr(s, name):
            faults.append(
                f"{name} can't go with the distribution {kind!r}, for which hdp's own entry point starts the ranks; "
                "leave it out, or say engine_options={'runtime': 'image'} if the image has hdp and starts its agent"
            )
    return faults


def _channel_faults(trip: Trip, ours: Mapping[str, str]) -> list[str]:
    faults = [
        f"inputs: hdp needs the channel {name!r} for itself; rename yours" for name in trip.channels if name in ours
    ]
    if len(trip.channels) <= MOST_CHANNELS < len(trip.channels) + len(ours):
        faults.append(
            f"inputs has {len(trip.channels)} channels, and {len(ours)} of hdp's ({', '.join(ours)}) come with them; "
            f"SageMaker takes {MOST_CHANNELS}: join some"
        )
    return faults


def _misfits(s: Settings, image: str, needs: Platform) -> list[str]:
    """Why the runtime that is here can't work there, as far as it can be told before."""
    faults = []
    for kind in dict.fromkeys(group.instance_type for group in s.groups):
        machine = "aarch64" if _ARM.fullmatch(kind.split(".")[1] if kind.count(".") > 1 else "") else "x86_64"
        if machine != needs.machine:
            faults.append(
                f"instance_type {kind!r} has {machine} processors, and the hdp here is for {needs.machine}; "
                f"name a wheel of hdp for {machine} in {env.RUNTIME_WHEEL.name}"
            )
    newest = _glibc(image)
    if newest and newest < needs.glibc:
        there, here = (".".join(map(str, version)) for version in (newest, needs.glibc))
        where = "image_uri" if s.image_uri else "framework_version"
        faults.append(
            f"{where}: this image has glibc {there} at most, and the hdp here was built for {here} or newer; install "
            f"hdp from its wheel, in a checkout run `make wheel` first, or name a wheel in {env.RUNTIME_WHEEL.name}"
        )
    return faults


def _glibc(image: str) -> tuple[int, int] | None:
    """The newest glibc that one of AWS's images can have; None: it isn't known."""
    found = _AWS_IMAGE.fullmatch(image)
    words = re.split(r"-|ubuntu", found[1]) if found else []
    return next((glibc for word, glibc in {**_PYTHON, **_UBUNTU}.items() if word in words), None)
