"""The set-up of a node: its code, and what the commands of the set-up find."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agent_world import JOB, AgentWorld

from stoker.agent import fetch_code, runtime, setup
from stoker.agent.environment.conda import Conda, CondaProgram
from stoker.agent.environment.steps import CommandResult, SetupSteps
from stoker.agent.rendezvous import RendezvousResult
from stoker.agent.runtime import Command, HostRuntime
from stoker.agent.setup import Setup, SetupResult
from stoker.model import keys
from stoker.model.errors import CodecError, SetupFailed
from stoker.model.job_state import JobState
from stoker.model.spec import Environment, PackageIndex, Spec
from stoker.model.submission import Code, Submission
from stoker.processes import TRAINING, make_group
from stoker.submit.pack_code import pack


class Told(Exception):
    """The node must leave."""


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    found = AgentWorld(tmp_path)
    found.submit("true")
    return found


def readying(world: AgentWorld, check: Any = lambda: None) -> Setup:
    node = world.node(world.claim(nodes=2))
    host = HostRuntime(make_group(TRAINING, node.config.instance, sessions=node.paths.root / "sessions"))
    return Setup(node, host, lambda question: question(), check)


def a_submission(**spec: Any) -> Submission:
    return Submission(JOB, Spec(**{"name": "job", "run": "true"} | spec), "test")


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_command_of_the_set_up_sees_a_node_that_is_alone_and_no_attempt(world: AgentWorld) -> None:
    found = readying(world)
    made = found._command(a_submission(), SetupResult({}, {"KEY": "secret"}, base={"A": "1"}), ("pip", "list"))
    assert made.argv == ("pip", "list") and made.secrets == {"KEY": "secret"} and made.cwd == found._paths.code
    assert (made.env["STOKER_ATTEMPT"], made.env["MASTER_ADDR"], made.env["MASTER_PORT"]) == ("0", "127.0.0.1", "0")
    assert (made.env["NUM_NODES"], made.env["A"]) == ("2", "1")


def test_a_command_of_the_set_up_installs_from_the_jobs_own_index(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "very-secret")
    found = readying(world)
    index = PackageIndex("https://me@host/simple", secret="env:TOKEN")
    plain = Command(("true",), {"A": "1"}, Path("/"), {"KEY": "own"})
    assert found._with_index(a_submission(), plain) == plain
    made = found._with_index(a_submission(environment=Environment(index=index)), plain)
    assert made.env["A"] == "1" and made.secrets["KEY"] == "own" and len(made.secrets) > 1
    assert any("very-secret" in value for value in made.secrets.values())
    assert not any("very-secret" in value for value in made.env.values())
    assert found.secrets == {"environment.index.secret": "very-secret"}
    # What the job sets itself wins.
    named = {name: "mine" for name in (*made.env, *made.secrets) if name not in ("A", "KEY")}
    own = found._with_index(a_submission(environment=Environment(index=index), env=named), plain)
    assert own.env == {"A": "1"} and own.secrets == {"KEY": "own"}


def test_a_step_that_is_told_to_go_lets_go_of_what_is_mounted(world: AgentWorld) -> None:
    def check() -> None:
        raise Told

    found = readying(world, check)
    cut: list[bool] = []
    found._inputs.abort = lambda: cut.append(True)  # type: ignore[method-assign]
    with pytest.raises(Told):
        found._check_step()
    assert cut == [True]
    found._check = lambda: None
    found._check_step()
    assert cut == [True]


def test_a_secret_that_is_too_short_to_be_masked_is_told(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT", "abc")
    monkeypatch.setenv("LONG", "long-enough-value")
    found = readying(world)
    assert found._secrets({"PIN": "env:SHORT", "KEY": "env:LONG"}) == {"PIN": "abc", "KEY": "long-enough-value"}
    assert found.secrets == {"PIN": "abc", "KEY": "long-enough-value"}
    said = found._paths.train_log.read_text()
    assert "secrets.PIN is shorter than" in said and "secrets.KEY" not in said


def test_a_disk_that_is_full_is_told_with_what_to_do(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    found = readying(world)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/the/file")

    monkeypatch.setattr(found, "_run", fail)
    with pytest.raises(SetupFailed) as failed:
        found.run(world.state, a_submission())
    assert failed.value.user and str(failed.value).startswith("the machine failed in the set-up: /the/file: No space")
    assert "resources.disk" in str(failed.value)
    other = fetch_code.machine_failure(OSError(errno.EIO, "Input/output error"))
    assert not other.user and str(other) == "the machine failed in the set-up: Input/output error"
    assert fetch_code.machine_failure(OSError(errno.EDQUOT, "Disk quota exceeded")).user


def test_the_place_of_a_training_is_what_the_ranks_agreed_on(world: AgentWorld) -> None:
    node = world.node(world.claim(nodes=2), 1)
    agreement = RendezvousResult(("10.0.0.0", "10.0.0.1"), 29500, "key")
    found = setup.make_location(
        node, a_submission(), SetupResult({"data": "/data"}, {}, {"V": "1"}, gpus=4), agreement, 3
    )
    assert (found.attempt, found.rank, found.addresses, found.port) == (3, 1, agreement.addresses, 29500)
    assert (found.gpus, found.inputs, found.environ) == (4, {"data": "/data"}, {"V": "1"})
    assert found.outputs.is_dir() and found.checkpoints == node.paths.code / "checkpoints"
    command = setup.make_command(node, a_submission(), SetupResult({}, {"KEY": "x"}, base={"B": "1"}), found, ("run",))
    assert command.argv == ("run",) and command.cwd == node.paths.code and command.secrets == {"KEY": "x"}
    assert command.env["STOKER_ATTEMPT"] == "3" and command.env["B"] == "1" and command.mounts == ()


# ── The code ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_without_code_gets_an_empty_folder(world: AgentWorld) -> None:
    node = world.node(world.claim())
    fetch_code.fetch_code(node.store, world.state, a_submission(), node.paths)
    fetch_code.fetch_code(node.store, replace(world.state, code_digest="d"), a_submission(), node.paths)
    assert list(node.paths.code.iterdir()) == []


def with_code(world: AgentWorld, generation: int = 1) -> tuple[JobState, Submission]:
    """A job with code in the store."""
    (world.root / "source").mkdir()
    (world.root / "source" / "train.py").write_text("print(1)")
    packed = pack(world.root / "source", into=world.root)
    name = keys.shared_name(packed.digest, generation)
    world.store.put(keys.code(name), packed.path.read_bytes())
    submission = replace(a_submission(), code=Code(packed.digest, 1, 1, generation=generation))
    return replace(world.state, code_digest=packed.digest), submission


@pytest.mark.parametrize("generation", [1, 3])
def test_the_code_is_what_was_packed_and_nothing_else(world: AgentWorld, generation: int) -> None:
    state, submission = with_code(world, generation)
    paths = world.node(world.claim()).paths
    paths.code.mkdir()
    (paths.code / "old.py").touch()
    fetch_code.fetch_code(world.store, state, submission, paths)
    assert [path.name for path in paths.code.iterdir()] == ["train.py"], "a set-up that was cut short is begun anew"
    assert not (paths.root / "code.tar.gz").exists()


def test_code_that_is_gone_from_the_store_is_told(world: AgentWorld) -> None:
    state, submission = with_code(world)
    world.store.delete([keys.code(state.code_digest or "")])
    paths = world.node(world.claim()).paths
    with pytest.raises(
        SetupFailed, match="the packed code is not in the store any more; submit the job again"
    ) as failed:
        fetch_code.fetch_code(world.store, state, submission, paths)
    assert not failed.value.user


def test_code_is_checked_against_the_log(world: AgentWorld) -> None:
    state, submission = with_code(world)
    key = keys.code(state.code_digest or "")
    (world.root / "source" / "train.py").write_text("print(2)")
    world.store.put(key, pack(world.root / "source", into=world.root).path.read_bytes())
    with pytest.raises(CodecError, match="expected digest"):
        fetch_code.fetch_code(world.store, state, submission, world.node(world.claim()).paths)


def test_accelerators_are_counted_by_what_the_process_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, count in (("0,1", 2), ("", 0), ("-1", 0), ("0, ,3", 2), ("GPU-1", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert runtime.count_gpus() == count
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert runtime.count_gpus() == len(list(Path("/dev").glob("nvidia[0-9]*")))


# ── Conda ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Steps:
    """Answers a question of the set-up, and keeps what it was asked."""

    def __init__(self, code: int = 0, text: str = "") -> None:
        self.answer = CommandResult(code, text)
        self.asked: list[Command] = []

    def capture(self, _name: str, command: Command) -> CommandResult:
        self.asked.append(command)
        return self.answer


def conda(world: AgentWorld, steps: Steps, fetch: Any = None, **environment: Any) -> Conda:
    submission = a_submission(environment=Environment(**{"conda": "env.yml"} | environment))
    node = world.node(world.claim())
    node.paths.code.mkdir(exist_ok=True)
    command = lambda argv: Command(argv, {"A": "1"}, node.paths.code, {"KEY": "own"})  # noqa: E731
    builder = SimpleNamespace(node=node, submission=submission, steps=steps)
    return Conda(builder, command, fetch)  # type: ignore[arg-type]


FOUND = """greeting of a shell
stoker-conda program /opt/my conda/bin/micromamba
stoker-conda version 2.0.5
stoker-conda platform x86_64 glibc 2.36
stoker-conda search /usr/local/my bin:/usr/bin
"""


def test_the_program_that_makes_environments_tells_of_itself(world: AgentWorld) -> None:
    found = conda(world, Steps(0, FOUND))._find()
    assert (found.path, found.version, found.search) == (
        "/opt/my conda/bin/micromamba",
        "2.0.5",
        "/usr/local/my bin:/usr/bin",
    )
    assert found.platform.startswith("x86_64 glibc 2.36 ") and found.micro
    assert not replace(found, path="/opt/conda/bin/mamba").micro


@pytest.mark.parametrize(
    ("code", "text", "told"),
    [
        (9, "", "environment.conda: there is no conda, mamba or micromamba on this machine"),
        (0, "", "environment.conda: conda does not run here: it printed nothing"),
        (1, "one\ntwo\n", "environment.conda: conda does not run here: two"),
        (0, "stoker-conda program /c\nstoker-conda version\noh", "environment.conda: /c does not run here: oh"),
    ],
)
def test_without_a_program_that_makes_environments_the_user_is_told(
    world: AgentWorld, code: int, text: str, told: str
) -> None:
    with pytest.raises(SetupFailed) as failed:
        conda(world, Steps(code, text))._find()
    assert failed.value.user and str(failed.value).startswith(told)


def creating(world: AgentWorld, tmp_path: Path, program: str, **environment: Any) -> tuple[Command, tuple[str, ...]]:
    fetched = lambda field, reference: f"pass word of {field} {reference}"  # noqa: E731
    made = conda(world, Steps(), fetched, **environment)
    file = tmp_path / "env.yml"
    file.write_text("name: x\nchannels:\n  - conda-forge\ndependencies: [python]\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return made._create_command(
        file, tmp_path / ".stoker-env.yml", CondaProgram(program, "1", "", ""), tmp_path / "prefix", scratch
    )


def test_an_environment_is_created_from_its_file(world: AgentWorld, tmp_path: Path) -> None:
    command, private = creating(world, tmp_path, "/opt/conda/bin/conda")
    target = ("--quiet", "--file", str(tmp_path / "env.yml"), "--prefix", str(tmp_path / "prefix"))
    assert command.argv == ("/opt/conda/bin/conda", "env", "create", *target)
    assert command.cwd == tmp_path and command.secrets == {"KEY": "own"} and private == ()
    assert command.env["CONDA_ALWAYS_YES"] == "true" and command.env["A"] == "1" and "CONDARC" not in command.env


def test_a_private_channel_is_the_only_one_and_its_password_is_a_variable(world: AgentWorld, tmp_path: Path) -> None:
    channel = PackageIndex("https://me@host/conda", secret="env:TOKEN")
    command, private = creating(world, tmp_path, "/bin/micromamba", conda_channel=channel)
    rules = tmp_path / "scratch" / "condarc"
    place = "https://${STOKER_CONDA_USER}:${STOKER_CONDA_PASSWORD}@host/conda"
    assert rules.read_text() == f"channels: #!final\n  - {place}\ndefault_channels: #!final\n  - {place}\n"
    assert command.argv[:5] == ("/bin/micromamba", "create", "--yes", "--rc-file", str(rules))
    assert command.env["CONDARC"] == str(rules) and command.env["STOKER_CONDA_USER"] == "me"
    assert command.env["CONDA_PKGS_DIRS"] == str(tmp_path / "scratch" / "pkgs")
    [password] = private
    assert password == "pass%20word%20of%20environment.conda_channel.secret%20env%3ATOKEN"
    assert command.secrets == {"KEY": "own", "STOKER_CONDA_PASSWORD": password}
    # A copy of the file without its channels, in its own place.
    assert command.argv[-3] == str(tmp_path / ".stoker-env.yml")
    assert (tmp_path / ".stoker-env.yml").read_text() == "name: x\ndependencies: [python]\n"


def test_an_open_channel_needs_no_password(world: AgentWorld, tmp_path: Path) -> None:
    channel = PackageIndex("https://host/conda")
    command, private = creating(world, tmp_path, "/opt/conda/bin/conda", conda_channel=channel)
    assert private == () and command.secrets == {"KEY": "own"} and "CONDA_PKGS_DIRS" not in command.env
    assert "--rc-file" not in command.argv and "  - https://host/conda\n" in Path(command.env["CONDARC"]).read_text()


def test_an_environment_that_was_restored_runs_or_does_not(world: AgentWorld, tmp_path: Path) -> None:
    steps = Steps(1)
    made = conda(world, steps)
    assert made._runs(tmp_path) is False
    (tmp_path / "conda-meta").mkdir()
    assert made._runs(tmp_path) is True and steps.asked == [], "one without a Python"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert made._runs(tmp_path) is False
    steps.answer = CommandResult(0, "")
    assert made._runs(tmp_path) is True
    assert steps.asked[-1].argv == (str(tmp_path / "bin" / "python"), "-I", "-c", "")


def test_a_restored_environment_whose_python_cannot_be_started_does_not_run(world: AgentWorld, tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").write_bytes(b"half of a program")
    (tmp_path / "env" / "bin" / "python").chmod(0o755)
    host = HostRuntime(make_group(TRAINING, f"restored-{os.getpid()}", sessions=tmp_path / "sessions"))
    try:
        steps = SetupSteps(host, tmp_path / "log", lambda _: None, lambda: None)
        assert conda(world, cast(Any, steps))._runs(tmp_path / "env") is False
    finally:
        host.close()
