"""``engine_options={"network": ...}`` before anything starts: what is taken, what is refused, what a plan tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from engine_support import client_environment, request
from test_local_namespaces import forbidding, needs_forbidding

from hdp.contract import links
from hdp.contract.errors import SpecError
from hdp.contract.hyperparameters import encode
from hdp.estimator import Estimator
from hdp.estimator.cli import doctor
from hdp.estimator.engines.local import networks, options
from hdp.estimator.engines.local.engine import LocalEngine
from hdp.estimator.engines.local.home import Home
from hdp.estimator.engines.local.hostns import Support

SLOW = {"rate": "1gbit", "hosts": {"algo-2": "100mbit"}}
CAN = Support("root")


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (None, None),
        ("1gbit", {"rate": "1gbit", "hosts": {}}),
        ({}, {"rate": None, "hosts": {}}),
        ({"rate": None}, {"rate": None, "hosts": {}}),
        (SLOW, SLOW),
        ({"hosts": {"algo-1": None}}, {"rate": None, "hosts": {"algo-1": None}}),
        (options.NetworkOptions(rate="250mbit"), {"rate": "250mbit", "hosts": {}}),
    ],
)
def test_what_a_network_may_be(given: object, taken: object) -> None:
    parsed, faults = options.parse({"network": given})
    assert (parsed["network"], faults) == (taken, ())
    assert options.parse(parsed) == (parsed, ()), "a plan's options can be submitted"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            1000,
            'engine_options.network: 1000 (int) is no network; expected a rate such as "1gbit", or {"rate": "1gbit", '
            '"hosts": {"algo-2": "100mbit"}}',
        ),
        (
            "1 gigabit",
            "engine_options.network: rate '1 gigabit' is not a rate as tc writes it; give a number and one of bit, "
            "kbit, mbit, gbit, kibit, mibit, gibit",
        ),
        (
            {"rate": "1Gbps"},
            "engine_options.network.rate: '1Gbps' is in bytes a second, which makes 8 Gbit/s; write bits, e.g. 1gbit",
        ),
        (
            {"rate": "100gbit"},
            "engine_options.network.rate: rate '100gbit' is out of range; a link has 8kbit to 34gbit",
        ),
        ({"rate": 1}, "engine_options.network.rate is 1 (int); expected text"),
        ({"rates": "1gbit"}, "engine_options.network.rates is unknown; did you mean 'rate'? (known: rate, hosts)"),
        (
            {"hosts": {"algo-2": "fast"}},
            "engine_options.network.hosts.algo-2: rate 'fast' is not a rate as tc writes it; give a number and one of "
            "bit, kbit, mbit, gbit, kibit, mibit, gibit",
        ),
        ({"hosts": ["algo-2"]}, "engine_options.network.hosts is ['algo-2'] (list); expected a dictionary"),
    ],
)
def test_what_a_network_may_not_be(given: object, said: str) -> None:
    assert options.parse({"network": given})[1] == (said,)


@pytest.fixture
def able(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> LocalEngine:
    """An engine on a machine that can make networks, whatever this one can."""
    monkeypatch.setattr(networks, "probe", lambda: CAN)
    return engine


def told(engine: LocalEngine, network: object, num_hosts: int = 2, **more: object) -> tuple[list[str], list[str]]:
    """Notes and faults of a job with that network."""
    given = options.parse({"network": network, "namespaces": "off"})[0]
    found = engine.capabilities(request("digits", num_hosts, None, **more).training_job, given)
    return list(found.notes), list(found.faults)


@pytest.mark.parametrize(
    ("network", "rates"),
    [
        ("1gbit", "1gbit"),
        (SLOW, "1gbit, but 100mbit for algo-2"),
        ({"hosts": {"algo-2": "10mbit"}}, "no set rate, but 10mbit for algo-2"),
        ({"rate": "1gbit", "hosts": {"algo-2": "1mbit", "algo-1": None}}, "no set rate for algo-1, 1mbit for algo-2"),
    ],
)
def test_a_plan_tells_each_links_rate_and_that_hosts_are_alone(able: LocalEngine, network: object, rates: str) -> None:
    notes, faults = told(able, network)
    assert faults == []
    assert notes[0] == f"network: each host has a link of its own, in each direction {rates}"
    assert "no S3, no package index" in notes[1]
    assert not any("loopback" in note or "don't resolve" in note for note in notes)


def test_a_job_without_a_network_is_told_nothing_of_it(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it tried out whether there could be one."""
    monkeypatch.setattr(networks, "probe", lambda: pytest.fail("the machine was asked"))
    notes, faults = told(engine, None)
    assert faults == [] and "loopback network" in notes[0] and not any("network:" in note for note in notes)


S3 = {"ChannelName": "train", "DataSource": {"S3DataSource": {"S3Uri": "s3://b/p"}}}


@pytest.mark.parametrize(
    ("network", "num_hosts", "more", "said"),
    [
        (
            {"hosts": {"algo2": "1mbit"}},
            2,
            {},
            "engine_options.network.hosts: 'algo2' isn't one of algo-1, algo-2; did you mean 'algo-2'?",
        ),
        (
            "1gbit",
            links.MAX_HOSTS + 1,
            {},
            "engine_options.network: this job has 129 hosts, and a network has 1 to 128; leave it out for more",
        ),
        (
            "1gbit",
            2,
            {"InputDataConfig": [S3]},
            "channel 'train': 's3://b/p' can't be reached by hosts with engine_options.network, which reach nothing "
            "outside; copy it here: file:///a/path",
        ),
        (
            "1gbit",
            2,
            {"HyperParameters": {"sagemaker_submit_directory": encode("s3://b/code.tar.gz")}},
            "source_dir: 's3://b/code.tar.gz' can't be reached by hosts with engine_options.network, which reach "
            "nothing outside; give a folder of this machine",
        ),
    ],
)
def test_what_such_hosts_could_not_do_is_refused(
    able: LocalEngine, network: object, num_hosts: int, more: dict[str, object], said: str
) -> None:
    """Both by plan and, where somebody submits a request of his own, at submission."""
    assert told(able, network, num_hosts, **more)[1] == [said]
    with pytest.raises(SpecError) as raised:
        able.submit(request("digits", num_hosts, {"network": network}, **more))
    assert raised.value.faults == (said,) and able.list() == []


def test_artifacts_may_go_to_s3(able: LocalEngine) -> None:
    """The supervisor uploads them, and it is outside."""
    assert told(able, "1gbit", OutputDataConfig={"S3OutputPath": "s3://b/out"})[1] == []


def test_the_largest_network_is_the_emulations(able: LocalEngine) -> None:
    pytest.importorskip("pyroute2", reason="pyroute2 is not installed (pip install 'hdp-train[emulation]')")
    from hdp.runtime.emulation import network

    assert network.MAX_HOSTS == links.MAX_HOSTS


# -- a machine that can't ------------------------------------------------------------------------------------------


@pytest.fixture
def without_pyroute2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that this process starts can't import pyroute2."""
    (tmp_path / "paths").mkdir()
    (tmp_path / "paths" / "pyroute2.py").write_text("raise ImportError('no pyroute2')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "paths"))


REMEDY = "is missing: pip install 'hdp-train[emulation]'"


def test_without_pyroute2_a_job_is_refused_with_the_remedy(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_pyroute2: None
) -> None:
    """plan() and fit() alike, together with other faults; nothing is made."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    estimator = Estimator(entry_point="train.py", instance_count=2, engine_options={"network": "1gbit"})
    for ask in (estimator.plan, estimator.fit):
        with pytest.raises(SpecError) as raised:
            ask(job_name="bad_name")
        assert [REMEDY in fault for fault in raised.value.faults] == [False, True]
        assert raised.value.faults[1].startswith("engine_options.network: hosts can't be emulated here: ")
    assert not home.path.exists()


def test_doctor_says_what_networks_need(without_pyroute2: None) -> None:
    (finding,) = [f for f in doctor.examine() if f.what == "hosts' own networks"]
    assert (finding.grade, REMEDY in finding.detail) == ("note", True)
    assert finding.remedy == 'only for engine_options={"network": ...}'


PLAN = """
import os, sys
from hdp.contract.errors import SpecError
from hdp.estimator import Estimator
from hdp.estimator.cli import doctor
os.chdir(sys.argv[1])
open("train.py", "w").close()
try:
    Estimator(entry_point="train.py", engine_options={"network": "1gbit"}).plan()
except SpecError as exc:
    print(*exc.faults, sep="\\n")
print(doctor._networks())
"""


@needs_forbidding
def test_without_the_privilege_a_job_is_refused_with_the_remedy(home: Home, tmp_path: Path) -> None:
    """Where the kernel forbids every namespace. Expected: what was tried, what it needs; doctor has both, too."""
    pytest.importorskip("pyroute2", reason="pyroute2 is not installed (pip install 'hdp-train[emulation]')")
    command = [*forbidding(), sys.executable, "-c", PLAN, str(tmp_path)]
    environment = client_environment(home.path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    fault, finding = done.stdout.splitlines()
    assert fault.startswith("engine_options.network: hosts can't be emulated here: could not make a ")
    assert fault.endswith("; see `hdp doctor`")
    assert "It needs a kernel with CONFIG_NET_NS, and free namespaces" in fault and "It needs a kernel" in finding
    assert 'remedy=\'only for engine_options={"network": ...}: ' in finding
