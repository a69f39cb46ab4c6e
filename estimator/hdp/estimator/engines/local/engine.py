"""The local engine's face: what a client calls. It starts one detached supervisor a job and reads what that records."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdp.contract.errors import EngineError, LaunchError, SpecError
from hdp.contract.files import write_atomic
from hdp.contract.hyperparameters import decode
from hdp.contract.launch import from_hyperparameters
from hdp.contract.mpi import parse
from hdp.contract.mpirun import Installed, find, search_path
from hdp.estimator.engines.base import Capabilities, JobRequest, LogPage
from hdp.estimator.engines.local import hostns, isolation, lending, logfiles, processes, refusals, state, store
from hdp.estimator.engines.local.describe import describe, summary
from hdp.estimator.engines.local.gpus import gpus_by_group, usable_gpus
from hdp.estimator.engines.local.home import Home, JobDir, home_from
from hdp.estimator.engines.local.trees import OPT_ML

if TYPE_CHECKING:
    from hdp.estimator.engines.local.cleaning import Cleaned, Cleaning
    from hdp.estimator.engines.local.network_plan import Told

SUPERVISOR_MODULE = "hdp.estimator.engines.local.supervisor"
#: Importing pydantic from a cold disk can take seconds; a supervisor that needs a minute won't come.
SUPERVISOR_START_SECONDS = 60.0


class LocalEngine:
    """Runs jobs on this machine."""

    name = "local"

    def __init__(self, home: Home | None = None) -> None:
        """home: where jobs are kept; None: as the environment says, see `home.home_from`."""
        self.home = home or home_from()
        self._store = store.Store(self.home)

    @cached_property
    def _support(self) -> hostns.Support:
        return hostns.probe()

    @cached_property
    def _networks(self) -> hostns.Support:
        from hdp.estimator.engines.local import networks

        return networks.probe()

    def capabilities(
        self, training_job: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
    ) -> Capabilities:
        """What this machine can do for `training_job` with these `options`, and what differs from a real cluster."""
        usable = len(usable_gpus(os.environ))
        wanted = str((options or {}).get("namespaces", "auto"))
        decided = self._isolation(wanted, training_job, options or {})
        found = refusals.faults(training_job, usable, _types(options)) if training_job is not None else []
        told = _network(training_job, options or {})
        if told is not None and self._networks.means == "none":
            found.append(f"engine_options.network: {self._networks.reason}; see `hdp doctor`")
        installed, missing = _mpi(training_job or {}, options or {})
        return Capabilities(
            mpi=installed,
            mpi_missing=missing,
            interface="lo" if told is None else "eth0",
            gpus_by_group=gpus_by_group(training_job, usable) if training_job is not None else {},
            uri_schemes=refusals.URI_SCHEMES,
            input_modes=refusals.INPUT_MODES,
            chooses_master_port=True,
            notes=(*(told.notes if told else ()), *isolation.differences(decided, OPT_ML.exists(), told is not None)),
            faults=(*found, *(told.faults if told else ()), *isolation.faults(wanted, decided)),
        )

    def _isolation(
        self, wanted: str, training_job: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> hostns.Support:
        """How hosts would be kept apart. What the machine allows is only tried out where it matters."""
        support = hostns.Support("none") if wanted == "off" else self._support
        machine = [self.home.path, Path(str(options.get("python", sys.executable))), Path(sys.prefix)]
        return isolation.decide(wanted, support, [*machine, *isolation.sources(training_job or {})], OPT_ML.exists())

    def validate_options(self, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Options with defaults filled in, and the faults found."""
        from hdp.estimator.engines.local.options import parse

        return parse(options)

    def bundle_uri(self, digest: str, base: str = "") -> str:  # noqa: ARG002 (jobs here have one home)
        """Where the code archive with this digest is kept."""
        return self.home.bundle(digest).as_uri()

    def put_bundle(self, digest: str, archive: bytes, base: str = "", key_id: str | None = None) -> str:  # noqa: ARG002
        """Keep a code archive. Raises EngineError where it can't be written, ValueError where the digest is wrong."""
        if hashlib.sha256(archive).hexdigest() != digest:
            raise ValueError(f"the archive's SHA-256 isn't {digest}")
        self.home.make()
        target = self.home.bundle(digest)
        try:
            if target.exists():
                os.utime(target)
            else:
                write_atomic(target, archive)
        except OSError as exc:
            raise EngineError(f"the code archive can't be kept in {target}: {exc.strerror or exc}") from exc
        return self.bundle_uri(digest)

    def submit(self, request: JobRequest) -> None:
        """Start the job; return once its supervisor is on record."""
        options, faults = self.validate_options(request.engine_options)
        usable, types = len(usable_gpus(os.environ)), _types(options)
        faults = [*refusals.faults(request.training_job, usable, types), *faults]
        if not faults:
            told = _network(request.training_job, options)
            faults = list(told.faults) if told else []
        if not faults:
            faults = lending.faults(str(options["python"]), os.environ)
        if faults:
            raise SpecError(faults, "this job request")
        start(self._store.create(replace(request, engine_options=options)), SUPERVISOR_MODULE)

    def describe(self, name: str) -> dict[str, Any]:
        """The job in DescribeTrainingJob's shape; see `describe.describe`."""
        current = self._store.look(name)
        job = self.home.job(name)
        answer = describe(job, store.read_request(job), current)
        if current.stage.terminal:
            from hdp.estimator.engines.local.finals import final_metrics

            definitions = answer.get("AlgorithmSpecification", {}).get("MetricDefinitions", ())
            finals = final_metrics(job, definitions)
            answer |= {"FinalMetricDataList": finals} if finals else {}
        return answer

    def logs(self, name: str, cursor: Mapping[str, int]) -> LogPage:
        """Lines since `cursor`."""
        ended = self._store.look(name).stage.terminal
        return logfiles.read_page(self.home.job(name), cursor, final=ended)

    def stop(self, name: str) -> None:
        """Ask the job's supervisor to stop it."""
        current = self._store.look(name)
        if current.stage.terminal:
            return
        keeper = current.supervisor
        if keeper is None:
            raise EngineError(f"job {name} is just being started; try again in a second")
        if not processes.can_judge(keeper):
            raise EngineError(
                f"job {name} is supervised by pid {keeper.pid} of machine {keeper.machine} (or of another container), "
                f"out of reach from here: stop it there; if that is gone, remove {self.home.job(name).path}"
            )
        processes.send(keeper, signal.SIGTERM)

    def list(self) -> Sequence[dict[str, Any]]:
        """Summaries of all jobs, newest first."""
        return [summary(job) for job in self._store.look_all()]

    def clean(self, what: Cleaning) -> Sequence[Cleaned]:
        """Free disk space that ended jobs hold; see `cleaning.clean`."""
        from hdp.estimator.engines.local.cleaning import clean

        return clean(self._store, what)


def _types(options: Mapping[str, Any] | None) -> str | None:
    """What hosts of SageMaker's types run as; None: they don't."""
    return (options or {}).get("instance_types")


def _network(training_job: Mapping[str, Any] | None, options: Mapping[str, Any]) -> Told | None:
    """What is to be said about the hosts' own network; None: they have none. options: valid ones."""
    if training_job is None or options.get("network") is None:
        return None
    from hdp.estimator.engines.local import network_plan

    return network_plan.told(training_job, options["network"])


def _mpi(training_job: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Installed | None, str]:
    """The MPI of a job that asks for one, or why there is none."""
    launch = from_hyperparameters({k: decode(v) for k, v in training_job.get("HyperParameters", {}).items()})
    if launch.kind != "mpi":
        return None, ""
    path = training_job.get("Environment", {}).get("PATH") or os.environ.get("PATH", os.defpath)
    try:
        installed = find(search_path(str(options.get("python", sys.executable)), path))
        parse(launch.custom_mpi_options, installed.flavour)
    except (LaunchError, ValueError) as exc:
        return None, f"distribution.mpi: {exc}"
    return installed, ""


def start(job: JobDir, supervisor: str) -> None:
    """Start the module `supervisor` for a job that was made. Raises EngineError, which is on the job's record then."""
    try:
        _start_supervisor(job, supervisor)
    except EngineError as exc:
        reason = str(exc)
        store.update(job, lambda s: s if s.stage.terminal else state.fail(s, reason, time.time()))
        raise


def _start_supervisor(job: JobDir, module: str) -> None:
    """Start it, wait until it says that it has taken over. Raises EngineError with the end of its log."""
    readable, writable = os.pipe2(os.O_CLOEXEC)
    try:
        with job.supervisor_log.open("ab") as log:
            starter = subprocess.Popen(
                [sys.executable, "-m", module, str(job.path), str(writable)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=job.path,
                env=_environment(),
                pass_fds=(writable,),
                start_new_session=True,
            )
        os.close(writable)
        ready = bool(select.select([readable], [], [], SUPERVISOR_START_SECONDS)[0]) and os.read(readable, 2) == b"ok"
        if not ready:
            starter.kill()
        starter.wait()
    finally:
        os.close(readable)
    if not ready:
        said = logfiles.tail(job.supervisor_log) or "it said nothing"
        raise EngineError(f"the supervisor of job {job.name} didn't start: {said}\nits log: {job.supervisor_log}")


def _environment() -> dict[str, str]:
    """This process's environment; relative entries of PYTHONPATH would mean something else in another folder."""
    environment = dict(os.environ)
    if paths := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(p).absolute()) for p in paths.split(os.pathsep))
    return environment
