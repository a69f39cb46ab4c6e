"""How a job's code, our runtime and the job's secret reach a container whose image may not contain us.

Each comes as an input channel of its own, in File mode, that the service fills before the container starts:

- ``code``: the user's archive, at a key that its content decides, so that it is uploaded once;
- ``hdp_runtime``: our own wheel and `START`, the script that the container runs, likewise;
- ``hdp_secret``: the file `SECRET`, which every host of this one job has, made when the job is submitted.

The container's entry point is `ENTRYPOINT`: it needs a Python 3.9 or newer in the image, and nothing of ours. An image
that contains us gets no ``hdp_runtime``, and starts with `INSTALLED_ENTRYPOINT`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

CODE_CHANNEL: Final = "code"
RUNTIME_CHANNEL: Final = "hdp_runtime"
SECRET_CHANNEL: Final = "hdp_secret"
CHANNELS: Final = (CODE_CHANNEL, RUNTIME_CHANNEL, SECRET_CHANNEL)

#: The user's archive in its channel.
ARCHIVE: Final = "sourcedir.tar.gz"
#: The script in its channel that installs our wheel, which lies beside it, and becomes the host's agent.
START: Final = "start.py"
#: The job's secret in its channel.
SECRET: Final = "secret"

ENTRYPOINT: Final = ("python3", f"/opt/ml/input/data/{RUNTIME_CHANNEL}/{START}")
INSTALLED_ENTRYPOINT: Final = ("python3", "-m", "hdp.runtime.launch.agent")

#: Oldest Python that the runtime works with.
OLDEST_PYTHON: Final = (3, 9)

_TAG = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")


@dataclass(frozen=True)
class Platform:
    """What the libraries in a wheel need of the system."""

    glibc: tuple[int, int]
    machine: str
    """As ``uname -m`` says it."""

    @property
    def tag(self) -> str:
        """The platform tag of such a wheel (PEP 600)."""
        return f"manylinux_{self.glibc[0]}_{self.glibc[1]}_{self.machine}"

    def __str__(self) -> str:
        return f"Linux on {self.machine} with glibc {self.glibc[0]}.{self.glibc[1]} or newer"


def platform_of(text: str) -> Platform | None:
    """The platform whose tag is in `text`; None where there is none."""
    found = _TAG.search(text)
    return Platform((int(found[1]), int(found[2])), found[3]) if found else None
