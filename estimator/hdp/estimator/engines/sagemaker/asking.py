"""One call of an AWS service, and what becomes of it: an answer, one more try, or an error that says what to do.

Throttling, answers with status 500 and above, and lost connections are tried again with growing pauses. Expired
credentials are read again from where they come (a profile that `aws sso login` renews, a role's metadata). How long is
the caller's: seconds for what a person waits for, half an hour for a job that is followed, since it runs on meanwhile.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from hdp.contract.errors import EngineError
from hdp.estimator.engines.sagemaker.aws import Aws
from hdp.estimator.engines.sagemaker.remedies import remedy_for

LOG = logging.getLogger(__name__)

Trouble = Literal["throttled", "unreachable", "expired"]

_THROTTLED = frozenset(
    {
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "SlowDown",
    }
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_EXPIRED_HERE = ("SSOTokenLoadError", "UnauthorizedSSOTokenError", "TokenRetrievalError", "CredentialRetrievalError")
_WORDS = {
    "throttled": "asks for fewer calls",
    "unreachable": "doesn't answer",
    "expired": "says that the credentials have expired (renew them, e.g. with `aws sso login`)",
}


@dataclass(frozen=True)
class Patience:
    """How long one call is tried again."""

    total: timedelta
    first_seconds: float = 0.5
    longest_seconds: float = 20.0
    awaits_credentials: bool = False
    """Whether somebody may renew expired ones meanwhile. Reading them again is tried once in any case."""


#: For what is only worth a look.
GLANCE = Patience(timedelta(seconds=10))
#: For what a person waits for.
BRIEF = Patience(timedelta(minutes=2))
#: For a job that is known to run: it doesn't need us.
LONG = Patience(timedelta(minutes=30), awaits_credentials=True)


class Refused(EngineError):
    """The service refused a call for good. ``code`` is its error's code, ``said`` its message."""

    def __init__(self, message: str, code: str, said: str) -> None:
        self.code = code
        self.said = said
        super().__init__(message)


class Unanswered(EngineError):
    """There was no answer in time, though the call itself may be fine."""


def ask(aws: Aws, service: str, operation: str, patience: Patience = BRIEF, /, **arguments: Any) -> dict[str, Any]:
    """The answer of `operation`, in boto3's spelling, e.g. ``ask(aws, "s3", "head_object", ...)``.

    Raises Refused for an error that another try won't change, Unanswered when `patience` has run out.
    """

    def call() -> dict[str, Any]:
        answer: dict[str, Any] = getattr(aws.client(service), operation)(**arguments)
        return answer

    return _Attempts(aws, f"{service} {operation}", patience).until_answered(call)


def trouble_of(exc: Exception) -> Trouble | None:
    """What another try may overcome; None: nothing."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    if isinstance(exc, exceptions.ClientError):
        return _trouble_of_code(code_of(exc), exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if type(exc).__name__ in _EXPIRED_HERE:
        return "expired"
    lost = (
        exceptions.ConnectionError,
        exceptions.HTTPClientError,
        exceptions.IncompleteReadError,
        ResponseParserError,
    )
    return "unreachable" if isinstance(exc, lost) else None


def code_of(exc: Exception) -> str:
    """The service's error code, or the name of boto3's own exception."""
    response = getattr(exc, "response", None)
    if not isinstance(response, dict):
        return type(exc).__name__
    return str(response.get("Error", {}).get("Code", "")) or type(exc).__name__


def _trouble_of_code(code: str, status: int) -> Trouble | None:
    if code in _EXPIRED:
        return "expired"
    if code in _THROTTLED or status == 429:
        return "throttled"
    return "unreachable" if status >= 500 else None


class _Attempts:
    def __init__(self, aws: Aws, what: str, patience: Patience) -> None:
        self.aws, self.what, self.patience = aws, what, patience
        self._deadline = time.monotonic() + patience.total.total_seconds()
        self._pause = patience.first_seconds
        self._renewed = False
        self._told: set[Trouble] = set()

    def until_answered(self, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        while True:
            try:
                return call()
            except (ClientError, BotoCoreError, ResponseParserError) as exc:
                self._consider(exc)

    def _consider(self, exc: Exception) -> None:
        """Return when the call is to be tried again. Raises what the caller should know otherwise."""
        trouble = trouble_of(exc)
        if trouble is None:
            raise refusal(self.what, exc) from exc
        if trouble == "expired":
            self.aws.renew()
            if not self._renewed:
                self._renewed = True
                return
            if not self.patience.awaits_credentials:
                raise refusal(self.what, exc) from exc
        self._wait(trouble, exc)

    def _wait(self, trouble: Trouble, exc: Exception) -> None:
        if time.monotonic() + self._pause > self._deadline:
            raise Unanswered(
                f"{self.what}: no answer for {self.patience.total.total_seconds():.0f} s; the last try: {exc}"
                f"{_hint(code_of(exc), str(exc))}"
            ) from exc
        if trouble not in self._told and self._pause > self.patience.first_seconds:
            self._told.add(trouble)
            LOG.warning("%s %s; trying again: %s", self.what, _WORDS[trouble], exc)
        # A little disorder, so that many clients that were throttled together don't come back together.
        if self.aws.leaving.wait(self._pause * random.uniform(0.75, 1.0)):
            raise Unanswered(f"{self.what}: nobody waits for the answer any more") from exc
        self._pause = min(self._pause * 2, self.patience.longest_seconds)


def refusal(what: str, exc: Exception) -> Refused:
    """The error that a user reads for `exc`, with what to do about it where that is known."""
    response = getattr(exc, "response", None)
    said = str(response.get("Error", {}).get("Message", "")) if isinstance(response, dict) else str(exc)
    code = code_of(exc)
    return Refused(f"{what} was refused: {code}: {said or exc}{_hint(code, said)}", code, said)


def _hint(code: str, said: str) -> str:
    remedy = remedy_for(f"{code}: {said}")
    return f"\n{remedy}" if remedy else ""
