"""``python -m hdp.runtime.carried``: the agent on an image that didn't bring it, started by ``start.py``.

It first compares the image with what the runtime needs, so that a job ends with a sentence rather than with a loader's
error on every rank.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from hdp.contract import env
from hdp.contract.delivery import Platform, platform_of
from hdp.contract.errors import HdpError, LaunchError
from hdp.contract.files import Layout, read_json
from hdp.contract.hyperparameters import decode
from hdp.contract.launch import from_hyperparameters
from hdp.contract.outcome import HostReport
from hdp.runtime.environment import load_resources
from hdp.runtime.launch import agent
from hdp.runtime.launch.failure import host_failure
from hdp.runtime.launch.leaving import leave

_DISTRIBUTION = "hdp-train"


def main() -> int:
    """Check the image, then run the agent. Returns the exit code."""
    layout = Layout(Path(os.environ.get(env.BASE_DIR.name) or env.BASE_DIR.default))
    try:
        lacking = _lacking(layout)
        if lacking:
            raise LaunchError(f"this image can't run hdp: {'; '.join(lacking)}")
    except HdpError as exc:
        return _refuse(layout, exc)
    return agent.main()


def lacking_for(needs: Platform, machine: str, libc: tuple[str, str]) -> list[str]:
    """Why libraries that need `needs` can't be loaded here, a line each. libc: name and version."""
    if machine != needs.machine:
        return [f"its processor is {machine}, and the hdp that travels with the job is for {needs.machine}"]
    wanted = ".".join(map(str, needs.glibc))
    if libc[0] != "glibc":
        return [f"its C library is {libc[0] or 'not glibc'}, and hdp needs glibc {wanted} or newer"]
    if tuple(map(int, libc[1].split(".")[:2])) < needs.glibc:
        return [
            f"it has glibc {libc[1]}, and the hdp that travels with the job was built for {wanted} or newer; use a "
            "newer image, or a wheel of hdp for older systems (from its index, or by `make wheel` in a checkout)"
        ]
    return []


def _lacking(layout: Layout) -> list[str]:
    """What the job needs and this image hasn't. Raises ContractError."""
    values = {name: decode(value) for name, value in read_json(layout.hyperparameters).items()}
    if from_hyperparameters(values).kind != "hdp":
        return []  # nothing of it loads the core
    needs = platform_of(metadata.distribution(_DISTRIBUTION).read_text("WHEEL") or "")
    found = lacking_for(needs, platform.machine(), platform.libc_ver()) if needs else []
    if find_spec("numpy") is None:
        found.append(f"NumPy isn't installed for {sys.executable}; take an image with it, or add it to this one")
    return found


def _refuse(layout: Layout, exc: HdpError) -> int:
    try:
        host = load_resources(layout).current_host
    except HdpError:
        host = "?"
    failure = host_failure(host, exc, time.time())
    sys.stderr.write(f"{failure.exception}\n")
    leave(layout, HostReport(host, failures=(failure,), first_cause=failure))
    return 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # as the agent does: a download that was left behind must not keep the host from ending
