"""git_config: which code travels, how a secret reaches git and nobody else, what is refused."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.conftest import MemoryEngine

from hdp.contract.errors import SpecError
from hdp.estimator import PyTorch
from hdp.estimator.git_config import parse

from .git_server import GitServer, serving

if shutil.which("git") is None:
    pytest.skip("git is not installed", allow_module_level=True)

TOKEN = "t0ken-5f2a9c"


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A folder with the repository ``code.git``: two commits on main, one more on the branch `side`."""
    base = tmp_path_factory.mktemp("git")
    work = base / "work"
    (work / "src" / "lib").mkdir(parents=True)
    git(work, "init", "-q")
    commits = []
    for text in ("first", "second"):
        (work / "src" / "train.py").write_text(f"print({text!r})\n")
        (work / "src" / "lib" / "a.py").write_text("a = 1\n")
        (work / "shared.py").write_text("shared = 1\n")
        git(work, "add", ".")
        git(work, "commit", "-q", "-m", text)
        commits.append(git(work, "rev-parse", "HEAD"))
    git(work, "checkout", "-q", "-b", "side")
    (work / "src" / "train.py").write_text("print('side')\n")
    (work / "out").symlink_to("/etc")
    git(work, "add", ".")
    git(work, "commit", "-q", "-m", "side")
    git(work, "checkout", "-q", "main")
    (base / "served").mkdir()
    git(base, "clone", "-q", "--bare", str(work), str(base / "served" / "code.git"))
    yield base / "served", commits


@pytest.fixture
def server(served: tuple[Path, list[str]]) -> Iterator[GitServer]:
    with serving(served[0]) as made:
        yield made


@pytest.fixture
def closed(served: tuple[Path, list[str]]) -> Iterator[GitServer]:
    """A server that lets only x-access-token with TOKEN in."""
    with serving(served[0], f"x-access-token:{TOKEN}") as made:
        yield made


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine()


def sent(engine: MemoryEngine, config: dict[str, Any], **changes: Any) -> dict[str, str]:
    """The files of the archive that `fit` gave to the engine."""
    arguments: dict[str, Any] = {"entry_point": "train.py", "source_dir": "src", **changes}
    PyTorch(git_config=config, engine=engine, **arguments).fit(logs=None, job_name="job")
    [archive] = engine.bundles.values()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        opened = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {name: file.read().decode() for name, file in opened.items() if file is not None}


def refused(engine: MemoryEngine, config: Any, **changes: Any) -> str:
    with pytest.raises(SpecError) as raised:
        sent(engine, config, **changes)
    assert engine.calls == []
    return "\n".join(raised.value.faults)


def test_source_dir_is_the_repository_s(server: GitServer, engine: MemoryEngine) -> None:
    """The newest commit of the default branch; only the folder, and nothing of git's own."""
    files = sent(engine, {"repo": f"{server.url}/code.git"})
    assert files == {"train.py": "print('second')\n", "lib/a.py": "a = 1\n"}


def test_dependencies_are_the_repository_s(server: GitServer, engine: MemoryEngine) -> None:
    """A file beside source_dir."""
    files = sent(engine, {"repo": f"{server.url}/code.git"}, dependencies=["shared.py"])
    assert set(files) == {"train.py", "lib/a.py", "shared.py"}


def test_a_script_alone_is_the_repository_s(server: GitServer, engine: MemoryEngine) -> None:
    """Without source_dir its path is from the repository's top."""
    files = sent(engine, {"repo": f"{server.url}/code.git"}, entry_point="src/train.py", source_dir=None)
    assert files == {"train.py": "print('second')\n"}
    assert engine.requests["job"].training_job["HyperParameters"]["sagemaker_program"] == '"train.py"'


def test_a_branch_is_taken(server: GitServer, engine: MemoryEngine) -> None:
    """Another than the default one."""
    assert sent(engine, {"repo": f"{server.url}/code.git", "branch": "side"})["train.py"] == "print('side')\n"


@pytest.mark.parametrize("digits", [40, 8])
def test_a_commit_is_taken(
    server: GitServer, engine: MemoryEngine, served: tuple[Path, list[str]], digits: int
) -> None:
    """An older one, whole or short: where the server doesn't give it alone, all are fetched."""
    commit = served[1][0][:digits]
    files = sent(engine, {"repo": f"{server.url}/code.git", "branch": "main", "commit": commit})
    assert files["train.py"] == "print('first')\n"


def test_git_s_own_protocol(served: tuple[Path, list[str]], engine: MemoryEngine, tmp_path: Path) -> None:
    """A real git daemon."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = f"{git(tmp_path, '--exec-path')}/git-daemon"
    options = ["--reuseaddr", "--listen=127.0.0.1", f"--port={port}", "--export-all", f"--base-path={served[0]}"]
    daemon = subprocess.Popen([program, *options], cwd=tmp_path)
    try:
        deadline = time.monotonic() + 30
        while not listens(port):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        files = sent(engine, {"repo": f"git://127.0.0.1:{port}/code.git"})
        assert files["train.py"] == "print('second')\n"
    finally:
        daemon.terminate()
        daemon.wait(30)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_token_lets_in(closed: GitServer, engine: MemoryEngine) -> None:
    """As the password of nobody in particular, with 2FA as in v2."""
    files = sent(engine, {"repo": f"{closed.url}/code.git", "2FA_enabled": True, "token": TOKEN})
    assert files["train.py"] == "print('second')\n"
    assert set(closed.logins) == {f"x-access-token:{TOKEN}"}


def test_name_and_password_let_in(served: tuple[Path, list[str]], engine: MemoryEngine) -> None:
    """Characters that a URL or a shell would take apart."""
    login = "a@b.c", "p'w\"$(x)@:/ %41"
    with serving(served[0], ":".join(login)) as server:
        sent(engine, {"repo": f"{server.url}/code.git", "username": login[0], "password": login[1]})
        assert set(server.logins) == {":".join(login)}


def test_the_secret_is_no_argument_and_in_no_url(
    closed: GitServer, engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A git in front of the real one notes its argument vector; the server notes paths; the plan is printed."""
    noted, real = tmp_path / "noted", shutil.which("git")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{noted}\nexec {real} "$@"\n')
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    config = {"repo": f"{closed.url}/code.git", "token": TOKEN}
    sent(engine, config)
    estimator = PyTorch("train.py", source_dir="src", git_config=config, engine=engine)
    shown = [
        noted.read_text(),
        *closed.requests,
        repr(estimator.settings),
        repr(estimator.plan()),
        str(estimator.plan()),
    ]
    assert "clone" in shown[0]
    assert not [text for text in shown if TOKEN in text]
    assert TOKEN not in repr(engine.requests["job"].training_job)


def test_a_wrong_token_is_told_without_it(served: tuple[Path, list[str]], engine: MemoryEngine) -> None:
    """git's words, the repository, what to check; asks nobody at a terminal."""
    with serving(served[0], "somebody:else") as server:
        said = refused(engine, {"repo": f"{server.url}/code.git", "token": TOKEN})
    assert said.startswith(f"git_config: git clone of {server.url}/code.git failed: ")
    assert "Authentication failed" in said
    assert "check repo, branch, commit, and username with password or token" in said
    assert TOKEN not in said


def test_another_host_isn_t_given_the_secret(closed: GitServer, engine: MemoryEngine, served: Any) -> None:
    """The server redirects to another one, which asks for a login: it gets none."""
    with serving(served[0], "x:y") as thief:
        closed.elsewhere = thief.url
        said = refused(engine, {"repo": f"{closed.url}/code.git", "token": TOKEN})
        assert thief.requests
        assert thief.logins == []
    assert "failed" in said


def test_a_branch_that_isn_t_there_is_told(server: GitServer, engine: MemoryEngine) -> None:
    """git's own words, with the branch."""
    said = refused(engine, {"repo": f"{server.url}/code.git", "branch": "nope"})
    assert f"git clone of {server.url}/code.git (nope) failed:" in said
    assert "Remote branch nope not found" in said


def test_a_folder_that_isn_t_there_is_told(server: GitServer, engine: MemoryEngine) -> None:
    """source_dir of the repository; the place of the clone, which is gone, isn't named."""
    said = refused(engine, {"repo": f"{server.url}/code.git"}, source_dir="nope")
    assert said == f"git_config: nope of {server.url}/code.git isn't there; expected a path inside the repository"
    said = refused(engine, {"repo": f"{server.url}/code.git"}, entry_point="nope.py")
    assert said == "entry_point: nope.py isn't in source_dir the repository/src; give its path inside it"


def test_a_link_out_of_the_repository_isn_t_followed(server: GitServer, engine: MemoryEngine) -> None:
    """The branch `side` has a link to /etc."""
    config = {"repo": f"{server.url}/code.git", "branch": "side"}
    said = refused(engine, config, dependencies=["out"])
    assert (
        said == f"git_config: out of {server.url}/code.git leads outside of it; expected a path inside the repository"
    )


def test_a_plan_clones_nothing(server: GitServer, engine: MemoryEngine) -> None:
    """Nor does a dry run; zeros stand for the digest, and the plan says so."""
    estimator = PyTorch("train.py", source_dir="src", git_config={"repo": f"{server.url}/code.git"}, engine=engine)
    for plan in (estimator.plan(), estimator.fit(dry_run=True)):
        assert any("the repository is cloned at fit()" in note for note in plan.notes)
        assert f"/{'0' * 64}" in str(plan.request.training_job["HyperParameters"]["sagemaker_submit_directory"])
    assert server.requests == []


def test_nothing_is_left(
    server: GitServer, engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clone goes."""
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sent(engine, {"repo": f"{server.url}/code.git"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "repo",
    [
        "ext::sh -c touch% /tmp/x",
        "file:///srv/code.git",
        "/srv/code.git",
        "../code",
        "--upload-pack=touch x",
        "-u@host:code",
        "ssh://-oProxyCommand=x/code",
        "https://host",
        "https://host/a b",
        "https://host/a\nb",
        "ftp://host/code",
        "fd::17",
        "a@b::c",
    ],
)
def test_what_isn_t_a_repository_elsewhere_is_refused(repo: str) -> None:
    """Programs, files of this machine, options, addresses without a path."""
    _, [fault] = parse({"repo": repo})
    assert fault.startswith(
        f"git_config['repo'] is {repo!r}; expected https://host/path, ssh://host/path or user@host:path"
    )


@pytest.mark.parametrize("repo", ["https://h/a.git", "ssh://git@h:22/a", "git@h.org:a/b.git", "git://h/a"])
def test_what_is_a_repository_is_taken(repo: str) -> None:
    """The usual forms."""
    config, faults = parse({"repo": repo, "branch": "feature/x-1", "commit": "0123abc"})
    assert faults == []
    assert config is not None
    assert config.repo == repo


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("https://h/a", "git_config is 'https://h/a' (str); expected a dictionary with 'repo'"),
        ("https://u:secret9@h/a", "git_config is 'https:***@h/a' (str); expected a dictionary with 'repo'"),
        (
            {"repo": "https:/u:secret9@h/a"},
            "git_config['repo'] is 'https:***@h/a'; expected https://host/path, ssh://host/path or user@host:path; a "
            "folder of this machine is a source_dir",
        ),
        (
            {"repo": "https://[h/a", "token": "secret9"},
            "git_config['repo'] isn't a URL: Invalid IPv6 URL; expected https://host/path, ssh://host/path or "
            "user@host:path",
        ),
        ({}, "git_config has no 'repo'; expected https://host/path, ssh://host/path or user@host:path"),
        ({"repo": "https://h/a", "brnch": "x"}, "git_config: 'brnch' is unknown; did you mean 'branch'?"),
        ({"repo": "https://h/a", "branch": 1}, "git_config['branch'] is 1 (int); expected text"),
        ({"repo": "https://h/a", "token": 1234}, "git_config['token'] is int; expected text"),
        (
            {"repo": "https://h/a", "2FA_enabled": "no"},
            "git_config['2FA_enabled'] is 'no' (str); expected True or False",
        ),
        ({"repo": "https://h/a", "branch": "-x"}, "git_config['branch'] is '-x'; expected a branch's or tag's name"),
        (
            {"repo": "https://h/a", "branch": "a..b"},
            "git_config['branch'] is 'a..b'; expected a branch's or tag's name",
        ),
        (
            {"repo": "https://h/a", "commit": "--x"},
            "git_config['commit'] is '--x'; expected 4 to 64 hexadecimal digits",
        ),
        (
            {"repo": "https://u:secret9@h/a"},
            "git_config['repo'] has a login in it, and URLs are logged; give username and password, or token",
        ),
        (
            {"repo": "git@h:a", "token": "secret9"},
            "git_config: token are for https://; this repo is reached by your own key: leave out",
        ),
        (
            {"repo": "http://h/a", "token": "secret9"},
            "git_config: token would be readable on the way to http://; use https://",
        ),
        (
            {"repo": "https://h/a", "2FA_enabled": True, "username": "u", "password": "secret9"},
            "git_config: 2FA_enabled needs a token; a password alone isn't accepted then",
        ),
        ({"repo": "https://h/a", "username": "u"}, "git_config has a username, and no password; give both, or a token"),
        ({"repo": "https://h/a", "token": "secret9\n"}, "git_config: token must be one line each"),
    ],
)
def test_what_is_wrong_is_said_without_secrets(config: Any, said: str) -> None:
    """One line each."""
    assert parse(config) == (None, [said])
    assert "secret9" not in said


@pytest.mark.parametrize(
    "changes", [{"source_dir": "/src"}, {"entry_point": "../train.py"}, {"dependencies": ["../x"]}]
)
def test_paths_must_be_inside(engine: MemoryEngine, changes: dict[str, Any]) -> None:
    """Absolute, or out of the repository: refused before anything is cloned."""
    said = refused(engine, {"repo": "https://127.0.0.1:1/code.git"}, **changes)
    assert said.endswith("must be a relative path inside the repository of git_config")
