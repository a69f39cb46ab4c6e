"""Every exception that the project raises.

::

    HdpError
    |-- SpecError              the user's call is wrong; lists every fault found (hdp.estimator)
    |-- EngineError            an engine can't do what was asked (missing privilege, tool, service)
    |-- JobNotFound            no job of that name
    |-- TrainingJobFailed      the job ended as Failed; carries the first cause
    |-- TrainingJobStopped     the job was stopped before it completed
    |-- ComparisonFailed       a job of a comparison failed; has what was run until then (hdp.estimator)
    |-- ContractError          a contract file in the container is missing or malformed
    |-- ChannelError           an input channel can't be provided
    |-- LaunchError            a host could not start its ranks, or lost touch with the others
    |-- InvalidMetric          a script's call of hdp.metrics is wrong
    |-- EmulationError         this machine can't emulate hosts, or no longer does (hdp.runtime.emulation)
    `-- CollectiveError        a collective operation failed
        |-- CollectiveMismatch ranks called different operations
        |-- CollectiveTimeout  ranks are missing
        |-- PeerLost           a rank or a host is gone
        `-- InvalidCollective  this rank's call is wrong; nothing was started

A ``CollectiveError`` is *collateral* unless the process that raises it caused it: a launcher that looks for the
first cause of a failed job passes over collateral exceptions while it has another one. See `is_collateral`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence


class HdpError(Exception):
    """Root of every exception that the project raises."""

    collateral = False


class SpecError(HdpError, ValueError):
    """The user's call is wrong. ``faults`` has one line for each thing to change."""

    def __init__(self, faults: Sequence[str], what: str = "this call") -> None:
        self.faults = tuple(faults)
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        super().__init__("\n".join([f"{count} in {what}; nothing was started:", *(f"  - {f}" for f in self.faults)]))


class EngineError(HdpError):
    """An engine can't do what was asked: a privilege, a tool or a service is missing."""


class JobNotFound(HdpError, LookupError):
    """No job of that name is known to the engine."""


class TrainingJobFailed(HdpError):
    """The job ended as Failed. ``reason`` is its failure reason, ``job_name`` its name."""

    def __init__(self, job_name: str, reason: str, hint: str = "") -> None:
        self.job_name = job_name
        self.reason = reason
        super().__init__(f"job {job_name} failed: {reason}" + (f"\n{hint}" if hint else ""))


class TrainingJobStopped(HdpError):
    """The job was stopped before it completed: by a user, or because its time was up."""

    def __init__(self, job_name: str, reason: str, hint: str = "") -> None:
        self.job_name = job_name
        self.reason = reason
        super().__init__(f"job {job_name} was stopped: {reason}" + (f"\n{hint}" if hint else ""))


class ComparisonFailed(HdpError):
    """A job of a comparison failed. ``label`` says of which variant, ``comparison`` has what was run until then."""

    def __init__(self, label: str, repeat: int, reason: str, comparison: object) -> None:
        self.label = label
        self.reason = reason
        self.comparison = comparison
        hint = "what was run until then: .comparison of this exception; keep_going=True goes on with the other jobs"
        super().__init__(f"variant {label!r}, repeat {repeat}: {reason}\n{hint}")


class ContractError(HdpError):
    """A contract file in the container is missing or malformed."""


class ChannelError(HdpError):
    """An input channel can't be provided."""


class LaunchError(HdpError):
    """A host could not start its ranks, or lost touch with the other hosts."""


class InvalidMetric(HdpError, ValueError):
    """A script's call of `hdp.metrics` is wrong; nothing was written."""


class CollectiveError(HdpError, RuntimeError):
    """A collective operation failed. Contents of the output buffers are undefined."""

    collateral = True
    ag_pass_through = True
    """TensorFlow's AutoGraph raises what has this as it is, and else an error of its own with the text."""


class CollectiveMismatch(CollectiveError):
    """Ranks called different operations where one was expected; the message has each rank's view."""

    collateral = False


class CollectiveTimeout(CollectiveError, TimeoutError):
    """Not every rank called the operation in time; the message names the missing ones."""


class PeerLost(CollectiveError, ConnectionError):
    """A rank or a host of the group is gone; the message names it. The group can't be used any more."""


class InvalidCollective(CollectiveError, ValueError):
    """This rank's call is wrong (dtype, root, group, buffer); nothing was started and the group is fine."""

    collateral = False


def is_collateral(exc: BaseException) -> bool:
    """Whether `exc` only says that something else in the job failed first.

    True where it, or an exception that it was raised from or while handling, is one of our collateral errors. A
    framework that catches ours and raises its own keeps only the text, as torch does in a future's callback
    (``RuntimeError: Got the following error when running the callback: PeerLost: rank 1 ...``), and as TensorFlow
    does with what its operations report. So a RuntimeError or a TensorFlow error counts whose text has a collateral
    class's name and a colon, or gloo's, NCCL's or Horovod's words for a peer that is gone.
    """
    return any(_is_collateral_itself(link) for link in _chain(exc))


#: What another collective library says when a peer is gone. Its types don't tell, so its own words have to.
_PEER_GONE = (
    re.compile(r"gloo/transport.*(closed|reset) by peer", re.DOTALL),
    re.compile(r"NCCL.*remote process exited", re.DOTALL),
    re.compile(r"Horovod has been shut down"),
)


def _is_collateral_itself(exc: BaseException) -> bool:
    if isinstance(exc, HdpError):
        return exc.collateral
    if not isinstance(exc, RuntimeError) and not _is_tensorflows(exc):
        return False
    try:
        text = str(exc)
    except Exception:  # its class is the user's, and may be broken
        return False
    named = re.search(rf"\b({'|'.join(_collateral_names(HdpError))}):", text)
    return bool(named) or any(words.search(text) for words in _PEER_GONE)


def _is_tensorflows(exc: BaseException) -> bool:
    """By where its class, or one that it derives from, was made: nothing is imported to find out."""
    return any(made.__module__.partition(".")[0] == "tensorflow" for made in type(exc).__mro__)


def _collateral_names(root: type[HdpError]) -> Iterator[str]:
    if root.collateral:
        yield root.__name__
    for below in root.__subclasses__():
        yield from _collateral_names(below)


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """`exc` and what led to it; a chain that bites its own tail ends."""
    seen: list[BaseException] = []
    link: BaseException | None = exc
    while link is not None and all(link is not old for old in seen):
        seen.append(link)
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
