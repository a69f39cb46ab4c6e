"""What this machine can and can't do, and the remedy for each thing that it can't. Starts nothing that stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from hdp.estimator.cli import fuse
from hdp.estimator.engines.local import hostns, networks
from hdp.estimator.engines.local.gpus import count_gpus
from hdp.estimator.engines.local.home import home_from

Grade = Literal["yes", "no", "note"]
_LOW_DISK_BYTES = 5 * 1024**3
_SMALL_SHM_BYTES = 256 * 1024**2
_AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_ONLY_FASTFILE = "only for FastFile channels"
_CORE_PROBE_SECONDS = 60.0
_CORE_PROBE = "import hdp.collectives.library as library; print(library.load()._name)"
_RESTRICTIONS = {
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": ("1", "kernel.apparmor_restrict_unprivileged_userns=0"),
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "kernel.unprivileged_userns_clone=1"),
    "/proc/sys/user/max_user_namespaces": ("0", "user.max_user_namespaces=15000"),
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    grade: Grade
    """yes: it works; no: it doesn't; note: it works in part, or is for later."""
    detail: str
    remedy: str = ""
    needed: bool = False
    """Without it no local job runs."""


def examine() -> Sequence[Finding]:
    """Everything, in the order in which a person would ask."""
    checks: Sequence[Callable[[], Finding]] = (
        _python, _core, _compiler, _kernel_calls, _namespaces, _networks, _shared_memory, _disk, _gpu,
        _torch, _tensorflow, _mpi, _docker, examine_fuse, _aws,
    )  # fmt: skip
    return [check() for check in checks]


def _python() -> Finding:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    good = sys.version_info >= (3, 10) and sys.platform == "linux"
    remedy = "" if good else "run the local engine on Linux with Python 3.10 or newer; elsewhere only the client works"
    return Finding("Python on Linux", "yes" if good else "no", f"{found}, {sys.platform}", remedy, needed=True)


def _core() -> Finding:
    """In a subprocess: the client itself never loads the runtime."""
    command = [sys.executable, "-c", _CORE_PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CORE_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Finding("core library", "no", f"it didn't load within {_CORE_PROBE_SECONDS:g} s", "reinstall hdp-train")
    if done.returncode == 0:
        return Finding("core library", "yes", done.stdout.strip())
    said = (done.stderr.strip().splitlines() or ["no message"])[-1]
    remedy = "install hdp-train from a wheel, or a C++20 compiler and build it: `make setup`"
    return Finding("core library", "no", f"libhdp_core can't be loaded: {said}", remedy)


def _compiler() -> Finding:
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    if found:
        return Finding("C++ compiler", "yes", found)
    return Finding("C++ compiler", "note", "none found", "only needed to build from source: e.g. `apt install g++`")


def _kernel_calls() -> Finding:
    try:
        os.close(os.memfd_create("hdp-doctor"))
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as exc:
        remedy = "use Linux 5.3 or newer; in a container, allow memfd_create and pidfd_open (a newer Docker does)"
        return Finding("memfd and pidfd", "no", str(exc), remedy, needed=True)
    return Finding("memfd and pidfd", "yes", f"Linux {os.uname().release}")


def _namespaces() -> Finding:
    support = hostns.probe()
    if support.means == "root":
        return Finding("hosts of their own", "yes", "mount and UTS namespaces, as root")
    if support.means == "user":
        return Finding("hosts of their own", "yes", "mount and UTS namespaces, in a user namespace")
    detail = f"no namespaces ({support.reason}): jobs run, but without /opt/ml, host names and /etc/hosts of their own"
    remedy = _namespace_remedy(_RESTRICTIONS, "--cap-add SYS_ADMIN") + "; else nothing is lost"
    return Finding("hosts of their own", "note", detail, remedy)


def _networks() -> Finding:
    support = networks.probe()
    if support.means == "none":
        return Finding("hosts' own networks", "note", support.reason, _network_remedy(support.reason))
    how = "as root" if support.means == "root" else "in a user namespace"
    return Finding("hosts' own networks", "yes", f'shaped links, {how}: engine_options={{"network": "1gbit"}}')


def _network_remedy(reason: str) -> str:
    """The reason itself names the package where that is missing."""
    only = 'only for engine_options={"network": ...}'
    if "pip install" in reason:
        return only
    return f"{only}: {_namespace_remedy(_RESTRICTIONS, '--cap-add SYS_ADMIN --cap-add NET_ADMIN')}"


def _namespace_remedy(restrictions: Mapping[str, tuple[str, str]], rights: str) -> str:
    for file, (bad, setting) in restrictions.items():
        if Path(file).exists() and Path(file).read_text(encoding="ascii").strip() == bad:
            return f"ask an administrator for `sysctl -w {setting}`"
    return f"in a container: `docker run {rights} --security-opt apparmor=unconfined`"


def _shared_memory() -> Finding:
    try:
        total = shutil.disk_usage("/dev/shm").total
    except OSError as exc:
        return Finding("/dev/shm", "note", str(exc), "hdp itself doesn't need it; data loaders do: mount a tmpfs there")
    detail = f"{_gib(total)}; hdp itself uses memfd instead"
    if total >= _SMALL_SHM_BYTES:
        return Finding("/dev/shm", "yes", detail)
    return Finding("/dev/shm", "note", detail, "for data loaders with workers: `docker run --shm-size 8g`")


def _disk() -> Finding:
    home = home_from().path
    existing = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{_gib(free)} free in {home}"
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        detail = f"{existing} can't be written"
        return Finding("disk", "no", detail, "set HDP_HOME to a folder that you own", needed=True)
    if free < _LOW_DISK_BYTES:
        return Finding("disk", "note", detail, "`hdp clean` frees what ended jobs hold; HDP_HOME moves the engine")
    return Finding("disk", "yes", detail)


def _gpu() -> Finding:
    count = count_gpus()
    if count:
        return Finding("GPU", "yes", f'{count} NVIDIA device(s): instance_type="local_gpu"')
    return Finding("GPU", "note", 'no NVIDIA device: instance_type="local" trains on the CPU')


def _torch() -> Finding:
    return _package("PyTorch", "torch", "pip install 'hdp-train[torch]'")


def _tensorflow() -> Finding:
    return _package("TensorFlow", "tensorflow", "pip install 'hdp-train[tensorflow]'")


def _package(what: str, distribution: str, remedy: str) -> Finding:
    try:
        return Finding(what, "yes", version(distribution))
    except PackageNotFoundError:
        return Finding(what, "note", "not installed in this environment", remedy)


def _mpi() -> Finding:
    found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found:
        return Finding("MPI", "yes", found)
    return Finding("MPI", "note", "no mpirun", "only for distribution={'mpi': ...}: pip install 'hdp-train[mpi]'")


def _docker() -> Finding:
    socket_file = Path("/var/run/docker.sock")
    if shutil.which("docker") is None:
        return Finding("Docker", "note", "no docker command; the local engine doesn't need it")
    if not os.access(socket_file, os.W_OK):
        detail = f"the command is there, but {socket_file} can't be used; the local engine doesn't need it"
        return Finding("Docker", "note", detail, "start the daemon, and have your user in the group docker")
    return Finding("Docker", "yes", f"{shutil.which('docker')}, {socket_file}")


def examine_fuse() -> Finding:
    """By a mount in namespaces as jobs have them; where that fails, also without them, as `namespaces="off"` does."""
    if sys.platform != "linux":
        return Finding("FUSE", "note", "only on Linux", _ONLY_FASTFILE)
    trial = fuse.try_mount(hostns.probe().means)
    if trial.by:
        return Finding("FUSE", "yes", _mounted(trial))
    bare = fuse.try_mount("none") if trial.means != "none" else trial
    if bare.by:
        detail = f"only without namespaces of the hosts' own, {_mounted(bare)}; in them: {trial.why}"
        return Finding("FUSE", "note", detail, f'{_ONLY_FASTFILE}: engine_options={{"namespaces": "off"}}')
    return Finding("FUSE", "note", trial.why, f"{_ONLY_FASTFILE}: {_fuse_remedy()}")


def _mounted(trial: fuse.Trial) -> str:
    if trial.by == "fusermount3":
        return f"mounted by {shutil.which('fusermount3') or 'fusermount3'}"
    return "mounted in a user namespace" if trial.means == "user" else "mounted as root"


def _fuse_remedy() -> str:
    if not Path("/dev/fuse").exists():
        return "`modprobe fuse`, or in a container `docker run --device /dev/fuse --cap-add SYS_ADMIN`"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "ask an administrator for `chmod 666 /dev/fuse`, as it is on most machines"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "`apt install fuse3`, by which users mount"
    return "in a container `docker run --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined`"


def _aws() -> Finding:
    """Whether boto3 would find credentials, without asking the network (an instance's role isn't looked for)."""
    home = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser()
    sources = [name for name in _AWS_VARIABLES if os.environ.get(name)] + ([str(home)] if home.exists() else [])
    if sources:
        return Finding("AWS credentials", "yes", ", ".join(sources))
    return Finding("AWS credentials", "note", "none set", "only for s3:// URIs and SageMaker: `aws configure`")


def _gib(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB"
