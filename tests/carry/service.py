"""What SageMaker does with a request before and while a container runs, as far as the container can tell.

Source: the layout in AWS's documentation of training containers, and its training toolkit 5.1.4.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdp.contract.uris import bucket_and_key
from hdp.runtime.emulation import Network

#: In the host's own mount namespace: its tree at /opt/ml, then the image's entry point. The real /opt gets no folder.
_ENTER = """
if ! test -d /opt/ml; then
    old=$(mktemp -d)
    mount --rbind /opt "$old"
    mount -t tmpfs none /opt
    for entry in "$old"/*; do
        if test -d "$entry"; then mkdir "/opt/${entry##*/}" && mount --rbind "$entry" "/opt/${entry##*/}"; fi
    done
    mkdir /opt/ml
fi
mount --bind "$0" /opt/ml
exec "$@"
"""
#: The same with another root, as a container runtime sets it up.
_CHANGE_ROOT = """
root=$1; shift
mount --bind "$0" "$root/opt/ml"
for shared in dev sys; do mount --rbind "/$shared" "$root/$shared"; done
mount -t proc none "$root/proc"
mount -t tmpfs none "$root/tmp"
mount --bind /etc/hosts "$root/etc/hosts"
exec chroot "$root" "$@"
"""


@dataclass
class Container:
    """One host's container."""

    name: str
    root: Path
    """What it sees as /opt/ml."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has printed."""
        return (self.root.parent / f"{self.name}.log").read_text(errors="replace")

    @property
    def failure(self) -> str:
        """Its failure file."""
        return (self.root / "output" / "failure").read_text()


def deliver(s3: Any, job: Mapping[str, Any], folder: Path) -> list[Container]:
    """Lay each host's /opt/ml below `folder`: the contract files, and the channels' objects from S3."""
    resources = job["ResourceConfig"]
    names = [f"algo-{i + 1}" for i in range(resources["InstanceCount"])]
    group = {"instance_group_name": "homogeneousCluster", "instance_type": resources["InstanceType"], "hosts": names}
    channels = {c["ChannelName"]: c for c in job.get("InputDataConfig", ())}
    containers = []
    for name in names:
        root = folder / name
        for place in ("input/config", "input/data", "model", "output/data", "checkpoints"):
            (root / place).mkdir(parents=True)
        _write(root, "hyperparameters", job["HyperParameters"])
        _write(root, "inputdataconfig", {channel: _described(c) for channel, c in channels.items()})
        own = {"current_host": name, "current_instance_type": resources["InstanceType"]}
        own |= {"current_group_name": "homogeneousCluster", "network_interface_name": "eth0"}
        _write(root, "resourceconfig", {**own, "hosts": names, "instance_groups": [group]})
        for channel, config in channels.items():
            _download(s3, config["DataSource"]["S3DataSource"]["S3Uri"], root / "input" / "data" / channel)
        containers.append(Container(name, root))
    return containers


def run(
    network: Network,
    containers: Sequence[Container],
    job: Mapping[str, Any],
    environ: Mapping[str, str],
    image: Path | None = None,
    seconds: float = 300.0,
) -> list[int]:
    """Run every container to its end. Returns the exit codes. image: a root file system; None: this machine's."""
    algorithm = job["AlgorithmSpecification"]
    command = [*algorithm["ContainerEntrypoint"], *algorithm.get("ContainerArguments", ())]
    service = {"TRAINING_JOB_NAME": str(job["TrainingJobName"]), "AWS_REGION": "us-west-2"}
    for number, container in enumerate(containers):
        script = [_ENTER, str(container.root)] if image is None else [_CHANGE_ROOT, str(container.root), str(image)]
        with (container.root.parent / f"{container.name}.log").open("wb") as log:
            container.process = network.popen(
                number,
                ["sh", "-ec", *script, *command],
                env={**environ, **service, **job.get("Environment", {})},
                cwd="/",
                stdout=log,
                stderr=log,
            )
    deadline = time.monotonic() + seconds
    processes = [c.process for c in containers if c.process is not None]
    return [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]


def logs(containers: Sequence[Container]) -> str:
    """All that they have printed."""
    return "\n".join(f"--- {c.name}\n{c.log}" for c in containers)


def make_image(folder: Path, packages: Sequence[Path]) -> str:
    """A Python of this machine with what the folders `packages` have, less hdp. Returns the PATH with its python3."""
    import venv

    venv.create(folder, symlinks=True, with_pip=False)
    [site] = (folder / "lib").glob("python*/site-packages")
    for entry in (entry for packages_folder in packages for entry in packages_folder.iterdir()):
        ours = entry.name.startswith(("hdp", "_editable_skbc_hdp", "smdistributed"))
        if not ours and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return f"{folder / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"


def write_script(folder: Path, text: str) -> Path:
    """A source folder with ``train.py``."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "train.py").write_text(textwrap.dedent(text))
    return folder


def _write(root: Path, name: str, value: Mapping[str, Any]) -> None:
    (root / "input" / "config" / f"{name}.json").write_text(json.dumps(value))


def _described(channel: Mapping[str, Any]) -> dict[str, str]:
    source = channel["DataSource"]["S3DataSource"]
    return {
        "TrainingInputMode": channel.get("InputMode", "File"),
        "S3DistributionType": source["S3DataDistributionType"],
        "RecordWrapperType": "None",
    }


def _download(s3: Any, uri: str, target: Path) -> None:
    """Every object whose key begins with the URI's, under what follows the last slash of it."""
    bucket, prefix = bucket_and_key(uri)
    target.mkdir()
    for entry in s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ()):
        file = target / entry["Key"][prefix.rfind("/") + 1 :]
        file.parent.mkdir(parents=True, exist_ok=True)
        s3.download_file(bucket, entry["Key"], str(file))
