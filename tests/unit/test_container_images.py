"""Images: pulled with a login that nobody sees, and the same one again for later attempts. The engine is a script."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.container import images, registry_login
from stoker.agent.container.engine import Engine, EngineResult
from stoker.agent.container.images import ImageFetcher, pull_arguments
from stoker.agent.container.pipes import START_COMMAND, ContainerPipes
from stoker.agent.container.registry_login import RegistryLogin
from stoker.model.errors import SetupFailed
from stoker.model.node_facts import ImageFact
from stoker.processes.container_sweep import (
    ContainerRecord,
    container_name,
    read_record,
    record_of,
    sweep,
    write_record,
)

pytestmark = pytest.mark.slow

PAUSES_S = images.PAUSES_S
ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"

# Keeps what it was asked, and what its configuration said; has the images that lie in a folder, each a JSON file.
FAKE = """#!/usr/bin/env python3
import json, os, pathlib, sys
here = pathlib.Path(sys.argv[0]).parent
words = sys.argv[1:]
config = None
for word in list(words):
    name, _, value = word.partition("=")
    if name == "--config":
        config = pathlib.Path(value, "config.json").read_text()
        words.remove(word)
    elif name == "--authfile":
        config = pathlib.Path(value).read_text()
        words.remove(word)
with (here / "asked").open("a") as file:
    file.write(json.dumps({"words": words, "config": config}) + "\\n")
known = json.loads((here / "images").read_text())
remote = json.loads((here / "remote").read_text())
if words[:2] == ["image", "inspect"]:
    if words[2] not in known:
        sys.exit(f"Error: No such image: {words[2]}")
    print(json.dumps([known[words[2]]]))
elif words[0] == "pull":
    name = words[-1]
    if name not in remote:
        sys.exit("Error response from daemon: " + remote.get("*", "manifest unknown"))
    known[name] = remote[name]
    for digest in remote[name].get("RepoDigests", []):
        known[digest] = remote[name]
    known[remote[name]["Id"]] = remote[name]
    (here / "images").write_text(json.dumps(known))
"""


def image(number: int, name: str = "repo/x") -> dict[str, Any]:
    return {
        "Id": f"sha256:{number}",
        "RepoDigests": [f"other/y@sha256:d{number}", f"{name}@sha256:d{number}"],
        "Config": {"Env": ["A=1", "B=x=y"], "Entrypoint": ["/entry", "--"]},
    }


class World:
    """A folder with a fake engine in it."""

    def __init__(self, folder: Path, program: str = "docker") -> None:
        self.folder = folder
        self.program = folder / program
        self.program.write_text(FAKE)
        self.program.chmod(0o755)
        self.said: list[str] = []
        self.timed: list[str] = []
        self.login: RegistryLogin | None = None
        self.pauses: list[float] = []
        self.has({}, {})

    def has(self, images: dict[str, Any], remote: dict[str, Any]) -> None:
        (self.folder / "images").write_text(json.dumps(images))
        (self.folder / "remote").write_text(json.dumps(remote))

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]

    def images(self) -> ImageFetcher:
        @contextmanager
        def timed(name: str, remedy: str) -> Iterator[None]:
            assert remedy
            self.timed.append(name)
            yield

        engine = Engine(self.program.name)
        return ImageFetcher(engine, lambda _: self.login, self.folder / "private", self.said.append, timed, self.pause)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(images, "PAUSES_S", (1.0, 2.0))
    return World(tmp_path)


def test_what_is_here_is_not_pulled(world: World) -> None:
    world.has({"repo/x:1": image(1)}, {})
    found = world.images().fetch("repo/x:1")
    assert (found.id, found.identity, found.entrypoint) == ("sha256:1", "repo/x@sha256:d1", ("/entry", "--"))
    assert found.environ == {"A": "1", "B": "x=y"}
    assert [each["words"][0] for each in world.asked] == ["image"] and not world.timed


def test_a_login_is_in_a_file_that_goes_away(world: World) -> None:
    world.has({}, {f"{ECR}/x:1": image(1, f"{ECR}/x")})
    world.login = registry_login.make_login(ECR, "pass:word", "a field")
    found = world.images().fetch(f"{ECR}/x:1")
    assert found.identity == f"{ECR}/x@sha256:d1"
    (pull,) = [each for each in world.asked if "pull" in each["words"]]
    assert pull["words"] == ["pull", "--quiet", f"{ECR}/x:1"]
    # base64 of AWS:pass:word
    assert json.loads(pull["config"]) == {"auths": {ECR: {"auth": "QVdTOnBhc3M6d29yZA=="}}}
    assert not (world.folder / "private").exists()
    assert world.timed == [f"docker pull {ECR}/x:1"]
    assert "pass" not in repr(world.login)


def test_the_exact_command_lines_of_a_pull() -> None:
    folder = Path("/dev/shm/stoker-x")
    assert pull_arguments("docker", "a/b:1", folder) == ["--config=/dev/shm/stoker-x", "pull", "--quiet", "a/b:1"]
    assert pull_arguments("podman", "a/b:1", folder) == [
        "pull",
        "--quiet",
        "--authfile=/dev/shm/stoker-x/config.json",
        "a/b:1",
    ]
    assert pull_arguments("docker", "a/b:1", None) == ["pull", "--quiet", "a/b:1"]


def test_a_later_attempt_has_the_image_of_the_first(world: World) -> None:
    before = ImageFact(name="repo/x:1", id="sha256:1", digest="repo/x@sha256:d1")
    # The tag has moved on, and another machine has neither.
    world.has({}, {"repo/x:1": image(2), "repo/x@sha256:d1": image(1)})
    assert world.images().fetch("repo/x:1", before).id == "sha256:1"
    assert not world.said
    # It is gone from the registry: what the name means now is taken, and told.
    world.has({}, {"repo/x:1": image(2)})
    assert world.images().fetch("repo/x:1", before).id == "sha256:2"
    assert "is no longer available" in world.said[0] and "manifest unknown" in world.said[0]
    # A registry that only has no time now, or lets nobody in, is no reason to take another image.
    for complaint, user in (("toomanyrequests: You have reached your limit", False), ("denied: expired", True)):
        world.has({}, {"repo/x:1": image(2), "*": complaint})
        with pytest.raises(SetupFailed, match="repo/x@sha256:d1") as failed:
            world.images().fetch("repo/x:1", before)
        assert failed.value.user is user
    # One that no registry knows can only be here.
    world.has({"sha256:1": image(1), "repo/x:1": image(2)}, {})
    assert world.images().fetch("repo/x:1", ImageFact("repo/x:1", "sha256:1")).id == "sha256:1"


@pytest.mark.parametrize(
    ("complaint", "user", "word"),
    [
        ("manifest for repo/x:1 not found: manifest unknown", True, "there is no repo/x:1"),
        ("pull access denied for repo/x, repository does not exist or may require 'docker login'", True, "secret"),
        ("Head https://r/v2: no basic auth credentials", True, "environment.container.secret"),
        ("Get https://r/v2/: net/http: TLS handshake timeout", False, "cannot be pulled"),
        ("dial tcp: lookup r on 1.1.1.1:53: no such host", False, "cannot be pulled"),
        ("toomanyrequests: You have reached your pull rate limit", False, "cannot be pulled"),
        ("write /var/lib/docker/x: no space left on device", True, "ask for a larger disk with resources.disk"),
        ("received unexpected HTTP status: 503 Service Unavailable", False, "cannot be pulled"),
        ("unexpected status from HEAD request to https://r/v2/x: 502 Bad Gateway", False, "cannot be pulled"),
        ("error parsing HTTP 503 response body: invalid character '<' looking for", False, "cannot be pulled"),
        ("invalid status code from registry 500 (Internal Server Error)", False, "cannot be pulled"),
        ('Get "https://r/v2/": read tcp 1:2->3:4: read: connection reset by peer', False, "cannot be pulled"),
        ('Get "https://r/v2/": dial tcp: lookup r: Temporary failure in name resolution', False, "cannot be pulled"),
        ("invalid reference format", True, "cannot be pulled"),
        ("x509: certificate signed by unknown authority", True, "cannot be pulled"),
    ],
)
def test_whose_fault_it_is_that_it_cannot_be_pulled(world: World, complaint: str, user: bool, word: str) -> None:
    _pulled(world, "repo/x:1", complaint, user, word)


@pytest.mark.parametrize(
    ("name", "complaint", "user", "word"),
    [
        ("r.local/m:500", "manifest for r.local/m:500 not found: manifest unknown", True, "there is no r.local/m:500"),
        ("org/timeout-predictor", "pull access denied for org/timeout-predictor", True, "may not be pulled"),
        ("r.local/i/o-timeout:1", 'failed to resolve reference "r.local/i/o-timeout:1": x', True, "cannot be pulled"),
        ("429.dkr/x:1", "manifest for 429.dkr/x:1 not found", True, "there is no 429.dkr/x:1"),
        ("r.local/503:1", 'Head "https://r.local/v2/503/manifests/1": x509: certificate', True, "cannot be pulled"),
        ("r.exmaple/x", 'Get "https://r.exmaple/v2/": dial tcp: lookup r.exmaple: no such host', True, "no registry r"),
        # Names that would be taken for an answer of the registry.
        ("r.local/invalid:1", "r.local/invalid:1: toomanyrequests: You have reached your limit", False, "cannot"),
        ("r.local/denied", 'Get "https://r.local/v2/denied": net/http: TLS handshake timeout', False, "cannot"),
    ],
)
def test_a_name_says_nothing_about_whose_fault_it_is(
    world: World, name: str, complaint: str, user: bool, word: str
) -> None:
    _pulled(world, name, complaint, user, word)


def _pulled(world: World, name: str, complaint: str, user: bool, word: str) -> None:
    world.has({}, {"*": complaint})
    with pytest.raises(SetupFailed) as failed:
        world.images().fetch(name)
    assert failed.value.user is user
    assert word in str(failed.value) and str(failed.value).startswith("environment.container.image: ")
    assert "\n" not in str(failed.value)
    # What may pass is asked for again.
    assert len([each for each in world.asked if each["words"][0] == "pull"]) == (1 if user else 3)


def test_a_registry_that_does_not_answer_gets_minutes_to_do_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "PAUSES_S", PAUSES_S)
    world.has({}, {"*": "dial tcp 1.2.3.4:443: connect: connection refused"})
    with pytest.raises(SetupFailed):
        world.images().fetch("repo/x:1")
    assert world.pauses == sorted(world.pauses) and world.pauses[0] < 5
    assert 180 <= sum(world.pauses) <= 600
    said = "repo/x:1 cannot be pulled now: dial tcp 1.2.3.4:443: connect: connection refused; trying again in "
    assert world.said == [f"{said}{pause_s:.0f} s" for pause_s in world.pauses]
    # One login, which stays for as long as it is needed and no longer.
    assert not (world.folder / "private").exists()


def test_a_registry_that_is_back_is_heard(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.has({}, {"*": "received unexpected HTTP status: 503 Service Unavailable"})

    def pause(seconds: float) -> None:
        world.pauses.append(seconds)
        if len(world.pauses) == 2:
            world.has({}, {"repo/x:1": image(1)})

    monkeypatch.setattr(world, "pause", pause)
    assert world.images().fetch("repo/x:1").id == "sha256:1"
    assert len(world.pauses) == len(world.said) == 2


def test_who_is_told_to_go_does_not_wait_for_a_registry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Exception):
        pass

    def pause(_: float) -> None:
        raise Told

    monkeypatch.setattr(world, "pause", pause)
    world.has({}, {f"{ECR}/y": {}, "*": "toomanyrequests: slow down"})
    world.login = registry_login.make_login(ECR, "pass:word", "a field")
    with pytest.raises(Told):
        world.images().fetch(f"{ECR}/x:1")
    assert not (world.folder / "private").exists()


@pytest.mark.parametrize(
    ("name", "where", "reference"),
    [
        ("ubuntu", "docker.io", None),
        ("pytorch/pytorch:2", "docker.io", None),
        ("ghcr.io/a/b", "ghcr.io", None),
        ("localhost/x", "localhost", None),
        ("localhost:5000/x:1", "localhost:5000", None),
        (f"{ECR}/a/b@sha256:1", ECR, "aws-ecr:eu-west-1"),
        (
            "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/x",
            "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn",
            "aws-ecr:cn-north-1",
        ),
        ("europe-west4-docker.pkg.dev/p/r/x:1", "europe-west4-docker.pkg.dev", "gcp-token"),
        ("eu.gcr.io/p/x", "eu.gcr.io", "gcp-token"),
        ("evil.gcr.io.example.com/x", "evil.gcr.io.example.com", None),
        ("public.ecr.aws/x/y", "public.ecr.aws", None),
    ],
)
def test_the_machines_own_identity_is_for_its_clouds_registries_alone(
    name: str, where: str, reference: str | None
) -> None:
    assert registry_login.registry_of(name) == where
    assert registry_login.reference_of(where) == reference


def test_logins_by_registry() -> None:
    assert registry_login.make_login("ghcr.io", "jane:to:ken", "f") == RegistryLogin("ghcr.io", "jane", "to:ken")
    assert registry_login.make_login("eu.gcr.io", "ya29.x", "f") == RegistryLogin(
        "eu.gcr.io", "oauth2accesstoken", "ya29.x"
    )
    assert registry_login.make_login("eu.gcr.io", '_json_key:{"a": 1}', "f") == RegistryLogin(
        "eu.gcr.io", "_json_key", '{"a": 1}'
    )
    with pytest.raises(SetupFailed, match=r"f: the secret has to be `user:password` for ghcr\.io"):
        registry_login.make_login("ghcr.io", "token", "f")


@pytest.mark.parametrize(
    ("config", "known"),
    [
        ({"auths": {ECR: {}}}, True),
        ({"credHelpers": {ECR: "ecr-login"}}, True),
        ({"credsStore": "desktop"}, True),
        ({"auths": {"ghcr.io": {}}}, False),
        ({}, False),
    ],
)
def test_who_has_logged_in_already_is_left_alone(tmp_path: Path, config: dict[str, Any], known: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert registry_login.has_login(ECR, {"DOCKER_CONFIG": str(tmp_path)}) is known


@pytest.mark.parametrize("shell", ["dash", "bash --posix", "busybox sh", "ksh"])
def test_what_goes_through_the_door_arrives_as_it_was(tmp_path: Path, shell: str) -> None:
    program, *more = shell.split()
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    door = ContainerPipes(tmp_path / "door")
    door.open()
    # More than a pipe holds, and everything that a shell may take for its own.
    variables = {"BIG": "x" * 100_000, "ODD": 'it\'s "so"\nnext $HOME `x` \\', "BATCH-SIZE": "$x 'y'", "-a.b": "2"}
    script = "import os, sys; print(len(os.environ['BIG']), *map(os.environ.get, sys.argv[1:])); sys.exit(7)"
    for argv, said, code in (
        ([sys.executable, "-c", script, "ODD", "BATCH-SIZE", "-a.b"], None, 7),
        (["no-such-program"], "missing", 127),
    ):
        entrance = door.command_pipes()
        words = [str(entrance.exports), str(tmp_path / "out"), str(entrance.reply), *argv]
        child = subprocess.Popen([program, *more, "-c", START_COMMAND, "stoker", *words])
        heard = entrance.send_variables(variables, lambda: child.poll() is not None)  # noqa: B023
        assert heard == (said or str(child.pid)) and child.wait() == code
        entrance.close()
    assert (tmp_path / "out").read_text() == f"100000 {variables['ODD']} $x 'y' 2\n"
    assert sorted(path.name for path in door.folder.iterdir()) == ["alive", "begun"]
    # Nobody comes through: that is noticed, not waited for.
    entrance = door.command_pipes()
    assert entrance.send_variables(variables, lambda: True) is None
    entrance.close()
    door.close()
    assert not door.folder.exists()


def test_nobody_but_an_agent_says_what_is_swept(world: World, tmp_path: Path) -> None:
    root = tmp_path / "node"
    root.mkdir()
    private = tmp_path / container_name(root)
    private.mkdir()
    write_record(root, ContainerRecord("docker", str(private)))
    assert read_record(root) == ContainerRecord("docker", str(private))
    sweep(root)
    assert not private.exists() and not record_of(root).exists()
    assert world.asked[-1]["words"] == ["rm", "--force", "--volumes", container_name(root)]
    # What a training may have written there.
    precious = tmp_path / "precious"
    precious.mkdir()
    for text in ('{"engine": "docker", "private": "PRECIOUS"}', '{"engine": "/bin/sh", "private": "x"}', "[]", "x"):
        record_of(root).write_text(text.replace("PRECIOUS", str(precious)))
        sweep(root)
    assert precious.exists() and len(world.asked) == 1


@pytest.mark.parametrize(
    ("variable", "file"),
    [
        ("DOCKER_CONFIG", "config.json"),
        ("HOME", ".docker/config.json"),
        ("XDG_RUNTIME_DIR", "containers/auth.json"),
        ("REGISTRY_AUTH_FILE", None),
    ],
)
def test_logins_are_looked_for_where_engines_keep_them(tmp_path: Path, variable: str, file: str | None) -> None:
    place = tmp_path / (file or "auth.json")
    environ = {variable: str(tmp_path if file else place)}
    assert not registry_login.has_login("docker.io", environ)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("no JSON")
    assert not registry_login.has_login("docker.io", environ)
    for name in ("https://index.docker.io/v1/", "docker.io", "https://docker.io"):
        place.write_text(json.dumps({"auths": {name: {}}}))
        assert registry_login.has_login("docker.io", environ) and not registry_login.has_login("ghcr.io", environ)
    # The engine's own place wins over the one below the home.
    assert not registry_login.has_login("docker.io", {**environ, "DOCKER_CONFIG": "/nowhere"}) or variable != "HOME"


def test_a_password_is_kept_where_it_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry_login.private_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path
    may = {"/dev/shm", "/run"}
    monkeypatch.setattr(os, "access", lambda place, _how: place in may)
    assert registry_login.private_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == Path("/dev/shm")
    may.remove("/dev/shm")
    assert registry_login.private_folder({}) == Path("/run")
    may.clear()
    with pytest.raises(SetupFailed, match=r"neither /dev/shm nor /run is writable") as failed:
        registry_login.private_folder({})
    assert not failed.value.user


@pytest.mark.parametrize(
    ("where", "names"),
    [("ghcr.io", ["ghcr.io"]), ("docker.io", ["https://index.docker.io/v1/", "docker.io"])],
)
def test_a_login_is_for_its_registry_and_for_this_user_alone(tmp_path: Path, where: str, names: list[str]) -> None:
    folder = tmp_path / "login"
    (folder / "left").mkdir(parents=True)
    with registry_login.login_folder(RegistryLogin(where, "jane", "hunter2"), folder) as made:
        assert made == folder and [path.name for path in folder.iterdir()] == ["config.json"]
        modes = [path.stat().st_mode & 0o777 for path in (folder, folder / "config.json")]
        assert modes == [0o700, 0o600]
        auth = base64.b64encode(b"jane:hunter2").decode()
        assert json.loads((folder / "config.json").read_text()) == {"auths": {name: {"auth": auth} for name in names}}
    assert not folder.exists()
    assert "hunter2" not in repr(RegistryLogin(where, "jane", "hunter2"))


@pytest.mark.parametrize(
    ("said", "code", "gone"),
    [
        ("", 0, True),
        ("Error: No such container: x", 1, True),
        ("Error: no container with name or ID x found", 1, True),
        ("removal of container x is already in progress", 1, True),
        ("Cannot connect to the Docker daemon", 1, False),
    ],
)
def test_a_container_that_is_not_gone_is_removed_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int, gone: bool
) -> None:
    monkeypatch.setattr("stoker.processes.container_sweep._PAUSE_S", 0.0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script = tmp_path / "docker"
    script.write_text(f'#!/bin/sh\necho asked >>{tmp_path}/asked\necho "{said}" >&2\nexit {code}\n')
    script.chmod(0o755)
    root = tmp_path / "node"
    (root / "pipes").mkdir(parents=True)
    write_record(root, ContainerRecord("docker", str(tmp_path / container_name(root))))
    sweep(root)
    assert not (root / "pipes").exists() and record_of(root).exists() is not gone
    assert len((tmp_path / "asked").read_text().splitlines()) == (1 if gone else 3)
    script.unlink()
    sweep(root)


@pytest.mark.parametrize(
    ("said", "transient"),
    [
        ("manifest unknown", False),
        ("Cannot connect to the Docker daemon at unix:///x. Is it there? manifest unknown", True),
        ("unexpected EOF", True),
    ],
)
def test_a_pull_is_tried_again_unless_the_answer_is_final(said: str, transient: bool) -> None:
    assert images.is_transient(EngineResult(1, "", said), "repo/x:1") is transient
