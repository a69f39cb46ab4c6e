"""Opens the store that a channel's bytes come from, for File and Pipe mode."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hdp.runtime.channels import s3
from hdp.runtime.channels.fastfile.retry import RetryingStore
from hdp.runtime.channels.fastfile.s3store import get_by_boto, open_bucket
from hdp.runtime.channels.fastfile.stats import Stats
from hdp.runtime.channels.fastfile.store import FolderStore, Store
from hdp.runtime.channels.keys import Entry


def open_store(base: str, connections: int) -> RetryingStore:
    """The store of ``s3://bucket`` or of a folder. Raises ChannelError where it can't be set up.

    obstore isn't always installed; boto3 does as well with large parts, but with objects of 20 KiB it takes five times
    the processor time, 1.5 ms each, under the interpreter's lock.
    """
    if not base.startswith("s3://"):
        return RetryingStore(FolderStore(Path(base)), Stats())
    bucket = base.removeprefix("s3://")
    plain: Store = open_bucket(bucket) if find_spec("obstore") else BotoStore(bucket, connections)
    return RetryingStore(plain, Stats())


class BotoStore:
    """One bucket, through boto3."""

    def __init__(self, bucket: str, connections: int) -> None:
        self._bucket = bucket
        self._client = s3.connect(connections)

    def get(self, entry: Entry, start: int, end: int) -> memoryview:
        """The bytes from `start` to before `end`. Raises StoreError."""
        return get_by_boto(self._client, self._bucket, entry, start, end)

    def uri(self, entry: Entry) -> str:
        """``s3://bucket/key``."""
        return f"s3://{self._bucket}/{entry.key}"
