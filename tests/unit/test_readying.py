"""The set-up of a node as a whole: what is there when the first command runs, and what the training finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agent_world import JOB, OFFERING, AgentWorld
from noticing_machine import Here

from stoker.agent import setup
from stoker.agent.environment.build import EnvironmentBuilder
from stoker.agent.environment.install_packages import Packages
from stoker.agent.environment.steps import CommandResult, Step
from stoker.agent.rendezvous import RendezvousResult
from stoker.agent.runtime import Command, HostRuntime, RuntimeView
from stoker.agent.setup import Setup, SetupResult
from stoker.model.spec import Container, Environment, Input, PackageIndex, Spec
from stoker.model.submission import Submission
from stoker.processes import TRAINING, make_group


class Surroundings(HostRuntime):
    """The machine itself, which keeps what it is asked for."""

    image = "repository@sha256:1"

    def __init__(self, world: AgentWorld, name: str) -> None:
        super().__init__(make_group(TRAINING, name, sessions=world.root / f"{name}.sessions"))
        self.views: list[RuntimeView] = []
        self.handed: list[Path] = []
        self.opened: list[bool] = []
        self.look: Callable[[], bool] = lambda: False

    @property
    def gpus(self) -> int:
        return 3

    def open(self, timed: Any) -> None:
        self.opened.append(self.look())

    def enter(self, view: RuntimeView) -> None:
        self.views.append(view)

    def hand_over(self, environment: Path) -> None:
        self.handed.append(environment)

    def environ(self, submitted: Mapping[str, str]) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "INSIDE": "1", "PASSWORD": "for installers", **submitted}


class Kept(Here):
    """A machine that outlives its nodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.environments = folder


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    found = AgentWorld(tmp_path)
    found.submit("true")
    return found


def a_submission(**spec: Any) -> Submission:
    return Submission(JOB, Spec(**{"name": "job", "run": "true"} | spec), "test", environ={"SENT": "along"})


def readying(world: AgentWorld, machine: Here | None = None) -> tuple[Setup, Surroundings]:
    claim = world.claim()
    node = world.node(claim, machine=machine)
    around = Surroundings(world, node.config.instance)
    found = Setup(node, around, lambda question: question(), lambda: None)
    around.look = lambda: found.pulling
    return found, around


def test_the_training_finds_what_its_surroundings_have(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "long-enough-value")
    found, around = readying(world)
    data = world.root / "data"
    data.mkdir()
    spec = {"secrets": {"KEY": "env:TOKEN"}, "inputs": {"data": Input(str(data))}}
    got = found.run(world.state, a_submission(**spec))
    assert got.secrets == found.secrets == {"KEY": "long-enough-value"} and "long-enough" not in repr(got)
    assert (got.machine, got.gpus) == (OFFERING.machine, 3)
    assert got.base == {"PATH": "/usr/bin:/bin", "INSIDE": "1", "PASSWORD": "for installers", "SENT": "along"}
    assert "for installers" not in repr(got)
    assert Path(got.inputs["data"]).resolve() == data.resolve()
    assert (found._paths.lib / "stoker" / "train.py").is_file()
    [view] = around.views
    assert view.written == (found._paths.code / "checkpoints", found._paths.code / "outputs")
    assert all(folder.is_dir() for folder in (*view.written, found._node.environments))
    assert view.environments == found._node.environments and view.in_place == (data,) and data in view.read
    assert view.mounts == ()


def test_passwords_of_what_installs_are_not_for_the_training(world: AgentWorld) -> None:
    found, _ = readying(world)
    index = PackageIndex("https://me@host/simple", secret="env:PASSWORD")
    assert "PASSWORD" not in found._base(a_submission(environment=Environment(index=index)))
    assert found._base(a_submission())["PASSWORD"] == "for installers"


def test_what_is_streamed_is_not_laid_in_place(world: AgentWorld) -> None:
    found, around = readying(world)
    found.run(world.state, a_submission(inputs={"data": Input("s3://bucket/data", mode="stream")}))
    assert around.views[0].in_place == () and around.views[0].read == ()


@pytest.mark.parametrize("container", [None, Container("repo/x:1")])
def test_an_image_is_being_had_only_while_the_surroundings_are_opened(
    world: AgentWorld, container: Container | None
) -> None:
    found, around = readying(world)
    found._enter(a_submission(environment=Environment(container=container)), [], {}, SimpleNamespace(timed=None))  # type: ignore[arg-type]
    assert around.opened == [container is not None] and found.pulling is False


def test_an_image_that_cannot_be_had_is_not_being_had_any_more(world: AgentWorld) -> None:
    found, around = readying(world)

    def fail() -> bool:
        raise OSError("no")

    around.look = fail
    submission = a_submission(environment=Environment(container=Container("repo/x:1")))
    with pytest.raises(OSError, match="no"):
        found._enter(submission, [], {}, SimpleNamespace(timed=None))  # type: ignore[arg-type]
    assert found.pulling is False


class Recorded:
    """Steps that are not run, but kept."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, step: Step) -> None:
        self.ran.append(step.name)

    def capture(self, name: str, command: Command) -> CommandResult:
        """There is no Python."""
        return CommandResult(9, "")


@pytest.mark.parametrize(
    ("container", "kept", "check_only"), [(False, False, False), (False, True, True), (True, True, False)]
)
def test_packages_of_the_system_are_not_installed_on_a_computer_that_outlives_the_node(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, container: bool, kept: bool, check_only: bool
) -> None:
    found, _ = readying(world, Kept(world.root / "kept" / "environments") if kept else None)
    asked: list[tuple[Any, ...]] = []

    def step(packages: Any, mirror: Any, fetch: Any, env: Any, cwd: Any, *, check_only: bool) -> Step:
        asked.append((packages, env, cwd, check_only))
        return Step("apt", Command(("true",), {}, cwd))

    monkeypatch.setattr(setup.apt, "install_step", step)
    environment = Environment(apt=("libx",), container=Container("repo/x:1") if container else None)
    steps = Recorded()
    got = found._install(a_submission(environment=environment), SetupResult({}, {}, base={"A": "1"}), steps)  # type: ignore[arg-type]
    assert asked == [(("libx",), {"A": "1"}, found._paths.code, check_only)]
    assert steps.ran[0] == "apt" and got == {}


def test_environments_are_handed_over_and_later_ones_see_earlier_ones(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, around = readying(world)
    seen: list[tuple[str, dict[str, str], str | None]] = []

    class Made:
        def __init__(self, builder: EnvironmentBuilder, command: Any, _fetch: Any) -> None:
            assert builder._image == "repository@sha256:1"
            self.command = command

        def env(self) -> dict[str, str]:
            return dict(self.command(("true",)).env)

    class FakeConda(Made):
        def make(self) -> Any:
            seen.append(("conda", self.env(), None))
            return SimpleNamespace(environ={"CONDA_PREFIX": "/c", "MINE": "conda"}, python="/c/bin/python")

    class FakePackages(Made):
        def make(self, python: str | None) -> dict[str, str]:
            seen.append(("packages", self.env(), python))
            return {"VIRTUAL_ENV": "/v", "MINE": "packages"}

    monkeypatch.setattr(setup, "Conda", FakeConda)
    monkeypatch.setattr(setup, "Packages", FakePackages)
    submission = a_submission(environment=Environment(conda="environment.yml"))
    got = found._install(submission, SetupResult({}, {}, base={"A": "1"}), Recorded())  # type: ignore[arg-type]
    assert got == {"CONDA_PREFIX": "/c", "VIRTUAL_ENV": "/v", "MINE": "packages"}
    assert around.handed == [Path("/c"), Path("/v")]
    (first, conda_env, _), (second, env, python) = seen
    assert (first, second, python) == ("conda", "packages", "/c/bin/python")
    assert "MINE" not in conda_env and env["MINE"] == "conda"
    seen.clear()
    found._install(a_submission(), SetupResult({}, {}), Recorded())  # type: ignore[arg-type]
    assert [(name, python) for name, _, python in seen] == [("packages", None)] and around.handed[2:] == [Path("/v")]


def test_a_password_that_packages_are_installed_with_is_masked_in_stack_dumps(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "long-enough-value")
    found, _ = readying(world)
    index = PackageIndex("https://me@host/simple", secret="env:PASSWORD")

    def make(packages: Packages, python: str | None) -> dict[str, str]:
        source = packages._source(cast(Any, None))
        assert source is not None
        return dict(source.open().secrets)

    monkeypatch.setattr(Packages, "make", make)
    submission = a_submission(environment=Environment(index=index))
    got = found._install(submission, SetupResult({}, {}), Recorded())  # type: ignore[arg-type]
    assert list(got.values()) == ["long-enough-value"]
    assert list(found.secrets.values()) == ["long-enough-value"]


def test_what_the_set_up_left_to_be_done_is_settled_and_without_any_nothing_is(world: AgentWorld) -> None:
    found, _ = readying(world)
    found.wait_for_uploads(lambda: 0.0)
    settled: list[float] = []
    found._builder = SimpleNamespace(wait_for_uploads=lambda until_s: settled.append(until_s()))  # type: ignore[assignment]
    found.wait_for_uploads(lambda: 7.0)
    assert settled == [7.0]


def test_a_command_of_the_set_up_has_the_index_and_its_output_is_in_the_log(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "long-enough-value")
    found, _ = readying(world)
    index = PackageIndex("https://me@host/simple", secret="env:PASSWORD")
    setup = 'for name in PIP_INDEX_URL UV_DEFAULT_INDEX; do eval "[ -n \\"\\$$name\\" ] && echo has $name"; done; pwd'
    environment = Environment(index=index)
    monkeypatch.setattr(Setup, "_install", lambda *_: {"FROM": "the environment"})
    got = found.run(world.state, a_submission(setup=setup, environment=environment))
    log = found._paths.train_log.read_text()
    assert "has PIP_INDEX_URL" in log and str(found._paths.code) in log and got.environ == {"FROM": "the environment"}


def test_a_job_with_the_contract_of_sagemaker_sees_its_tree(world: AgentWorld) -> None:
    node = world.node(world.claim())
    submission = a_submission(environment=Environment(contract="sagemaker"))
    place = setup.make_location(
        node, submission, SetupResult({}, {}, machine="n2-standard-2"), RendezvousResult(("h",), 1, None), 1
    )
    command = setup.make_command(node, submission, SetupResult({}, {}, base={"A": "1"}), place, ("run",))
    assert command.mounts and "SM_MODEL_DIR" in command.env and command.env["A"] == "1"
    assert not setup.make_command(node, a_submission(), SetupResult({}, {}), replace(place), ("run",)).mounts
