"""What the coordinator decides, without sockets or clocks: messages in, messages out.

::

    agent -> coordinator               coordinator -> agents
    hello{host, local_size}            world{hosts: [{name, address, local_size}]}   all hosts are present; those
                                                                                     without ranks have size 0
    ready{}   channels, code are there go{}                                          all hosts are ready
    failure{failure}                   alarm{collateral}  at once: something failed, the cause follows; again with
                                                          the first failure that isn't collateral
                                       cause{failure}     the first cause, once all ended or after COLLECT_SECONDS
    stop{}    this host was told to    stop{}             every host stops
    done{ok, exit_codes}  all its      all_done{}         every host is done
              ranks ended
    start{to, id, command}             start{...}         to one host: mpirun, on the first host, wants this started
    exit{id, code, error}              exit{...}          to the first host: that has ended
    launcher_ended{code}               launcher_ended{}   mpirun has ended

As long as only collateral failures are known, the cause waits for the culprit, COLLATERAL_SECONDS at most: a process
can take seconds to end after it has left the others. Agents let their ranks run longer then, too.

A host that breaks off without ``done`` is a failure of that host. One that never comes is named when the time is up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Optional

from hdp.contract.outcome import Failure
from hdp.runtime.launch.accusation import find_cause
from hdp.runtime.launch.wire import Message, WireError

#: How long failures are collected before the first cause is told; ranks that fail because of another one do so in
#: milliseconds, but a loaded host may report late.
COLLECT_SECONDS = 3.0
#: The same while all of them are collateral. Ranks that still run then have been sent SIGTERM and SIGKILL (`Timing`).
COLLATERAL_SECONDS = 30.0

#: (host, or None for every host that is present; message)
Outgoing = list[tuple[Optional[str], Message]]


class Coordination:
    """State of one job, as far as its hosts have to agree on it."""

    def __init__(self, hosts: Sequence[str], addresses: Mapping[str, str], start_timeout: float, now: float) -> None:
        self._hosts = tuple(hosts)
        self._addresses = dict(addresses)
        self._start_timeout = start_timeout
        self._start_deadline = now + start_timeout
        self._sizes: dict[str, int] = {}
        self._ready: set[str] = set()
        self._done: set[str] = set()
        self._failures: list[Failure] = []
        self._exit_codes: dict[int, int | None] = {}
        self._first_failure_at: float | None = None
        self.cause: Failure | None = None
        self._stopping = False
        self.finished = False
        """all_done was sent."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Hosts that never came."""
        return tuple(h for h in self._hosts if h not in self._sizes)

    @property
    def awaited(self) -> tuple[str, ...]:
        """Hosts that may still come, and have to hear how the job has ended. Whoever stops the job tells every host."""
        return () if self._stopping else self.missing

    def hello(self, host: str, local_size: int) -> Outgoing:
        """`host` is present. Raises WireError if it isn't of this job or is present already."""
        if host not in self._hosts:
            raise WireError(f"host {host!r} isn't one of this job's hosts {list(self._hosts)}")
        if host in self._sizes:
            raise WireError(f"host {host!r} is present already")
        self._sizes[host] = local_size
        self.finished = False  # one that comes when all others were done has to be done too, and to hear of it
        if self.cause is not None:  # too late: the job has failed
            return [(host, _cause(self.cause))]
        out: Outgoing = [(host, {"type": "stop"})] if self._stopping else []
        return out + ([(None, self._world())] if len(self._sizes) == len(self._hosts) else [])

    def message(self, host: str, message: Message, now: float) -> Outgoing:
        """Handle what `host` says."""
        kind = message["type"]
        if kind == "done":
            self._done.add(host)
            self._exit_codes.update((int(rank), code) for rank, code in message.get("exit_codes", {}).items())
            return self._settle(now)
        handle: Mapping[str, Callable[[], Outgoing]] = {
            "ready": lambda: self._on_ready(host),
            "failure": lambda: self._on_failure(_failure(message), now),
            "stop": self._on_stop,
            "start": lambda: self._of_launcher(host, message),
            "launcher_ended": lambda: self._of_launcher(host, message),
            "exit": lambda: [(self._first, message)],
            "pong": lambda: [],
        }
        if kind not in handle:
            raise WireError(f"host {host!r} sent a message of the unknown type {kind!r}")
        return handle[kind]()

    def lost(self, host: str, why: str, wall_time: float, now: float) -> Outgoing:
        """The connection to `host` has ended. Expected once it is done, or stops."""
        if host in self._done:
            return []
        self._done.add(host)
        if self._stopping:
            return self._settle(now)
        what = f"LaunchError: lost contact with host {host} ({why}); see the end of its log"
        return self._on_failure(Failure(host, None, wall_time, exception=what), now) + self._settle(now)

    def tick(self, wall_time: float, now: float) -> Outgoing:
        """To be called now and then: deadlines."""
        missing = self.missing
        out: Outgoing = []
        if missing and now >= self._start_deadline and not self._failures and not self._stopping:
            what = (
                f"LaunchError: {', '.join(missing)} did not come within {self._start_timeout:g} s "
                "(HDP_START_TIMEOUT_SECONDS); see the logs of these hosts"
            )
            out = self._on_failure(Failure(missing[0], None, wall_time, exception=what), now)
        return out + self._settle(now)

    @property
    def _first(self) -> str:
        """The first host with ranks, where mpirun runs."""
        return next((host for host in self._hosts if self._sizes.get(host)), self._hosts[0])

    def _of_launcher(self, host: str, message: Message) -> Outgoing:
        """What only the host where mpirun runs may say."""
        if host != self._first:
            raise WireError(f"host {host!r} sent {message['type']!r}, which only {self._first} may")
        if message["type"] == "launcher_ended":
            return [(None, message)]
        if message["to"] in self._sizes and message["to"] not in self._done:
            return [(str(message["to"]), message)]
        gone = {"type": "exit", "id": message["id"], "code": 1, "error": f"host {message['to']} has ended"}
        return [(host, gone)]

    def _on_ready(self, host: str) -> Outgoing:
        self._ready.add(host)
        complete = len(self._ready) == len(self._hosts) and not self._failures
        return [(None, {"type": "go"})] if complete else []

    def _on_failure(self, failure: Failure, now: float) -> Outgoing:
        if self._stopping and not self._failures:
            return []  # ranks fail because others were stopped; that isn't why the job ended
        is_news = not self._failures or (self._only_collateral and not failure.collateral)
        self._failures.append(failure)
        self._first_failure_at = now if self._first_failure_at is None else self._first_failure_at
        return [(None, {"type": "alarm", "collateral": failure.collateral})] if is_news else []

    @property
    def _only_collateral(self) -> bool:
        return all(failure.collateral for failure in self._failures)

    def _collected(self, now: float) -> bool:
        """Whether something has failed, and there was time enough for other failures to be told."""
        patience = COLLATERAL_SECONDS if self._only_collateral else COLLECT_SECONDS
        return self._first_failure_at is not None and now >= self._first_failure_at + patience

    def _on_stop(self) -> Outgoing:
        if self._stopping:
            return []
        self._stopping = True
        return [(None, {"type": "stop"})]

    def _settle(self, now: float) -> Outgoing:
        out: Outgoing = []
        present_done = set(self._sizes) <= self._done
        if self._failures and self.cause is None and (present_done or self._collected(now)):
            self.cause = find_cause(self._failures, self._exit_codes)
            assert self.cause is not None
            out.append((None, _cause(self.cause)))
        everyone = len(self._sizes) == len(self._hosts) or self.cause is not None or self._stopping
        if present_done and everyone and not self.finished:
            self.finished = True
            out.append((None, {"type": "all_done"}))
        return out

    def _world(self) -> Message:
        hosts = [{"name": h, "address": self._addresses.get(h, h), "local_size": self._sizes[h]} for h in self._hosts]
        return {"type": "world", "hosts": hosts}


def failure_message(failure: Failure) -> Message:
    """`failure` as an agent tells it."""
    return {"type": "failure", "failure": asdict(failure)}


def read_cause(message: Message) -> Failure:
    """The failure in a cause message."""
    return _failure(message)


def _cause(failure: Failure) -> Message:
    return {"type": "cause", "failure": asdict(failure)}


def _failure(message: Mapping[str, Any]) -> Failure:
    try:
        return Failure(**message["failure"])
    except (KeyError, TypeError) as exc:
        raise WireError(f"a failure that can't be read: {exc}") from exc
