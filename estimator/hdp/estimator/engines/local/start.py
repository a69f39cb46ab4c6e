"""Starts the hosts of a job: addresses, namespaces, one agent each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from hdp.contract.errors import EngineError
from hdp.contract.uris import local_path, scheme
from hdp.estimator.engines.local import hostns, isolation, lending, store, trees
from hdp.estimator.engines.local.addresses import Block
from hdp.estimator.engines.local.gpus import devices_of, usable_gpus
from hdp.estimator.engines.local.hostns import HostNamespace, Support
from hdp.estimator.engines.local.localjob import LocalJob
from hdp.estimator.engines.local.networks import HostNetwork
from hdp.estimator.engines.local.watch import ProcessAgent

AGENT_MODULE = "hdp.runtime.launch.agent"
PROGRAM_MODULE = "hdp.runtime.launch.program"


def start_agents(job: LocalJob, run_dir: Path, network: HostNetwork) -> dict[str, ProcessAgent]:
    """Start every host's agent, in the hosts' order; they die with this process. Raises EngineError, OSError.

    run_dir: becomes the folder of the hosts' sockets, whoever calls this removes it.
    """
    block = network.place()
    support = _isolate(job, block)
    _make_run_folder(job, run_dir)
    settings = [_settings(job, host, block, run_dir, support, network.interface) for host in job.hosts]
    return {s.host: ProcessAgent(_start_agent(job, s, support, network)) for s in settings}


def _make_run_folder(job: LocalJob, folder: Path) -> None:
    """Recorded before it is made, so that whoever finds the job dead can remove it."""
    store.update(job.folder, lambda s: replace(s, run_dir=str(folder)))
    folder.mkdir(mode=0o700)


def _isolate(job: LocalJob, block: Block) -> Support:
    """Decide on namespaces, and write what they need. Raises EngineError where they are required and impossible."""
    opt_ml_exists = trees.OPT_ML.exists()
    wanted = job.options.namespaces
    found = hostns.probe(job.folder.path) if wanted != "off" else Support("none")
    decided = isolation.decide(wanted, found, _needed(job), opt_ml_exists)
    if decided.means == "none" and wanted == "required":
        raise EngineError(f'namespaces="required", but hosts can\'t have them here: {decided.reason}; see `hdp doctor`')
    machines = Path("/etc/hosts")
    original = machines.read_text(encoding="utf-8", errors="replace") if machines.exists() else ""
    job.folder.etc_hosts.write_text(trees.etc_hosts(original, job.hosts, block), encoding="utf-8")
    different = isolation.differences(decided, opt_ml_exists, job.options.network is not None)
    store.update(job.folder, lambda s: replace(s, environment_differences=different))
    return decided


def _needed(job: LocalJob) -> list[Path]:
    """Paths of this machine that the hosts use."""
    sources = [c.get("DataSource", {}).get("S3DataSource", {}) for c in job.training_job.get("InputDataConfig") or ()]
    uris = [source.get("S3Uri", "") for source in [*sources, job.training_job.get("CheckpointConfig") or {}]]
    files = [local_path(uri) for uri in uris if scheme(uri) == "file"]
    return [job.folder.path, Path(job.options.python), Path(sys.prefix), *files]


def _start_agent(
    job: LocalJob, settings: trees.AgentSettings, support: Support, network: HostNetwork
) -> subprocess.Popen[bytes]:
    host = settings.host
    root = job.folder.tree(host).root
    spec_file = job.folder.hosts / f"{host}.ns.json"
    environment = trees.agent_environment(settings, job.training_job.get("Environment", {}), os.environ)
    module = [PROGRAM_MODULE, *job.program] if job.program else [AGENT_MODULE]
    if job.program:  # what it calls python3 is the Python that stands for its image
        environment["PATH"] = f"{Path(job.options.python).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    hostns.save(HostNamespace(host, str(root), str(job.folder.etc_hosts), support.means), spec_file)
    with job.folder.log(host).open("ab") as log:
        if host == job.hosts[0]:
            log.writelines(f"{time.time():.6f} [{host}] {line}\n".encode() for line in job.preface)
            log.flush()
        return network.popen(
            host,
            hostns.argv(sys.executable, spec_file, [job.options.python, "-m", *module]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=lending.lend(job.options.python, job.folder.hosts / "lent", environment),
            cwd=root,
            start_new_session=True,
        )


def _settings(
    job: LocalJob, host: str, block: Block, run_dir: Path, support: Support, interface: str
) -> trees.AgentSettings:
    return trees.AgentSettings(
        job_name=job.folder.name,
        host=host,
        secret=job.folder.secret,
        base_dir=job.folder.tree(host).root if support.means == "none" else trees.OPT_ML,
        run_dir=run_dir / host,
        hosts=job.hosts,
        block=block,
        interface=interface,
        devices=devices_of(job.training_job, host, usable_gpus(os.environ)),
        stop_timeout_seconds=job.options.stop_timeout_seconds,
        start_timeout_seconds=job.options.start_timeout_seconds,
        encrypt=bool(job.training_job.get("EnableInterContainerTrafficEncryption", False)),
    )
