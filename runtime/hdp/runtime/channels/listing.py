"""What a channel holds on this host: names, sizes, ETags, fixed before anything is read.

Every mode starts from the same listing, so a host has the same objects in each, and Pipe mode streams them in the order
in which they are listed. `channel_listing` is what a host gets; `source_listing` is the whole source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from hdp.contract.errors import ChannelError
from hdp.contract.uris import bucket_and_key
from hdp.runtime.channels import local, manifest, s3, s3list
from hdp.runtime.channels.keys import Entry, Listing, check_clashes, shard, siblings
from hdp.runtime.channels.spec import ChannelSpec
from hdp.runtime.environment import Resources

__all__ = ["Entry", "Listing", "channel_listing", "gets_channel", "source_listing"]

log = logging.getLogger(__name__)


def gets_channel(spec: ChannelSpec, resources: Resources, host: str | None = None) -> bool:
    """Whether `host`, or else this host, gets the channel at all: the channel may be for some instance groups only."""
    name = host or resources.current_host
    return not spec.instance_groups or any(name in resources.group_hosts(g) for g in spec.instance_groups)


def channel_listing(spec: ChannelSpec, resources: Resources) -> Listing:
    """What this host has of the channel.

    Raises ChannelError that names the channel, for a source that can't be read or has no files, and for names that
    can't be side by side.
    """
    try:
        whole = source_listing(spec)
        return _share(spec, resources, whole) if spec.sharded else whole
    except (OSError, ValueError) as exc:  # ValueError: a URI that names no bucket or no absolute path
        raise ChannelError(f"channel {spec.name!r} from {spec.uri}: {exc}") from exc
    except ChannelError as exc:
        raise ChannelError(f"channel {spec.name!r}: {exc}") from exc


def source_listing(spec: ChannelSpec) -> Listing:
    """All that the source has, for all hosts: sorted by key, or in the manifest's order.

    Raises as `channel_listing`, naming no channel.
    """
    listing = _SOURCES[_kind(spec)](spec)
    if not listing.items:
        raise ChannelError(_nothing(spec, listing.warnings))
    ordered = listing.items if spec.manifest else sorted(listing.items, key=lambda e: e.key)
    items, dropped = check_clashes(ordered)
    return replace(listing, items=tuple(items), warnings=(*listing.warnings, *dropped))


def _share(spec: ChannelSpec, resources: Resources, whole: Listing) -> Listing:
    hosts = [h for h in resources.hosts if gets_channel(spec, resources, h)]
    index = hosts.index(resources.current_host)
    if spec.attributes:
        return replace(whole, share=(index, len(hosts)))
    mine = shard(whole.items, index, len(hosts))
    few = f"{len(whole.items)} objects for {len(hosts)} hosts; this host gets none of them"
    return replace(
        whole,
        items=tuple(mine),
        whole=whole.items,
        share=(index, len(hosts)),
        warnings=whole.warnings if mine else (*whole.warnings, few),
    )


def _kind(spec: ChannelSpec) -> str:
    return "augmented" if spec.attributes else "manifest" if spec.manifest else spec.uri.partition(":")[0]


def _augmented(spec: ChannelSpec) -> Listing:
    """The manifest itself; what its lines name, and each host's share of them, is Pipe mode's matter."""
    if spec.uri.startswith("file://"):
        return _folder(spec)
    bucket, key = bucket_and_key(spec.uri)
    return Listing(f"s3://{bucket}", (s3.head(s3.connect(), bucket, key, key.rpartition("/")[2]),))


def _folder(spec: ChannelSpec) -> Listing:
    base, items = local.list_local(spec.uri)
    return Listing(str(base), tuple(items))


def _prefix(spec: ChannelSpec) -> Listing:
    bucket, prefix = bucket_and_key(spec.uri)
    items, marked = s3list.list_prefix(s3list.listing_client(), spec.uri)
    beside = siblings((i.key for i in items), prefix)
    warnings = (*_beside(spec, beside), *_marked(bucket, marked))
    return Listing(f"s3://{bucket}", tuple(items), warnings)


def _marked(bucket: str, keys: list[str]) -> Iterator[str]:
    if keys:
        yield (
            f"{len(keys)} objects with content are left out, such as s3://{bucket}/{min(keys)}: a key that ends in / "
            "or _$folder$ marks a folder; rename them if they are data"
        )


def _beside(spec: ChannelSpec, keys: list[str]) -> Iterator[str]:
    if keys:
        yield (
            f"the prefix {spec.uri} has no trailing slash and also matches {len(keys)} objects beside it, such as "
            f"{keys[0]}; write {spec.uri}/ to leave them out"
        )


def _nothing(spec: ChannelSpec, warnings: Sequence[str]) -> str:
    bucket = "" if spec.uri.startswith("file://") else ", the bucket and its region"
    return "; ".join([f"{spec.uri} has no files; expected at least one. Check the path{bucket}", *warnings])


_SOURCES: Mapping[str, Callable[[ChannelSpec], Listing]] = {
    "augmented": _augmented,
    "manifest": lambda spec: manifest.list_manifest(spec.uri),
    "file": _folder,
    "s3": _prefix,
}
