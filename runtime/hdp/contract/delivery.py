"""How a job's code, our runtime and the job's secret reach a container whose image may not contain us.

Each comes as an input channel of its own, in File mode, that the service fills before the container starts:

- ``code``: the user's archive, at a key that its content decides, so that it is uploaded once;
- ``hdp_runtime``: our own wheel and `START`, the script that the container runs, likewise;
- ``hdp_secret``: the file `SECRET`, which every host of this one job has, made when the job is submitted.

The container's entry point is `ENTRYPOINT`: it needs a Python 3.9 or newer in the image, and nothing of ours.
"""

from __future__ import annotations

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
