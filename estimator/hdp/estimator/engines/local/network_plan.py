"""Hosts with a network of their own, before anything starts: each link's rate, what is refused, what is told. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hdp.contract.hyperparameters import decode
from hdp.contract.links import MAX_HOSTS
from hdp.contract.uris import scheme
from hdp.estimator.engines.local.kinds import hosts_of
from hdp.estimator.engines.local.options import LocalOptions, NetworkOptions
from hdp.estimator.faults import not_one_of

_OPTION = "engine_options.network"
_UNREACHABLE = f"can't be reached by hosts with {_OPTION}, which reach nothing outside"
_ALONE = (
    "hosts reach each other over their links and nothing else: no S3, no package index for requirements.txt, nothing "
    "that listens on this machine; files of this machine are there"
)


@dataclass(frozen=True)
class Told:
    """What is to be said about the network of a job's hosts."""

    notes: tuple[str, ...]
    faults: tuple[str, ...]
    """Whether this machine can make it isn't asked here."""


def told(training_job: Mapping[str, Any], network: object) -> Told:
    """What a person should know before the job starts. network: the valid engine option."""
    wanted = LocalOptions.model_validate({"network": network}).network or NetworkOptions()
    hosts = hosts_of(training_job)
    faults = (*_too_many(hosts), *_misspelt(wanted, hosts), *_out_of_reach(training_job))
    return Told((_described(wanted, hosts), _ALONE), faults)


def rates_of(network: NetworkOptions, hosts: Sequence[str]) -> dict[str, str | None]:
    """Rate of each host's link, as it was written; None: not shaped."""
    return {host: network.hosts.get(host, network.rate) for host in hosts}


def _described(network: NetworkOptions, hosts: Sequence[str]) -> str:
    rates = rates_of(network, hosts)
    usual = [_shown(network.rate)] if rates.keys() - network.hosts.keys() else []
    own = ", ".join(f"{_shown(rate)} for {host}" for host, rate in rates.items() if host in network.hosts)
    described = ", but ".join([*usual, *filter(None, [own])])
    return f"network: each host has a link of its own, in each direction {described}"


def _shown(rate: str | None) -> str:
    return rate or "no set rate"


def _misspelt(network: NetworkOptions, hosts: Sequence[str]) -> Iterator[str]:
    for name in network.hosts:
        if name not in hosts:
            yield not_one_of(f"{_OPTION}.hosts", name, hosts)


def _too_many(hosts: Sequence[str]) -> Iterator[str]:
    if len(hosts) > MAX_HOSTS:
        yield f"{_OPTION}: this job has {len(hosts)} hosts, and a network has 1 to {MAX_HOSTS}; leave it out for more"


def _out_of_reach(training_job: Mapping[str, Any]) -> Iterator[str]:
    """What the hosts themselves would download. Artifacts are no fault: the supervisor, outside, uploads them."""
    for channel in training_job.get("InputDataConfig") or ():
        uri = channel.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri", "")
        if scheme(uri) == "s3":
            yield f"channel {channel.get('ChannelName')!r}: {uri!r} {_UNREACHABLE}; copy it here: file:///a/path"
    code = training_job.get("HyperParameters", {}).get("sagemaker_submit_directory", "")
    if code and scheme(str(decode(code))) == "s3":
        yield f"source_dir: {str(decode(code))!r} {_UNREACHABLE}; give a folder of this machine"
