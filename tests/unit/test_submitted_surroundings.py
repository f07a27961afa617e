"""What a job says about this computer, looked at when it is submitted: its inputs, its programs, its secrets."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.environment import apt
from stoker.agent.inputs import source
from stoker.model.errors import NoCredentials, StoreDenied, StoreUnavailable, UserError
from stoker.model.resources import Resources
from stoker.model.spec import Container, Environment, Input, Spec
from stoker.providers import registry
from stoker.store.base import open_store
from stoker.submit import check_inputs, local_environment, prepare
from stoker.submit.local_environment import localise


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only ones there are, but for those of the system."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for name in ("MAMBA_EXE", "CONDA_EXE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def write(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def refusal(spec: Spec, folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        localise(spec, registry.capabilities(spec.resources.provider), folder, None)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def reading(wanted: Input | str, *, nodes: int = 1, provider: str = "local") -> Spec:
    one = wanted if isinstance(wanted, Input) else Input(wanted)
    return Spec(name="j", run="true", nodes=nodes, resources=Resources(provider=provider), inputs={"data": one})


# ── Inputs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("provider", ["local", "ec2"])
def test_what_there_is_too_little_of_is_refused(tmp_path: Path, provider: str) -> None:
    folder = tmp_path / "data"
    (folder / "sub" / "deep").mkdir(parents=True)
    assert refusal(reading("data", provider=provider), tmp_path) == f"inputs.data: there is no file in {folder}"
    (folder / "sub" / "deep" / "x").touch()
    (folder / "y").touch()
    capabilities = registry.capabilities(provider)
    localise(reading("data", provider=provider), capabilities, tmp_path, None)
    localise(reading(Input("data", shard=True), nodes=2, provider=provider), capabilities, tmp_path, None)
    asked = reading(Input("data", shard=True), nodes=3, provider=provider)
    assert refusal(asked, tmp_path).startswith(
        f"inputs.data.shard: 2 files at {folder} cannot be shared out among 3 nodes; name a folder with more of them"
    )
    # Every node gets all of it.
    localise(reading("data", nodes=3, provider=provider), capabilities, tmp_path, None)
    # Nobody knows how many there are behind it.
    (folder / "link").symlink_to(tmp_path)
    localise(asked, capabilities, tmp_path, None)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    said = f"inputs.data: {tmp_path}/x is a file; write it without the slash at the end"
    assert refusal(reading("x/"), tmp_path) == said
    shared = refusal(reading(Input("x", shard=True), nodes=2), tmp_path)
    assert shared.startswith(f"inputs.data.shard: 1 file at {tmp_path}/x cannot be shared out among 2 nodes")
    localise(reading(Input("x", shard=True)), registry.capabilities("local"), tmp_path, None)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://", "'' is not the name of a bucket; write s3://bucket"),
        ("s3:///x", "'' is not the name of a bucket"),
        ("gs://B_", "'B_' is not the name of a bucket; write gs://bucket"),
        ("s3://bucket/../x", "'../x' cannot be a prefix in a bucket"),
    ],
)
def test_a_url_without_a_bucket(tmp_path: Path, url: str, problem: str) -> None:
    assert refusal(reading(url), tmp_path).startswith(f"inputs.data: {problem}")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (NoCredentials("s3://bucket/x: no AWS credentials; set AWS_PROFILE"), "no AWS credentials; set AWS_PROFILE"),
        (StoreDenied("the bucket bucket does not exist; check its name, or create it"), "check its name"),
        (source.NothingThere("there is nothing at s3://bucket/x"), "there is nothing at s3://bucket/x; check the URL"),
        (UserError("AWS_PROFILE=jane needs boto3: install it"), "AWS_PROFILE=jane needs boto3"),
        (StoreUnavailable("s3://bucket/x did not answer"), None),
    ],
)
def test_a_bucket_that_this_computer_reads_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Exception, problem: str | None
) -> None:
    asked: list[str] = []

    def find(self: source.InputSource) -> tuple[str, str | None]:
        asked.append(self.url)
        raise answer

    monkeypatch.setattr(source.InputSource, "find", find)
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    store = open_store(str(tmp_path / "store"))
    spec = reading("s3://bucket/x")
    # A dry run asks nobody.
    with prepare.prepare(spec, store, folder=tmp_path / "code", offline=True):
        assert asked == []
    if problem is None:
        with prepare.prepare(spec, store, folder=tmp_path / "code"):
            assert asked == ["s3://bucket/x"]
        return
    with pytest.raises(UserError) as refused:
        prepare.prepare(spec, store, folder=tmp_path / "code")
    assert str(refused.value).startswith("inputs.data: ") and problem in str(refused.value)
    # What is only passed on is read by others.
    check_inputs.check_readable(reading(Input("s3://bucket/x", mode="stream")))


# ── Programs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def contained(engine: str = "docker") -> Spec:
    return Spec(name="j", run="true", environment=Environment(container=Container("i", engine=engine)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///x.",
            "start it (`systemctl start docker`), or set DOCKER_HOST",
        ),
        ("permission denied while trying to connect", "join the group docker, or set DOCKER_HOST"),
    ],
)
def test_a_docker_without_its_daemon(programs: Path, tmp_path: Path, said: str, advice: str) -> None:
    write(programs / "docker", f"echo '{said}' >&2; echo 'more of it' >&2; exit 1")
    problem = f"environment.container: docker's daemon does not answer: {said}; {advice}"
    assert refusal(contained(), tmp_path) == problem
    write(programs / "docker", 'test "$1" = version && echo 26.1')
    localise(contained(), registry.capabilities("local"), tmp_path, None)
    # Machines have their own.
    write(programs / "docker", "exit 1")
    elsewhere = replace(contained(), resources=Resources(provider="ec2"))
    localise(elsewhere, registry.capabilities("ec2"), tmp_path, None)


def test_a_daemon_that_is_busy_is_left_to_whoever_needs_it(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("docker", 1)

    write(programs / "docker", "exit 1")
    monkeypatch.setattr(local_environment.subprocess, "run", busy)
    localise(contained(), registry.capabilities("local"), tmp_path, None)


@pytest.mark.parametrize(("engine", "other"), [("docker", "podman"), ("podman", "docker")])
def test_an_engine_that_is_not_there(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, other: str
) -> None:
    monkeypatch.setenv("PATH", str(programs))
    missing = f"environment.container: there is no {engine} on this computer; "
    assert refusal(contained(engine), tmp_path) == f"{missing}install {engine}"
    write(programs / other, "exit 0")
    assert refusal(contained(engine), tmp_path) == f"{missing}set environment.container.engine: {other}"


def test_a_docker_that_does_not_run(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs))
    (programs / "docker").write_bytes(b"\x7fELF and no more")
    (programs / "docker").chmod(0o755)
    problem = "environment.container: docker does not run: Exec format error; reinstall it"
    assert refusal(contained(), tmp_path) == problem


def test_packages_of_the_system_that_this_computer_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "missing_packages", lambda wanted: [one for one in wanted if one != "git"])
    asked = Spec(name="j", run="true", environment=Environment(apt=("git", "ffmpeg", "sox")))
    assert refusal(asked, tmp_path) == (
        "environment.apt: not installed on this computer, which Stoker never changes: ffmpeg sox; "
        "run `apt-get install ffmpeg sox` as root, or set environment.container"
    )
    there = replace(asked, environment=Environment(apt=("git",)))
    localise(there, registry.capabilities("local"), tmp_path, None)
    # Machines install them.
    elsewhere = replace(asked, resources=Resources(provider="ec2"))
    localise(elsewhere, registry.capabilities("ec2"), tmp_path, None)


# ── A checkpoint of elsewhere ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_to_resume_from(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    asked = Spec(name="j", run="true", resume_from="old")
    found = localise(asked, registry.capabilities("local"), tmp_path, None)
    assert found.resume_from == str(tmp_path / "old")
    remote = replace(asked, resources=Resources(provider="ec2"))
    assert refusal(remote, tmp_path) == (
        f"resume_from: {tmp_path}/old is on this computer, where the machines cannot reach it; give a URL"
    )
    gone = f"resume_from: there is no folder {tmp_path}/gone; name a job, a URL or a folder"
    assert refusal(replace(asked, resume_from="./gone"), tmp_path) == gone
    # Without a store nothing says which job is meant.
    for text in ("s3://bucket/x", "gone", "gone:best"):
        kept = localise(replace(asked, resume_from=text), registry.capabilities("local"), tmp_path, None)
        assert kept.resume_from == text


def test_a_volume_of_a_folder_that_is_not_there(programs: Path, tmp_path: Path) -> None:
    write(programs / "docker", "echo 26.1")
    (tmp_path / "user" / "own").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "file").touch()

    def mounting(run: dict[str, Any]) -> Spec:
        return replace(contained(), environment=Environment(container=Container("i", run=run)))

    for name, value, path in (
        ("volumes", ["/nope/x:/x:ro"], "/nope/x"),
        ("volumes", {"./nope": "/x"}, f"{tmp_path}/nope"),
        ("volume", "~/nope:/x", f"{tmp_path}/user/nope"),
        ("volumes", ["cache:/cache", "file/x:/y", "./file/x:/x"], f"{tmp_path}/file/x"),
    ):
        said = refusal(mounting({name: value}), tmp_path)
        assert said.startswith(f"environment.container.run.{name}: {path} is not on this computer; make it first")
        # Machines have folders of their own.
        elsewhere = replace(mounting({name: value}), resources=Resources(provider="ec2"))
        kept = localise(elsewhere, registry.capabilities("ec2"), tmp_path, None).environment.container
        assert kept is not None and kept.run == {name: value}
    assert not (tmp_path / "nope").exists()
    run = {
        "volumes": ["./data:/x:ro", "~/own:/y", "cache:/cache", "/anonymous", "/tmp:/tmp"],
        "volume": {"data": "/named", ".": "/z"},
        "tmpfs": {"/scratch": "size=1g"},
    }
    found = localise(mounting(run), registry.capabilities("local"), tmp_path, None).environment.container
    assert found is not None and found.run == {
        "volumes": [f"{tmp_path}/data:/x:ro", f"{tmp_path}/user/own:/y", "cache:/cache", "/anonymous", "/tmp:/tmp"],
        "volume": {"data": "/named", str(tmp_path): "/z"},
        "tmpfs": {"/scratch": "size=1g"},
    }


def test_no_conda_on_this_computer(programs: Path, tmp_path: Path) -> None:
    spec = Spec(name="j", run="true", environment=Environment(conda="environment.yml"))
    said = "environment.conda: there is no conda, mamba or micromamba on this computer; install one"
    assert refusal(spec, tmp_path).startswith(said)
    for elsewhere in ("ec2", "gce"):
        localise(
            replace(spec, resources=Resources(provider=elsewhere)), registry.capabilities(elsewhere), tmp_path, None
        )
    write(programs / "micromamba", "echo 2.0")
    write(programs / "python", "exit 0")
    localise(spec, registry.capabilities("local"), tmp_path, None)


# ── Secrets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_value_of_a_variable_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec(name="j", run="true", secrets={"PW": "env:LOGINS#pw"})
    assert refusal(spec, tmp_path) == "secrets.PW: LOGINS is not set in your environment; export it first"
    monkeypatch.setenv("LOGINS", '{"user": "jane"}')
    assert refusal(spec, tmp_path) == "secrets.PW: has no 'pw'; it has user"
    monkeypatch.setenv("LOGINS", '{"pw": "hunter22"}')
    localise(spec, registry.capabilities("local"), tmp_path, None)
