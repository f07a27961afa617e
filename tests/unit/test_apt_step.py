"""The step that installs Debian packages: what it is told, and what stays secret."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stoker.agent.environment import apt
from stoker.agent.environment.steps import Step
from stoker.model.errors import SetupFailed
from stoker.model.spec import PackageIndex

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def step(
    mirror: PackageIndex | None = None,
    env: dict[str, str] | None = None,
    password: str = "hunter2",
    *,
    check_only: bool = False,
) -> tuple[Step, list[tuple[str, str]]]:
    fetched: list[tuple[str, str]] = []

    def fetch(field: str, reference: str) -> str:
        fetched.append((field, reference))
        return password

    return apt.install_step(
        ["git", "ffmpeg=7:5.1"], mirror, fetch, env or {}, Path("/code"), check_only=check_only
    ), fetched


def test_it_runs_as_root_with_nothing_of_the_trainings() -> None:
    env = {"PATH": "/conda/bin", "LD_LIBRARY_PATH": "/conda/lib", "PYTHONPATH": "/code"}
    kept = {"HOME": "/root", "TMPDIR": "/tmp", "http_proxy": "http://a", "HTTPS_PROXY": "http://b", "no_proxy": "c"}
    made, fetched = step(env={**env, **kept})
    assert made.command.env == {**kept, "PATH": PATH}
    assert made.command.root and made.command.cwd == Path("/code") and made.command.secrets == {}
    assert made.command.argv == ("sh", "-c", apt.SCRIPT, "apt", "git", "ffmpeg=7:5.1")
    assert (made.name, made.failure_message) == (
        "apt (git, ffmpeg=7:5.1)",
        "environment.apt: git, ffmpeg=7:5.1 cannot be installed",
    )
    # What was half done, apt goes on with.
    assert made.undo is not None and made.undo() is None
    assert fetched == []


@pytest.mark.parametrize(
    ("url", "source", "suite", "machine"),
    [
        ("https://host/debian", "https://host/debian", "", "host/debian"),
        ("http://host:8080/debian", "http://host:8080/debian", "", "http://host:8080/debian"),
        ("[trusted=yes] https://host/debian ./", "[trusted=yes] https://host/debian", "./", "host/debian"),
    ],
)
def test_a_mirror_and_its_password(url: str, source: str, suite: str, machine: str) -> None:
    open_to_all, fetched = step(PackageIndex(url))
    told = {"PATH": PATH, "STOKER_APT_SOURCE": source, "STOKER_APT_SUITE": suite}
    assert open_to_all.command.env == told and open_to_all.command.secrets == {} and fetched == []
    private, fetched = step(PackageIndex(url, "env:TOKEN"))
    assert private.command.env == {**told, "STOKER_APT_MACHINE": machine, "STOKER_APT_USER": "__token__"}
    assert private.command.secrets == {"STOKER_APT_PASSWORD": "hunter2"}
    assert fetched == [("environment.apt_mirror.secret", "env:TOKEN")]


@pytest.mark.parametrize("password", ["", "two words", "a\ttab"])
def test_a_password_that_apt_cannot_read_is_refused(password: str) -> None:
    with pytest.raises(
        SetupFailed, match=r"^environment\.apt_mirror\.secret: is empty or contains white space"
    ) as failed:
        step(PackageIndex("https://host/debian", "env:TOKEN"), password=password)
    assert failed.value.user


def test_on_the_submitters_own_computer_it_only_looks() -> None:
    made, fetched = step(PackageIndex("https://host/debian", "env:TOKEN"), check_only=True)
    assert made.command.env == {"PATH": PATH, "STOKER_APT_CHECK_ONLY": "1"}
    assert made.command.secrets == {} and fetched == []


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A computer that has git, and knows nothing of anything else. An apt-get that is run is noted."""
    (tmp_path / "dpkg-query").write_text('#!/bin/sh\n[ "$3" = git ] && echo "installed 1:2.39"\n')
    (tmp_path / "apt-get").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    for program in ("dpkg-query", "apt-get"):
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("STOKER_APT_CHECK_ONLY", raising=False)
    return tmp_path


def test_what_this_computer_lacks_is_found_out_without_changing_it(installed: Path) -> None:
    assert apt.missing_packages(["git", "ffmpeg", "git=1:2.39", "git=1:1.0"]) == ("ffmpeg", "git=1:1.0")
    assert apt.missing_packages(["git"]) == ()
    assert not (installed / "ran").exists()


def test_the_script_says_what_is_there_and_what_is_not(installed: Path) -> None:
    def run(*packages: str, **env: str) -> tuple[int, str]:
        variables = {"PATH": f"{installed}:/usr/bin:/bin", **env}
        done = subprocess.run(
            ["sh", "-c", apt.SCRIPT, "apt", *packages],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    assert run("git") == (0, "installed already: git\n")
    code, said = run("git", "ffmpeg", STOKER_APT_CHECK_ONLY="1")
    assert code == 1 and "not installed on this computer, which Stoker never changes: ffmpeg; run 'apt-get" in said
    assert not (installed / "ran").exists()
