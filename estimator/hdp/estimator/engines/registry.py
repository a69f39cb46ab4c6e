"""Which engines there are, loaded only when asked for.

Built-in engines are rows of a table; a package adds its own with an entry point of the group ``hdp.engines``. Both
are merged, and a plugin with a built-in's name is an error, because it would silently run jobs somewhere else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import cast

from hdp.contract.errors import EngineError
from hdp.estimator.engines.base import Capabilities, Engine
from hdp.estimator.spelling import did_you_mean

GROUP = "hdp.engines"


@dataclass(frozen=True)
class BuiltIn:
    """One engine of ours. ``factory`` is "module:callable"; None: a later version brings it."""

    factory: str | None
    capabilities: Capabilities
    """What a plan may assume as long as the engine itself isn't there."""


BUILT_IN: Mapping[str, BuiltIn] = MappingProxyType(
    {
        "local": BuiltIn("hdp.estimator.engines.local.engine:LocalEngine", Capabilities(uri_schemes=("file", "s3"))),
        "sagemaker": BuiltIn(None, Capabilities(needs_role=True, needs_image=True, uri_schemes=("s3",))),
        "docker": BuiltIn("hdp.estimator.engines.docker.engine:DockerEngine", Capabilities(uri_schemes=("file", "s3"))),
    }
)
_LOCAL_TYPES = ("local", "local_gpu")


def get_engine(name: str) -> Engine:
    """The engine called `name`.

    Raises EngineError for a name that nobody provides, for an engine of a later version, and for a plugin that
    hides a built-in engine or can't be loaded.
    """
    plugins = _plugins()
    if name in plugins:
        return cast(Callable[[], Engine], _load(plugins[name]))()
    if name not in BUILT_IN:
        raise _no_engine(name, [*BUILT_IN, *plugins])
    factory = BUILT_IN[name].factory
    if factory is None:
        raise EngineError(
            f"the engine {name!r} isn't in this version yet: plan() shows the request and the ranks, but fit() can't "
            'start it; instance_type="local" runs the same job on this machine'
        )
    module, _, attribute = factory.partition(":")
    return cast(Callable[[], Engine], getattr(importlib.import_module(module), attribute))()


def engine_names() -> tuple[str, ...]:
    """Names of every engine that `get_engine` can give, in order."""
    return tuple(sorted({name for name, row in BUILT_IN.items() if row.factory} | set(_plugins())))


def engine_for_instance_type(instance_type: str) -> str:
    """Name of the engine that serves `instance_type`. Raises ValueError with one line that says what to write."""
    if instance_type in _LOCAL_TYPES:
        return "local"
    if instance_type == "docker":
        return "docker"
    if instance_type.startswith("ml.") and instance_type.count(".") == 2:
        return "sagemaker"
    raise ValueError(
        f"instance_type={instance_type!r} is unknown{did_you_mean(instance_type, [*_LOCAL_TYPES, 'docker'])}; expected "
        '"local", "local_gpu" (this machine), "docker", or an Amazon type such as "ml.p4d.24xlarge"'
    )


def planned_capabilities(name: str) -> Capabilities:
    """What a plan may assume of an engine that this version doesn't have. Raises EngineError for an unknown name."""
    if name not in BUILT_IN:
        raise _no_engine(name, list(BUILT_IN))
    return BUILT_IN[name].capabilities


def _no_engine(name: str, known: list[str]) -> EngineError:
    return EngineError(f"no engine is called {name!r}{did_you_mean(name, known)} (known: {', '.join(sorted(known))})")


def _plugins() -> dict[str, EntryPoint]:
    found = {point.name: point for point in entry_points(group=GROUP)}
    for name in sorted(set(found) & set(BUILT_IN)):
        raise EngineError(
            f"the plugin {found[name].value!r} calls its engine {name!r}, which hides the built-in one; "
            "uninstall it, or have it take another name"
        )
    return found


def _load(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as exc:
        raise EngineError(f"the plugin {point.value!r} of engine {point.name!r} can't be loaded: {exc}") from exc
