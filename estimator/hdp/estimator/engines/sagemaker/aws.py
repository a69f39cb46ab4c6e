"""Sessions and clients of boto3: one account, one region, made on first use, made anew when credentials expire.

Credentials, profile, region and endpoints are found as boto3 finds them, plus AWS_REGION, which it doesn't read itself.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from hdp.contract.env import aws_region
from hdp.contract.errors import EngineError
from hdp.estimator.faults import seen

#: boto3 makes its sessions' and clients' classes at run time.
Session = Any
Client = Any

#: Of one call, until it counts as lost. A listing of logs can take some seconds.
_CONNECT_SECONDS, _READ_SECONDS = 10, 30
#: As many as fetch logs at a time.
CONNECTIONS = 10


class Aws:
    """Clients by the service's name. May be used from several threads."""

    def __init__(self, boto_session: Session | None = None) -> None:
        """boto_session: the user's; None: one of our own, which `renew` can replace.

        Raises EngineError for what isn't a session of boto3.
        """
        if boto_session is not None and not (hasattr(boto_session, "region_name") and hasattr(boto_session, "client")):
            raise EngineError(
                f"boto_session is {seen(boto_session)}; expected a boto3.Session, e.g. "
                "boto3.Session(profile_name='research', region_name='us-west-2')"
            )
        self._users = boto_session
        self._session: Session | None = None
        self._clients: dict[str, Client] = {}
        self._lock = threading.Lock()
        self.leaving = threading.Event()
        """Set by somebody who no longer waits: calls in other threads aren't tried again."""

    @property
    def session(self) -> Session:
        """The session. Raises EngineError for a profile that doesn't exist."""
        if self._users is not None:
            return self._users
        if self._session is None:
            self._session = _new_session()
        return self._session

    @property
    def region(self) -> str | None:
        """The region of the user's session; else of the environment, else of the profile. None: nobody says.

        Raises EngineError for a profile that doesn't exist.
        """
        if self._users is not None:
            return self._users.region_name or aws_region()
        of_profile: str | None = self.session.region_name
        return aws_region() or of_profile

    def client(self, service: str) -> Client:
        """The client of `service`, e.g. "s3". Raises EngineError where no region is known."""
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._new_client(service)
            return self._clients[service]

    def renew(self) -> None:
        """Forget clients and our own session, so that the next call reads credentials again from where they come."""
        with self._lock:
            self._clients.clear()
            self._session = None

    def is_real(self, service: str) -> bool:
        """Whether `service` is Amazon's own, not a stand-in that an endpoint variable points to."""
        host = urlsplit(self.client(service).meta.endpoint_url).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))

    def partition(self) -> str:
        """``aws``, ``aws-cn``, ``aws-us-gov``, ...: the part of Amazon's world that the region is in."""
        from botocore.exceptions import UnknownRegionError

        try:
            return str(self.session.get_partition_for_region(self.region or ""))
        except UnknownRegionError:
            return "aws"

    def _new_client(self, service: str) -> Client:
        from botocore.config import Config

        if self.region is None:
            raise EngineError(
                "no region is known for SageMaker; set AWS_REGION, or `region` in the profile, or give "
                "boto_session=boto3.Session(region_name=...)"
            )
        # Retries are `asking`'s: a layer below it would hide throttling, and multiply the waiting.
        config = Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=CONNECTIONS,
            user_agent_extra="hdp-train",
        )
        return self.session.client(service, region_name=self.region, config=config)


def _new_session() -> Session:
    import boto3
    import botocore.session
    from botocore.exceptions import BotoCoreError

    try:
        core = botocore.session.get_session()
        core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
        return boto3.Session(botocore_session=core)
    except BotoCoreError as exc:  # AWS_PROFILE names none
        raise EngineError(f"boto3 can't make a session: {exc}; check AWS_PROFILE and ~/.aws/config") from exc


@cache
def _loader(data_path: str | None) -> Any:
    """Reads the services' models, and keeps them: SageMaker's has some megabytes, and a session may not last."""
    from botocore.loaders import create_loader

    return create_loader(data_path)
