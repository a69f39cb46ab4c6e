"""Provides the channels of a job on this host.

A channel is built in a hidden folder beside its place and renamed when it is whole, so that a script, or a person who
looks after a failure, never takes half a channel for the data.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hdp.contract.errors import ChannelError
from hdp.contract.files import read_json
from hdp.contract.uris import bucket_and_key, local_path
from hdp.runtime.channels import s3
from hdp.runtime.channels.keys import Item, check_clashes, safe_path, shard, siblings
from hdp.runtime.channels.local import fetch_local, list_local
from hdp.runtime.channels.spec import ChannelSpec, parse_channels
from hdp.runtime.environment import TrainingEnvironment

log = logging.getLogger(__name__)


def provide_channels(env: TrainingEnvironment, stopped: Callable[[], bool] = lambda: False) -> None:
    """Fill ``input/data``. Returns early, with what is whole so far, once `stopped()` is true.

    Raises ChannelError that names the channel and the source, key or disk at fault.
    """
    path = env.layout.channel_sources
    if not path.exists():
        _check_provided(env)
        return
    for spec in parse_channels(read_json(path).get("channels", []), env.input_data_config):
        if stopped():
            return
        _provide(env, spec, stopped)


def _check_provided(env: TrainingEnvironment) -> None:
    for name in env.channels:
        if not env.layout.channel(name).exists():
            log.warning("channel %s: %s is missing", name, env.layout.channel(name))


def _provide(env: TrainingEnvironment, spec: ChannelSpec, stopped: Callable[[], bool]) -> None:
    if spec.instance_groups and env.resources.instance_group not in spec.instance_groups:
        log.info("channel %s: only for hosts of the groups %s", spec.name, ", ".join(spec.instance_groups))
        return
    start = time.monotonic()
    target = env.layout.channel(spec.name)
    _require_empty(spec, target)
    partial = target.with_name(f".{spec.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        count, size = _fill(env, spec, partial, stopped)
        if not stopped():
            partial.rename(target)
    except (OSError, ValueError) as exc:  # ValueError: a URI that names no bucket or no absolute path
        raise ChannelError(f"channel {spec.name!r} from {spec.uri}: {exc}") from exc
    except ChannelError as exc:
        raise ChannelError(f"channel {spec.name!r}: {exc}") from exc
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    seconds = time.monotonic() - start
    log.info("channel %s: %d files, %.1f MB, %.1f s, from %s", spec.name, count, size / 1e6, seconds, spec.uri)


def _require_empty(spec: ChannelSpec, target: Path) -> None:
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ChannelError(
            f"channel {spec.name!r}: {target} isn't an empty folder; what is there isn't overwritten. Empty it."
        )


def _fill(env: TrainingEnvironment, spec: ChannelSpec, target: Path, stopped: Callable[[], bool]) -> tuple[int, int]:
    base, items = _list(spec)
    if not items:
        raise ChannelError(
            f"{spec.uri} has no files; expected at least one. Check the path{_slash_hint(spec)} and its region"
        )
    check_clashes(items)
    mine = _share(env, spec, items)
    if base.startswith("s3://"):
        bucket, _ = bucket_and_key(base)
        return len(mine), s3.fetch(s3.connect(), bucket, mine, target, stopped)
    return len(mine), fetch_local(Path(base), mine, target, stopped)


def _list(spec: ChannelSpec) -> tuple[str, list[Item]]:
    """Where the items' keys are relative to (``s3://bucket`` or a folder), and the items."""
    if spec.manifest:
        return _list_manifest(spec)
    if spec.uri.startswith("file://"):
        base, items = list_local(spec.uri)
        return str(base), items
    bucket, prefix = bucket_and_key(spec.uri)
    items = s3.list_prefix(s3.connect(), spec.uri)
    beside = siblings((i.key for i in items), prefix)
    if beside:
        log.warning(
            "channel %s: the prefix %s has no trailing slash and also matches %d objects beside it, such as %s; write "
            "%s/ to leave them out", spec.name, spec.uri, len(beside), beside[0], spec.uri,
        )  # fmt: skip
    return f"s3://{bucket}", items


def _list_manifest(spec: ChannelSpec) -> tuple[str, list[Item]]:
    prefix, names = parse_manifest(_read(spec.uri), spec.uri)
    if prefix.startswith("s3://"):
        bucket, start = bucket_and_key(prefix)
        return f"s3://{bucket}", [Item(start + n, safe_path(n, start + n)) for n in names]
    base = local_path(prefix)
    return str(base), [Item(safe_path(n, n), safe_path(n, n)) for n in names]


def _read(uri: str) -> bytes:
    return s3.read_object(s3.connect(), uri) if uri.startswith("s3://") else local_path(uri).read_bytes()


def parse_manifest(content: bytes, uri: str) -> tuple[str, list[str]]:
    """The prefix and the names of a manifest: ``[{"prefix": "s3://bucket/folder/"}, "a", "b/c"]``."""
    try:
        value: Any = json.loads(content)
    except ValueError as exc:
        raise ChannelError(f"the manifest {uri} isn't JSON: {exc}") from exc
    head = value[0] if isinstance(value, list) and value else None
    prefix = head.get("prefix") if isinstance(head, dict) else None
    if not isinstance(prefix, str) or not prefix.startswith(("s3://", "file://")):
        raise ChannelError(f'the manifest {uri} starts with {head!r}, expected {{"prefix": "s3://bucket/folder/"}}')
    wrong = [n for n in value[1:] if not isinstance(n, str) or not n]
    if wrong:
        raise ChannelError(f"the manifest {uri} has the entry {wrong[0]!r}, expected the end of a key as text")
    return prefix, value[1:]


def _share(env: TrainingEnvironment, spec: ChannelSpec, items: list[Item]) -> list[Item]:
    if not spec.sharded:
        return items
    hosts = [h for h in env.resources.hosts if _gets(env, spec, h)]
    mine = shard(items, hosts.index(env.resources.current_host), len(hosts))
    if not mine:
        log.warning(
            "channel %s: %d objects for %d hosts; this host gets none of them", spec.name, len(items), len(hosts)
        )
    return mine


def _gets(env: TrainingEnvironment, spec: ChannelSpec, host: str) -> bool:
    return not spec.instance_groups or any(host in env.resources.group_hosts(g) for g in spec.instance_groups)


def _slash_hint(spec: ChannelSpec) -> str:
    return "" if spec.uri.startswith("file://") else ", the bucket"
