"""Which engines there are, loaded only when asked for.

Built-in engines are rows of a table; a package adds its own with an entry point of the group ``hdp.engines``. Both
are merged, and a plugin with a built-in's name is an error, because it would silently run jobs somewhere else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, cast

from hdp.contract.errors import EngineError
from hdp.estimator.engines.base import Engine
from hdp.estimator.spelling import did_you_mean

GROUP = "hdp.engines"


#: Our own engines: name to "module:callable".
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "local": "hdp.estimator.engines.local.engine:LocalEngine",
        "sagemaker": "hdp.estimator.engines.sagemaker.engine:SageMakerEngine",
        "docker": "hdp.estimator.engines.docker.engine:DockerEngine",
    }
)
_LOCAL_TYPES = ("local", "local_gpu")


def get_engine(name: str, **arguments: Any) -> Engine:
    """The engine called `name`. arguments: of its class, e.g. SageMaker's ``boto_session``.

    Raises EngineError for a name that nobody provides, and for a plugin that hides a built-in engine or can't be
    loaded.
    """
    plugins = _plugins()
    if name in plugins:
        return cast(Callable[..., Engine], _load(plugins[name]))(**arguments)
    if name not in BUILT_IN:
        raise _no_engine(name, [*BUILT_IN, *plugins])
    module, _, attribute = BUILT_IN[name].partition(":")
    return cast(Callable[..., Engine], getattr(importlib.import_module(module), attribute))(**arguments)


def engine_names() -> tuple[str, ...]:
    """Names of every engine that `get_engine` can give, in order."""
    return tuple(sorted({*BUILT_IN, *_plugins()}))


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
