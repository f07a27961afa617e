"""A container as the place where a training runs: made, entered, ended, and told of what befell it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_world import JOB, AgentWorld
from plain_store import wait_for
from small_engine import SmallEngine

from stoker.agent.container import host_devices, images, process_group
from stoker.agent.container.container import ContainerRuntime
from stoker.agent.container.host_devices import HostCapabilities, detect_host
from stoker.agent.container.process_group import ContainerRun
from stoker.agent.runtime import BindMount, Command, RuntimeView
from stoker.model import codec, keys
from stoker.model.errors import SetupFailed
from stoker.model.node_facts import ImageFact
from stoker.model.resources import Gpus, Resources
from stoker.model.spec import Container as ContainerSpec
from stoker.model.spec import Environment, Spec
from stoker.model.submission import Submission
from stoker.processes.container_sweep import container_name, read_record

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces of processes everywhere")

IMAGE: dict[str, Any] = {
    "Id": "sha256:1",
    "RepoDigests": ["repo/x@sha256:d1"],
    "Config": {
        "Env": ["A=image", "PATH=/image/bin:/usr/bin:/bin"],
        "Entrypoint": ["sh", "-c", 'echo by "$@"; exec "$@"', "e"],
    },
}
OTHER: dict[str, Any] = {**IMAGE, "Id": "sha256:2", "RepoDigests": ["repo/x@sha256:d2"]}
AROUND = HostCapabilities(uid=0, gid=0, gpus=0, toolkit=False, shm_bytes=0, selinux=False)


def timed(_name: str, _remedy: str) -> AbstractContextManager[None]:
    return nullcontext()


class Yard:
    """A node, an engine, and containers of the node."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = AgentWorld(root)
        self.engine = SmallEngine(root / "engine", monkeypatch)
        self.engine.has(**{"repo/x:1": IMAGE, "sha256:1": IMAGE, "repo/x@sha256:d1": IMAGE})
        self.world.submit("true")
        self.claim = self.world.claim()
        self.node = self.world.node(self.claim)
        self.node.paths.train_log.touch()
        self.node.paths.code.mkdir()
        self.around = AROUND
        self.made: list[ContainerRuntime] = []

    def make(self, *, gpus: int | None = None, **options: Any) -> ContainerRuntime:
        spec = ContainerSpec(**{"image": "repo/x:1"} | options)
        wanted = Resources(gpus=Gpus("", gpus) if gpus else None)
        whole = Spec(name="job", run=("true",), environment=Environment(container=spec), resources=wanted)
        made = ContainerRuntime(self.node, Submission(JOB, whole, "test"), lambda question: question(), lambda: None)
        made._host = self.around
        self.made.append(made)
        return made

    def entered(self, view: RuntimeView | None = None, **options: Any) -> ContainerRuntime:
        made = self.make(**options)
        made.open(timed)
        made.enter(view or RuntimeView())
        return made

    def run(self, container: ContainerRuntime, *words: str, **options: Any) -> Any:
        env = {"PATH": os.environ["PATH"]} | options.pop("env", {})
        command = Command(words, env, self.node.paths.code, options.pop("secrets", {}), **options)
        return container.spawn(command, self.node.paths.train_log)

    @property
    def said(self) -> str:
        return self.node.paths.train_log.read_text()


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    found = Yard(tmp_path, monkeypatch)
    yield found
    for container in found.made:
        container.close()
    found.engine.kill_all()


# ── The image ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_image_of_the_first_node_is_recorded_for_all(yard: Yard) -> None:
    container = yard.make()
    assert container.image is None
    container.open(timed)
    assert container.image == "repo/x@sha256:d1"
    found = yard.world.store.get(keys.image(JOB))
    assert found is not None
    fact = codec.loads(ImageFact, found.data, where="test")
    assert fact == ImageFact("repo/x:1", "sha256:1", "repo/x@sha256:d1")
    assert "[stoker] container: repo/x:1 (repo/x@sha256:d1)\n" in yard.said
    record = read_record(yard.node.paths.root)
    assert record is not None and record.engine == "docker"


def test_a_later_node_takes_the_image_of_the_first(yard: Yard) -> None:
    fact = ImageFact("repo/x:1", "sha256:1", "repo/x@sha256:d1")
    yard.world.store.put(keys.image(JOB), codec.dumps(fact))
    yard.engine.has(**{"repo/x:1": OTHER, "sha256:1": IMAGE, "repo/x@sha256:d1": IMAGE})
    container = yard.make()
    container.open(timed)
    assert container.image == "repo/x@sha256:d1"
    recorded = yard.world.store.get(keys.image(JOB))
    assert recorded is not None and recorded.data == codec.dumps(fact)


@pytest.mark.parametrize("same", [True, False])
def test_of_two_nodes_that_record_at_once_the_first_counts(yard: Yard, same: bool) -> None:
    yard.engine.has(**{"repo/x:1": IMAGE, "repo/x@sha256:d2": OTHER, "repo/x@sha256:d1": IMAGE})
    first = ImageFact("repo/x:1", "sha256:1", "repo/x@sha256:d1")
    if not same:
        first = ImageFact("repo/x:1", "sha256:2", "repo/x@sha256:d2")
    store = yard.node.store
    create = store.create

    def late(key: str, data: bytes) -> bool:
        yard.world.store.put(key, codec.dumps(first))
        return create(key, data)

    store.create = late  # type: ignore[method-assign]
    container = yard.make()
    container.open(timed)
    assert container.image == first.digest


def test_an_image_that_is_named_by_its_digest_is_told_once(yard: Yard) -> None:
    container = yard.make(image="repo/x@sha256:d1")
    container.open(timed)
    assert "[stoker] container: repo/x@sha256:d1\n" in yard.said


def test_gpus_that_a_container_would_not_see_are_told_before_it_is_made(yard: Yard) -> None:
    yard.around = replace(AROUND, gpus=2, toolkit=False)
    with pytest.raises(SetupFailed, match="the container would see no GPU") as failed:
        yard.make(gpus=1).open(timed)
    assert failed.value.user
    yard.make().open(timed)  # A job that asks for none.
    yard.around = replace(AROUND, gpus=2, toolkit=True)
    container = yard.make(gpus=1)
    container.open(timed)
    assert container.gpus == 2


def test_a_registry_password_is_had_anew_for_each_pull(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[tuple[str, str]] = []

    def fetch(field: str, reference: str, _environ: object) -> str:
        fetched.append((field, reference))
        return "me:word"

    monkeypatch.setattr(images, "fetch", fetch)
    login = yard.make(secret="env:TOKEN")._job_image._login("own.registry/x:1")
    assert login is not None and (login.registry, login.user, login.password) == ("own.registry", "me", "word")
    assert fetched == [("environment.container.secret", "env:TOKEN")]
    ecr = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
    assert yard.make()._job_image._login("own.registry/x:1") is None, "the machine's identity is of no use there"
    login = yard.make()._job_image._login(f"{ecr}/x:1")
    assert (
        login is not None
        and login.user == "AWS"
        and fetched[-1] == ("environment.container.image", "aws-ecr:eu-west-1")
    )
    monkeypatch.setattr(images.registry_login, "has_login", lambda where, _environ: where == ecr)
    assert yard.make()._job_image._login(f"{ecr}/x:1") is None and len(fetched) == 2, "the person has logged in already"


# ── What is set inside ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_set_inside_is_the_images_and_the_submitters(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("https_proxy", "http://proxy")
    monkeypatch.setenv("UNRELATED", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    container = yard.make()
    assert "A" not in container.environ({})
    container.open(timed)
    found = container.environ(
        {"PATH": "/mine", "VIRTUAL_ENV": "/venv", "CONDA_PREFIX": "/conda", "MINE": "1", "A": "own"}
    )
    assert found["PATH"] == "/image/bin:/usr/bin:/bin" and found["MINE"] == "1" and found["A"] == "own"
    assert found["AWS_REGION"] == "eu-west-1" and found["https_proxy"] == "http://proxy"
    assert not {"UNRELATED", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES", "HOME"} & found.keys()
    container._host = replace(AROUND, gpus=2, toolkit=True)
    assert container.environ({})["CUDA_VISIBLE_DEVICES"] == "1"
    container._host = replace(AROUND, uid=1000, gid=1000)
    assert container.environ({})["HOME"] == str(yard.node.paths.root / "home")


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_DEFAULT_REGION", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_REGION"),
        *("GCE_METADATA_HOST", "GCE_METADATA_IP"),
        *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    ],
)
def test_where_the_machines_services_are_means_the_same_inside(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "of-the-machine")
    assert yard.make().environ({})[name] == "of-the-machine"
    assert yard.make().environ({name: "of-the-submitter"})[name] == "of-the-submitter"


def test_what_is_around_a_container_is_what_this_machine_has(yard: Yard) -> None:
    yard.make()
    spec = ContainerSpec(image="repo/x:1")
    whole = Spec(name="job", run=("true",), environment=Environment(container=spec))
    made = ContainerRuntime(yard.node, Submission(JOB, whole, "test"), lambda question: question(), lambda: None)
    assert made._host == detect_host("docker")


@pytest.mark.parametrize("region", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_an_alias_is_of_the_machines_own_region(yard: Yard, monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(region, "us-west-2")
    name = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.5-gpu-py311"
    yard.engine.has(**{name: IMAGE})
    container = yard.make(image="dlc/pytorch:2.5-py311")
    container.open(timed)
    assert f"container: {name} (" in yard.said


def test_the_command_that_makes_it_names_the_node_and_all_that_is_seen(yard: Yard, tmp_path: Path) -> None:
    for name in ("out", "data", "environments"):
        (tmp_path / name).mkdir()
    view = RuntimeView(
        written=(tmp_path / "out",),
        read=(tmp_path / "data",),
        environments=tmp_path / "environments",
        mounts=(BindMount(tmp_path / "data", "/opt/data"),),
    )
    yard.entered(view, run={"env": {"X": "1"}})
    [words] = yard.engine.asked("create")
    root = yard.node.paths.root
    assert f"--name={container_name(root)}" in words and "sha256:1" in words and "--env=X=1" in words
    for label in (f"stoker.job={JOB}", f"stoker.node={yard.node.config.instance}", "stoker.rank=0"):
        assert f"--label={label}" in words
    paths = yard.node.paths
    written = (paths.code, paths.channel, paths.inputs, paths.environments, paths.train_log)
    for folder in (*written, tmp_path / "out", tmp_path / "environments"):
        assert f"--mount=type=bind,source={folder},target={folder}" in words and folder.exists()
    assert f"--mount=type=bind,source={root},target={root},readonly" in words, "the rest is the agent's"
    assert f"--mount=type=bind,source={tmp_path / 'data'},target={tmp_path / 'data'},readonly" in words
    assert f"--mount=type=bind,source={tmp_path / 'data'},target=/opt/data" in words


def test_links_out_of_an_input_are_seen_inside(yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    yard.entered(RuntimeView(read=(tmp_path / "data",), in_place=(tmp_path / "data",)))
    [words] = yard.engine.asked("create")
    target = tmp_path / "elsewhere"
    assert f"--mount=type=bind,source={target},target={target},readonly" in words and "inputs: only" not in yard.said
    monkeypatch.setattr("stoker.agent.container.symlinks.MAX_SCANNED", 0)
    yard.entered(RuntimeView(in_place=(tmp_path / "data",)))
    assert "inputs: only the first" in yard.said


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_command_runs_inside_with_its_variables_and_its_output_in_the_log(yard: Yard) -> None:
    container = yard.entered()
    run = yard.run(container, "sh", "-c", 'echo "$MINE in $PWD"; exit 3', env={"MINE": "it's"})
    assert run.wait() == 3 and f"it's in {yard.node.paths.code}\n" in yard.said
    assert container.fault is None and run.poll() == 3
    run = yard.run(container, "sleep", "1000")
    assert run.poll() is None and run.pid in container.group.members()
    assert Path(f"/proc/{run.pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink()
    assert container.group.kill() and run.wait() == 137 and container.fault is None, "the container lives on"
    assert not container.group.members()


def test_secrets_are_passed_in_and_masked(yard: Yard) -> None:
    container = yard.entered()
    run = yard.run(container, "sh", "-c", 'echo "key $KEY"', secrets={"KEY": "very-secret-value"})
    assert run.wait() == 0 and "key " in yard.said and "very-secret-value" not in yard.said
    assert all("very-secret-value" not in " ".join(words) for words in yard.engine.asked("exec"))


def test_the_training_alone_runs_by_the_images_entry_point(yard: Yard) -> None:
    container = yard.entered(entrypoint=True)
    assert yard.run(container, "echo", "step").wait() == 0 and "by echo" not in yard.said
    assert yard.run(container, "echo", "training", main=True).wait() == 0 and "by echo training\n" in yard.said
    container = yard.entered()
    assert yard.run(container, "echo", "plain", main=True).wait() == 0 and "by echo plain" not in yard.said


def test_a_command_of_root_is_brought_in_as_root(yard: Yard) -> None:
    container = yard.entered()
    yard.run(container, "true", root=True).wait()
    yard.run(container, "true").wait()
    assert ["--user=0" in words for words in yard.engine.asked("exec")] == [True, False]


def test_a_program_that_is_not_in_the_image_is_told_as_on_the_machine(yard: Yard) -> None:
    container = yard.entered()
    with pytest.raises(FileNotFoundError) as failed:
        yard.run(container, "no-such-program")
    assert failed.value.filename == "no-such-program"
    assert (
        list((yard.node.paths.root / "pipes").iterdir()) and len(list((yard.node.paths.root / "pipes").iterdir())) == 2
    )


def test_a_command_that_cannot_be_brought_in_is_told_with_the_engines_words(yard: Yard) -> None:
    container = yard.entered()
    command = Command(("true",), {"PATH": os.environ["PATH"]}, yard.node.paths.root / "no-such-folder")
    with pytest.raises(SetupFailed, match=r"FileNotFoundError: .*no-such-folder") as failed:
        container.spawn(command, yard.node.paths.train_log)
    assert failed.value.user and container.fault is None
    assert sorted(path.name for path in (yard.node.paths.root / "pipes").iterdir()) == ["alive", "begun"]


def test_leaving_ends_all_that_ran(yard: Yard) -> None:
    container = yard.entered()
    yard.run(container, "sleep", "1000")
    cell = container.group.container
    assert cell is not None
    (sleeper,) = container.group.members()
    container.begin_close()
    assert not Path(f"/proc/{sleeper}/cmdline").exists() or not Path(f"/proc/{sleeper}/cmdline").read_bytes()
    assert not (yard.node.paths.root / "pipes").exists()


def test_nothing_runs_in_a_container_that_is_not_there(yard: Yard) -> None:
    with pytest.raises(SetupFailed, match="the container does not exist") as failed:
        yard.run(yard.make(), "true")
    assert not failed.value.user


def test_a_container_that_is_ended_from_outside_is_no_fault_of_the_script(yard: Yard) -> None:
    container = yard.entered()
    run = yard.run(container, "sleep", "1000")
    subprocess.run(["docker", "rm", "--force", container_name(yard.node.paths.root)], check=True)
    assert run.wait() != 0 and container.fault == "the container was ended from outside"
    with pytest.raises(SetupFailed, match="the container was ended from outside") as failed:
        yard.run(container, "true")
    assert not failed.value.user


def test_an_engine_that_goes_away_is_told(yard: Yard) -> None:
    container = yard.entered()
    run = yard.run(container, "sh", "-c", "sleep 0.3; exit 3")
    yard.engine.say("away", "")
    assert run.wait() == 3 and container.fault is not None
    assert container.fault.startswith("docker stopped answering: Cannot connect")
    yard.engine.unsay("away")


def test_a_command_that_succeeds_asks_the_engine_nothing_more(yard: Yard) -> None:
    container = yard.entered()
    before = len(yard.engine.asked("inspect"))
    assert yard.run(container, "true").wait() == 0
    assert len(yard.engine.asked("inspect")) == before


# ── Making it ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_container_of_the_same_name_makes_room(yard: Yard) -> None:
    container = yard.make()
    container.open(timed)
    name = container_name(yard.node.paths.root)
    yard.engine.say(f"container-{name}", "{}")
    container.enter(RuntimeView())
    assert len(yard.engine.asked("create")) == 2 and len(yard.engine.asked("rm")) == 1
    assert yard.run(container, "true").wait() == 0


@pytest.mark.parametrize(
    ("said", "user", "told"),
    [
        ("unknown flag: --bogus", True, "environment.container: docker: unknown flag: --bogus"),
        (
            'exec: "sh": executable file not found in $PATH',
            True,
            "environment.container.image: there is no `sh` in repo/x:1",
        ),
        (
            "write /x: no space left on device",
            True,
            "no space left on device; ask for a larger disk with resources.disk",
        ),
        ("Cannot connect to the Docker daemon at unix:///x.", False, "Cannot connect"),
    ],
)
def test_what_the_engine_refuses_is_told_by_its_field(yard: Yard, said: str, user: bool, told: str) -> None:
    container = yard.make()
    container.open(timed)
    yard.engine.say("refuse", said)
    with pytest.raises(SetupFailed) as failed:
        container.enter(RuntimeView())
    assert failed.value.user is user and told in str(failed.value)
    assert yard.engine.asked("start") == []


@pytest.mark.parametrize(
    ("code", "said", "user", "told"),
    [
        (0, "", False, "environment.container: the container ended at once, but a second one did not"),
        (
            127,
            "exec sh failed: no such file",
            True,
            "environment.container.image: there is no `sh` in repo/x:1, which a training needs (exit code 127)",
        ),
        (
            137,
            "oh",
            True,
            "the container ended at once: it was killed; is there enough memory for it? (exit code 137): oh",
        ),
        (9, "oh", True, "environment.container: the container ended at once (exit code 9): oh"),
    ],
)
def test_a_container_that_ends_at_once_says_why(yard: Yard, code: int, said: str, user: bool, told: str) -> None:
    container = yard.make()
    container.open(timed)
    yard.engine.say("wordless", json.dumps({"code": code, "said": said}))
    with pytest.raises(SetupFailed) as failed:
        container.enter(RuntimeView())
    assert failed.value.user is user and told in str(failed.value)
    assert "exit 0" in yard.engine.asked("create")[-1], "the second one has nothing to do"
    assert [words[-1] for words in yard.engine.asked("rm")] == [container_name(yard.node.paths.root)]
    assert yard.engine.asked("start")[-1][1] == "--attach", "what it says is heard"


def test_an_engine_that_is_away_when_it_is_asked_for_the_container(yard: Yard) -> None:
    container = yard.make()
    container.open(timed)
    yard.engine.say("away", "")
    with pytest.raises(SetupFailed, match="Cannot connect") as failed:
        container._inspect()
    assert not failed.value.user
    yard.engine.unsay("away")
    assert container._inspect() is None


def test_a_daemon_of_the_users_own_is_noticed(yard: Yard) -> None:
    yard.around = replace(AROUND, uid=1000, gid=1000)
    yard.engine.say("options", "[name=rootless]")
    container = yard.make()
    container._detect_rootless()
    assert container._host.rootless
    yard.engine.say("options", "[name=seccomp]")
    container._detect_rootless()
    assert not container._host.rootless


def test_a_container_of_another_user_can_only_be_root_s(yard: Yard) -> None:
    yard.around = replace(AROUND, uid=1000, gid=1000)
    container = yard.make()
    container.open(timed)
    with pytest.raises(SetupFailed, match=r"run\.user: only root could save") as failed:
        container.enter(RuntimeView())
    assert failed.value.user and "this agent is the user 1000" in str(failed.value)
    assert (yard.node.paths.root / "home").is_dir()
    assert yard.engine.asked("info"), "its daemon may be the user's own"
    assert "--user=1000:1000" in yard.engine.asked("create")[-1]


def test_a_container_whose_processes_are_not_here(yard: Yard) -> None:
    container = yard.make()
    with pytest.raises(SetupFailed, match="docker does not run on this machine") as failed:
        container._adopt_user(2**22 + 1, None)
    assert failed.value.user


def test_another_user_of_the_container_is_given_what_it_writes(yard: Yard, tmp_path: Path) -> None:
    yard.engine.say("user", "12345")
    for name in ("out", "environments"):
        (tmp_path / name).mkdir()
    # The folders above it are the test's own.
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    idle = tmp_path / "environments" / "of-777"
    idle.mkdir()
    os.utime(idle, (0, 0))
    container = yard.entered(RuntimeView(written=(tmp_path / "out",), environments=tmp_path / "environments"))
    assert not idle.exists(), "what no user used for long is removed"
    assert container.environments == tmp_path / "environments" / "of-12345"
    assert container.environments.stat().st_uid == 12345
    container.environments.joinpath("tools").mkdir()
    yard.run(container, "true").wait()
    given = (tmp_path / "out", yard.node.paths.code, container.environments / "tools")
    assert [path.stat().st_uid for path in given] == [12345] * 3
    assert (yard.node.paths.root / "pipes").stat().st_uid == 0, "the door is the agent's"
    own, others = container.environments / "e1", tmp_path / "environments" / "e2"
    for folder in (own, others):
        folder.mkdir()
        container.hand_over(folder)
    assert (own.stat().st_uid, others.stat().st_uid) == (12345, 0)


def test_the_agents_own_user_is_given_nothing(yard: Yard, tmp_path: Path) -> None:
    container = yard.entered()
    assert container.environments is None and container._transfer is None
    container.hand_over(tmp_path)


def test_what_cannot_be_given_is_named(yard: Yard, tmp_path: Path) -> None:
    container = yard.make()

    class Refusing:
        def give(self, _top: Path, _but: object) -> None:
            raise PermissionError(1, "Operation not permitted", "/the/file")

    container._transfer = Refusing()  # type: ignore[assignment]
    with pytest.raises(
        SetupFailed, match="/the/file cannot be given to the user of the container: Operation not"
    ) as failed:
        container._give(tmp_path)
    assert failed.value.user


def test_what_is_left_of_a_container_ends_with_it(yard: Yard) -> None:
    container = yard.entered()
    run = yard.run(container, "sleep", "1000")
    cell = container.group.container
    assert cell is not None and Path(f"/proc/{cell.init}").exists()
    container.begin_close()
    wait_for(lambda: not Path(f"/proc/{cell.init}/root").exists())
    assert run.wait() == 137 and not (yard.node.paths.root / "pipes").exists()
    container.close()


# ── The client of the engine ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def processes() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> subprocess.Popen[bytes]:
        running.append(subprocess.Popen(words or ("sleep", "1000")))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


Begin = Callable[..., "subprocess.Popen[bytes]"]


def test_a_client_that_was_killed_is_not_the_end_of_its_command(processes: Begin) -> None:
    client, command = processes(), processes()
    gone: list[int] = []
    run = ContainerRun(client, command.pid, lambda code: gone.append(code))
    assert run.poll() is None and gone == []
    client.kill()
    client.wait()
    assert run.poll() is None and gone == [1], "the engine was asked, and has it"
    command.kill()
    command.wait()
    assert run.wait() == 137 and gone[-1] == 137


def test_a_client_that_was_killed_with_the_container_is_its_end(processes: Begin) -> None:
    client, command = processes(), processes()
    run = ContainerRun(client, command.pid, lambda _code: "the container was ended")
    client.kill()
    client.wait()
    assert run.poll() == 137


def test_a_client_that_does_not_hear_of_the_end_is_ended(processes: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_CLIENT_S", 0.2)
    client, command = processes(), processes("true")
    command.wait()
    run = ContainerRun(client, command.pid, lambda _code: None)
    began_s = time.monotonic()
    assert run.wait() == 137 and time.monotonic() - began_s >= 0.2
    assert ContainerRun(processes(), 0, lambda _code: None).wait() == 137


def test_a_client_tells_how_its_command_ended(processes: Begin) -> None:
    client = processes(sys.executable, "-S", "-c", "raise SystemExit(4)")
    run = ContainerRun(client, 0, lambda _code: None)
    assert run.wait() == 4 and run.pid == 0 and run.poll() == 4


# ── What the machine has ──────────────────────────────────────────────────────────────────────────────────────────────


def test_what_this_machine_has_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_devices, "count_gpus", lambda: 0)
    monkeypatch.setattr(host_devices, "_has_toolkit", lambda _engine: True)
    found = host_devices.detect_host("docker")
    assert (found.uid, found.gid, found.gpus, found.toolkit) == (os.getuid(), os.getgid(), 0, False)
    assert found.privileged is (os.getuid() == 0)
    stat = os.statvfs("/dev/shm")
    assert found.shm_bytes == stat.f_blocks * stat.f_frsize > 0
    monkeypatch.setattr(host_devices, "count_gpus", lambda: 4)
    assert host_devices.detect_host("docker").toolkit and host_devices.detect_host("docker").gpus == 4


def test_the_toolkit_is_known_by_its_programs_or_its_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_devices, "_TOOLKIT", ("no-such-hook", "some-nvidia-ctk"))
    monkeypatch.setattr(host_devices, "_DEVICE_SPECS", (str(tmp_path / "a"), str(tmp_path / "b")))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not host_devices._has_toolkit("docker") and not host_devices._has_toolkit("podman")
    program = tmp_path / "some-nvidia-ctk"
    program.write_text("")
    program.chmod(0o755)
    assert host_devices._has_toolkit("docker") and not host_devices._has_toolkit("podman")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "nvidia.yaml").touch()
    assert host_devices._has_toolkit("podman")
    program.unlink()
    assert not host_devices._has_toolkit("docker")


@pytest.mark.parametrize("folder", ["etc/cdi", "var/run/cdi"])
def test_podman_sees_gpus_that_are_described_where_others_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(host_devices, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert not host_devices._has_toolkit("podman")
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "nvidia.yaml").touch()
    assert host_devices._has_toolkit("podman")


@pytest.mark.parametrize("program", ["nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk"])
def test_docker_sees_gpus_by_any_program_of_the_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / program).touch(0o755)
    assert host_devices._has_toolkit("docker")


@pytest.mark.parametrize(("text", "enforced"), [("1\n", True), ("0\n", False), (None, False)])
def test_whether_selinux_is_enforced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, enforced: bool
) -> None:
    monkeypatch.setattr(host_devices, "Path", lambda path: tmp_path / path.lstrip("/"))
    if text is not None:
        (tmp_path / "sys/fs/selinux").mkdir(parents=True)
        (tmp_path / "sys/fs/selinux/enforce").write_text(text)
    assert host_devices.detect_host("docker").selinux is enforced
