"""What a job has cost, as far as it can be told: billable seconds times hosts, and list prices where they are known.

Pure, but for reading the table of prices that comes with the package: a few common types, list prices of one region at
one date. They are a hint: discounts, taxes, storage and the price of spot capacity aren't in them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from hdp.estimator.engines.base import TERMINAL


@dataclass(frozen=True)
class Cost:
    """What one job used, and what that costs."""

    training_seconds: int
    """Wall-clock time, so far."""
    billable_seconds: int
    """Of it, what is billed for each host; with spot less than all."""
    hosts: Mapping[str, int]
    """Number of hosts by type."""
    final: bool
    """Whether the job has ended, and the service has said its numbers."""
    spot: bool = False
    dollars_per_hour: float | None = None
    """Of all hosts together by list price; None: a type's price isn't known."""
    priced: str = ""
    """Whose prices these are, and of when."""

    @property
    def host_seconds(self) -> int:
        """Billable seconds of all hosts together."""
        return self.billable_seconds * sum(self.hosts.values())

    @property
    def spot_savings(self) -> float | None:
        """The part that spot capacity has saved, 0 to 1; None: no spot, or nobody knows yet."""
        if not self.spot or not self.final or not self.training_seconds:
            return None
        return 1 - self.billable_seconds / self.training_seconds

    @property
    def dollars(self) -> float | None:
        """By list price; None: not known."""
        return None if self.dollars_per_hour is None else self.dollars_per_hour * self.billable_seconds / 3600

    def __str__(self) -> str:
        hosts = ", ".join(f"{count} x {kind}" for kind, count in self.hosts.items())
        parts = [f"{self.billable_seconds} s billable{'' if self.final else ' so far'} x {hosts}"]
        if self.spot_savings is not None:
            parts.append(f"spot saved {self.spot_savings:.0%}")
        if self.dollars is None:
            parts.append("no list price is known for it")
        else:
            digits = 2 if self.dollars >= 0.1 or not self.dollars else 4
            parts.append(f"about ${self.dollars:,.{digits}f} ({self.priced})")
        return "; ".join(parts)


def cost_of(answer: Mapping[str, Any], now: datetime, prices: Mapping[str, float] | None = None) -> Cost:
    """From a job's description. prices: dollars an hour by instance type; None: the table's."""
    final = answer["TrainingJobStatus"] in TERMINAL
    training = int(answer.get("TrainingTimeInSeconds", 0)) if final else _so_far(answer, now)
    hosts = _hosts(answer)
    table: Mapping[str, Any] = _table() if prices is None else {"dollars_per_hour": prices, "of": "your prices"}
    return Cost(
        training_seconds=training,
        billable_seconds=int(answer.get("BillableTimeInSeconds", training)) if final else training,
        hosts=hosts,
        final=final,
        spot=bool(answer.get("EnableManagedSpotTraining")),
        dollars_per_hour=_rate(hosts, table["dollars_per_hour"]),
        priced=table["of"],
    )


def _so_far(answer: Mapping[str, Any], now: datetime) -> int:
    start = answer.get("TrainingStartTime")
    return 0 if start is None else max(0, round((now - start).total_seconds()))


def _hosts(answer: Mapping[str, Any]) -> dict[str, int]:
    resources = answer.get("ResourceConfig", {})
    hosts: dict[str, int] = {}
    for group in resources.get("InstanceGroups") or [resources]:
        kind = str(group.get("InstanceType", "?"))
        hosts[kind] = hosts.get(kind, 0) + int(group.get("InstanceCount", 1))
    return hosts


def _rate(hosts: Mapping[str, int], prices: Mapping[str, float]) -> float | None:
    if any(kind not in prices for kind in hosts):
        return None
    return sum(count * prices[kind] for kind, count in hosts.items())


@cache
def _table() -> Any:
    return json.loads(files("hdp.estimator").joinpath("prices.json").read_text(encoding="utf-8"))
