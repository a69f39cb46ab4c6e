"""Code from a git repository, as `hdp.estimator.git_config` names it.

It is cloned at `fit` (a plan touches no network), as shallow as can be, and goes when its files are packed. git is run
as an argument vector, without a terminal. A password or token is in the environment of that one process, from which
git's own question (GIT_ASKPASS) fetches it, and only for the repository's own host: it is in no URL, no argument, no
file and no message.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hdp.contract.errors import SpecError
from hdp.contract.redact import redact_text
from hdp.estimator.git_config import SCHEMES, GitConfig, parse
from hdp.estimator.settings import Settings

#: What a plan says.
LATER = "git_config: the repository is cloned at fit(), so its archive isn't known yet: zeros stand for the digest"
_TAIL_CHARS = 600
#: Of this process's environment: it would lead git elsewhere, or have it print what it sends.
_NOT_FOR_GIT = re.compile(
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|COMMON_DIR|NAMESPACE|ASKPASS|TRACE.*|CURL_VERBOSE)|SSH_ASKPASS"
)
_ASK = """#!/bin/sh
case $1 in
*"'$HDP_GIT_SCHEME://$HDP_GIT_HOST'"* | *"'$HDP_GIT_SCHEME://"*"@$HDP_GIT_HOST'"*) ;;
*) exit 1 ;; # somebody else asks, e.g. a server that we were redirected to
esac
case $1 in
Username*) printf '%s\\n' "$HDP_GIT_USERNAME" ;;
Password*) printf '%s\\n' "$HDP_GIT_SECRET" ;;
*) exit 1 ;;
esac
"""


@contextmanager
def located(settings: Settings, fetch: bool) -> Iterator[Settings]:
    """`settings` with paths of this machine: of a clone, which goes again, where there is a git_config.

    fetch: False: touch no network, and leave the paths as they are. Raises SpecError.
    """
    if settings.git_config is None or not fetch:
        yield settings
        return
    config, faults = parse(settings.git_config)
    if config is None:
        raise SpecError(faults, "git_config")
    with tempfile.TemporaryDirectory(prefix="hdp-git-") as folder:
        root = Path(folder).resolve() / "repository"
        clone(config, root, Path(folder))
        yield _inside(settings, config, root)


def spoken(fault: str) -> str:
    """`fault` without the place of the clone, which is gone."""
    return re.sub(r"\S*hdp-git-[^/]*/repository\b", "the repository", fault)


def clone(config: GitConfig, target: Path, work: Path) -> None:
    """Have the repository's files in `target`. Raises SpecError with git's last words. work: a private folder."""
    ask = work / "ask"
    ask.write_text(_ASK)
    ask.chmod(0o700)
    git = _Git(config, _environ(config, ask))
    if not config.commit:
        git.shallow_or_whole(["clone", *_branch(config)], ["--", config.repo, str(target)])
        return
    if len(config.commit) in (40, 64) and git.fetched(target):
        return
    git("clone", "--no-checkout", *_branch(config), "--", config.repo, str(target))
    git("-C", str(target), "checkout", "--detach", config.commit, "--")


class _Git:
    """Runs git for one repository."""

    def __init__(self, config: GitConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        self._environ = environ
        own = ["credential.useHttpPath=false", *(["credential.helper="] if config.secret else [])]
        self._command = ["git", *(word for setting in own for word in ("-c", setting))]

    def __call__(self, *arguments: str) -> None:
        """Run it. Raises SpecError."""
        done = self._run(*arguments)
        if done.returncode != 0:
            raise SpecError([self._complaint(arguments, done.stderr)], "the user's code")

    def shallow_or_whole(self, before: list[str], after: list[str]) -> None:
        """With one commit only where the server can do that. Raises SpecError."""
        done = self._run(*before, "--depth=1", *after)
        if done.returncode != 0 and "shallow" in done.stderr:
            self(*before, *after)
        elif done.returncode != 0:
            raise SpecError([self._complaint(before, done.stderr)], "the user's code")

    def fetched(self, target: Path) -> bool:
        """Whether the server gives that one commit alone; its files are in `target` then, else nothing is."""
        self("init", "--quiet", "--", str(target))
        here = ("-C", str(target))
        done = self._run(*here, "fetch", "--depth=1", "--", self._config.repo, self._config.commit)
        if done.returncode == 0:
            self(*here, "checkout", "--detach", self._config.commit, "--")
            return True
        shutil.rmtree(target)
        return False

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self._command, *arguments], env=self._environ, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, errors="replace", check=False,
            )  # fmt: skip
        except OSError as exc:
            raise SpecError([f"git_config needs git, which can't be run: {exc.strerror}; install it"]) from exc

    def _complaint(self, arguments: Sequence[str], stderr: str) -> str:
        verb = next(word for word in arguments if not word.startswith(("-", "/")))
        known = [self._config.secret] if self._config.secret else []
        said = " ".join(redact_text(stderr, known).split())[-_TAIL_CHARS:]
        state = " ".join(filter(None, [self._config.branch, self._config.commit]))
        which = f"{self._config.repo} ({state})" if state else self._config.repo
        return (
            f"git_config: git {verb} of {which} failed: {said or 'it gave no reason'}; check repo, branch, commit, and "
            "username with password or token"
        )


def _environ(config: GitConfig, ask: Path) -> dict[str, str]:
    environ = {k: v for k, v in os.environ.items() if not _NOT_FOR_GIT.fullmatch(k)}
    environ.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    environ |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": ":".join(SCHEMES), "LC_ALL": "C"}
    # A server that says nothing for a minute is given up.
    environ |= {"GIT_HTTP_LOW_SPEED_LIMIT": "1", "GIT_HTTP_LOW_SPEED_TIME": "60"}
    if config.secret:
        url = urlsplit(config.repo)
        environ |= {"GIT_ASKPASS": str(ask), "HDP_GIT_USERNAME": config.username, "HDP_GIT_SECRET": config.secret}
        environ |= {"HDP_GIT_SCHEME": url.scheme, "HDP_GIT_HOST": url.netloc}
    return environ


def _branch(config: GitConfig) -> list[str]:
    return [f"--branch={config.branch}"] if config.branch else []


def _inside(settings: Settings, config: GitConfig, root: Path) -> Settings:
    """`settings` with the clone's paths. Raises SpecError for one that isn't there, or that a link leads outside."""
    paths = [settings.source_dir or settings.entry_point or "", *settings.dependencies]
    faults = []
    for path in paths:
        real = (root / path).resolve()
        if not real.is_relative_to(root) or not real.exists():
            why = "isn't there" if real.is_relative_to(root) else "leads outside of it"
            faults.append(f"git_config: {path} of {config.repo} {why}; expected a path inside the repository")
    if faults:
        raise SpecError(faults, "the user's code")
    update: dict[str, Any] = {"dependencies": tuple(str(root / path) for path in settings.dependencies)}
    if settings.source_dir:
        update["source_dir"] = str(root / settings.source_dir)
    elif settings.entry_point:
        update["entry_point"] = str(root / settings.entry_point)
    return settings.model_copy(update=update)
