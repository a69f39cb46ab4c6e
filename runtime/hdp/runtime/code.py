"""Brings the user's code to ``code/`` and checks that the entry point is there."""

from __future__ import annotations

import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hdp.contract.errors import LaunchError
from hdp.contract.uris import local_path
from hdp.runtime.archive import unpack
from hdp.runtime.channels import s3
from hdp.runtime.environment import TrainingEnvironment

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EntryPoint:
    """What each rank runs."""

    script: str
    """Relative to the code folder."""
    shell: bool
    """Run by ``/bin/sh`` rather than by Python."""


def provide_code(env: TrainingEnvironment) -> EntryPoint:
    """Unpack the code archive, if there is one. Raises LaunchError if it or the entry point can't be had."""
    if env.submit_directory:
        try:
            count = _fetch(env.submit_directory, env.layout.code)
        except ValueError as exc:
            raise LaunchError(f"the code can't be fetched (hyperparameter sagemaker_submit_directory): {exc}") from exc
        log.info("code: %d files from %s", count, env.submit_directory)
    return find_entry_point(env)


def find_entry_point(env: TrainingEnvironment) -> EntryPoint:
    """The entry point, which must be a ``.py`` or ``.sh`` file below the code folder."""
    script, code = env.entry_point, env.layout.code
    if not script:
        raise LaunchError("no entry point is set (hyperparameter sagemaker_program); expected the name of a script")
    path = (code / script).resolve()
    if Path(script).is_absolute() or code.resolve() not in path.parents:
        raise LaunchError(f"the entry point {script!r} lies outside the code folder; expected a path relative to it")
    if not path.is_file():
        here = ", ".join(sorted(p.name for p in code.glob("*"))[:12]) if code.is_dir() else ""
        raise LaunchError(f"the entry point {script!r} isn't in the code folder, which has: {here or 'nothing'}")
    if path.suffix not in (".py", ".sh"):
        raise LaunchError(f"the entry point {script!r} isn't a .py or .sh file; other kinds aren't supported")
    return EntryPoint(script, shell=path.suffix == ".sh")


def requirements_file(env: TrainingEnvironment, entry: EntryPoint) -> Path | None:
    """``requirements.txt`` beside the entry point, else at the root of the code; None where there is none."""
    for folder in ((env.layout.code / entry.script).parent, env.layout.code):
        if (folder / "requirements.txt").is_file():
            return folder / "requirements.txt"
    return None


def _fetch(uri: str, target: Path) -> int:
    if uri.startswith("s3://"):
        with tempfile.TemporaryDirectory(prefix="hdp-code-", dir=target.parent) as folder:
            archive = Path(folder) / "sourcedir.tar.gz"
            s3.fetch_object(s3.connect(), uri, archive)
            return unpack(archive, target)
    source = local_path(uri) if uri.startswith("file://") else Path(uri)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
        return sum(1 for p in target.rglob("*") if p.is_file())
    if not source.is_file():
        raise LaunchError(f"the code archive {uri} isn't there; expected a .tar.gz (file://, s3:// or a local path)")
    return unpack(source, target)
