"""`git_config`, with SDK v2's keys: which state of which repository has the code. Pure; no message has a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from hdp.estimator.faults import seen, shown
from hdp.estimator.settings import Settings
from hdp.estimator.spelling import did_you_mean

#: What git may be told to speak. Others run programs (ext::) or read this machine's files.
SCHEMES = ("https", "http", "ssh", "git")

_TEXTS = ("repo", "branch", "commit", "username", "password", "token")
_TWO_FACTORS = "2FA_enabled"
_SECRET = ("password", "token")
_LIKE_SCP = re.compile(r"[A-Za-z0-9_][\w.-]*@[A-Za-z0-9][\w.-]*:[^:\s-][^\s]*")
_BRANCH = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][^\s~^:?*\[\\\x00-\x1f\x7f]*")
_COMMIT = re.compile(r"[0-9a-fA-F]{4,64}")
_HERE = ("127.0.0.1", "::1", "localhost")
#: Who authenticates with a token needs no name, but git asks for one.
_ANYBODY = "x-access-token"


@dataclass(frozen=True)
class GitConfig:
    """Which state of which repository."""

    repo: str
    branch: str = ""
    commit: str = ""
    username: str = ""
    secret: str = field(default="", repr=False)
    """The password, or the token."""


def parse(given: object) -> tuple[GitConfig | None, list[str]]:
    """`git_config` as the user wrote it, and the faults found. No message has a secret."""
    if not isinstance(given, Mapping):
        return None, [f"git_config is {_without_login(seen(given))}; expected a dictionary with 'repo'"]
    known = (*_TEXTS, _TWO_FACTORS)
    faults = [
        f"git_config: {key!r} is unknown{did_you_mean(key, known) or f'; expected some of {list(known)}'}"
        for key in given
        if key not in known
    ]
    texts = {key: given[key] for key in _TEXTS if given.get(key) is not None}
    for key in [key for key, value in texts.items() if not isinstance(value, str)]:
        value = texts.pop(key)
        faults.append(
            f"git_config[{key!r}] is {type(value).__name__ if key in _SECRET else seen(value)}; expected text"
        )
    two = given.get(_TWO_FACTORS, False)
    if not isinstance(two, bool):
        faults.append(f"git_config[{_TWO_FACTORS!r}] is {seen(two)}; expected True or False")
    faults += [] if faults else [*(_repo_faults(texts) or _login_faults(texts, two)), *_state_faults(texts)]
    if faults:
        return None, faults
    secret = texts.get("token") or texts.get("password", "")
    name = texts.get("username") or (_ANYBODY if secret else "")
    return GitConfig(texts["repo"], texts.get("branch", ""), texts.get("commit", ""), name, secret), []


def path_faults(settings: Settings) -> list[str]:
    """What is wrong with paths that shall be a repository's."""
    given = {"entry_point": settings.entry_point, "source_dir": settings.source_dir}
    named = [(name, path) for name, path in given.items() if path]
    return [
        f"{name}: {path} must be a relative path inside the repository of git_config"
        for name, path in [*named, *(("dependencies", path) for path in settings.dependencies)]
        if "://" in path or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts
    ]


def _repo_faults(texts: Mapping[str, str]) -> list[str]:
    repo = texts.get("repo", "")
    expected = "https://host/path, ssh://host/path or user@host:path"
    if not repo:
        return [f"git_config has no 'repo'; expected {expected}"]
    try:
        url = urlsplit(repo)
    except ValueError as exc:
        return [f"git_config['repo'] isn't a URL: {exc}; expected {expected}"]
    if url.password is not None or (url.username and url.scheme in ("http", "https")):
        return ["git_config['repo'] has a login in it, and URLs are logged; give username and password, or token"]
    whole = url.scheme in SCHEMES and url.hostname and not url.netloc.startswith("-") and url.path.strip("/")
    if re.search(r"[\s\x00-\x1f\x7f]", repo) or not (whole or _LIKE_SCP.fullmatch(repo)):
        said = _without_login(shown(repo))
        return [f"git_config['repo'] is {said}; expected {expected}; a folder of this machine is a source_dir"]
    return []


def _without_login(text: str) -> str:
    """`text` without what may be a password before an ``@``: a misspelt URL may have one, too."""
    return re.sub(r":[^@]*@", ":***@", text)


def _login_faults(texts: Mapping[str, str], two_factors: bool) -> list[str]:
    given = [key for key in ("username", "password", "token") if texts.get(key)]
    url = urlsplit(texts.get("repo", ""))
    if given and url.scheme not in ("https", "http"):
        return [f"git_config: {' and '.join(given)} are for https://; this repo is reached by your own key: leave out"]
    if given and url.scheme == "http" and url.hostname not in _HERE:
        return [f"git_config: {' and '.join(given)} would be readable on the way to http://; use https://"]
    faults = []
    if two_factors and url.scheme == "https" and "token" not in given:
        faults.append("git_config: 2FA_enabled needs a token; a password alone isn't accepted then")
    if "token" not in given and len(given) == 1:
        missing = "password" if "username" in given else "username"
        faults.append(f"git_config has a {given[0]}, and no {missing}; give both, or a token")
    if any(re.search(r"[\r\n\0]", texts[key]) for key in given):
        faults.append(f"git_config: {' and '.join(given)} must be one line each")
    return faults


def _state_faults(texts: Mapping[str, str]) -> list[str]:
    faults = []
    if texts.get("branch") and not _BRANCH.fullmatch(texts["branch"]):
        faults.append(f"git_config['branch'] is {shown(texts['branch'])}; expected a branch's or tag's name")
    if texts.get("commit") and not _COMMIT.fullmatch(texts["commit"]):
        faults.append(f"git_config['commit'] is {shown(texts['commit'])}; expected 4 to 64 hexadecimal digits")
    return faults
