"""Virtual environments: what uv is asked, what of the base is kept, and what is laid beside the packages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.environment.package_sources import IndexOptions
from stoker.agent.environment.python import Python
from stoker.agent.environment.read_requirements import Requirements
from stoker.agent.environment.steps import CommandResult, Step
from stoker.agent.environment.uv import PackageChange, Uv
from stoker.agent.environment.venv import InstallPlan, Venv
from stoker.agent.runtime import Command
from stoker.model.errors import SetupFailed

BASE = Python(
    path="/opt/bin/python",
    version="3.12.4",
    abi="cpython-312",
    platform="linux-x86_64",
    libc="glibc-2.36",
    environment=False,
    plain=True,
    sites=("/opt/lib/a", "/opt/lib/b"),
    frameworks={"torch": "2.4.0", "jax": "0.4"},
    scripts={},
    pip=("-m", "pip"),
    search="/usr/bin",
)


class Steps:
    """Answers what is asked, by the last words of the question, and notes it."""

    def __init__(self, **answers: CommandResult) -> None:
        self.answers = answers
        self.asked: list[Command] = []
        self.names: list[str] = []
        self.ran: list[Step] = []

    def capture(self, name: str, command: Command) -> CommandResult:
        self.names.append(name)
        self.asked.append(command)
        words = " ".join(command.argv)
        return next((answer for word, answer in self.answers.items() if word in words), CommandResult(0, ""))

    capture_with_retries = capture

    def run(self, step: Step) -> None:
        self.ran.append(step)


def uv(steps: Steps, tmp_path: Path, cache: Path | None = None) -> Uv:
    command = lambda argv: Command(argv, {"A": "1", "NO_COLOR": ""}, tmp_path, {"KEY": "own"})  # noqa: E731
    return Uv(steps, command, Path("/tools/uv"), cache, tmp_path)  # type: ignore[arg-type]


# ── uv ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_uv_is_told_to_fetch_no_python_and_where_packages_come_from(tmp_path: Path) -> None:
    made = uv(Steps(), tmp_path)
    settings = {"A": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    command = made.command("pip", "list")
    assert command.argv == ("/tools/uv", "pip", "list")
    assert command.env == settings and command.secrets == {"KEY": "own"} and made.index_args == ()
    made.use_index(IndexOptions(("--offline",), {"UV_DEFAULT_INDEX": "url"}, {"UV_INDEX_STOKER_PASSWORD": "secret"}))
    command = made.command("pip")
    assert command.env == {**settings, "UV_DEFAULT_INDEX": "url"} and made.index_args == ("--offline",)
    assert command.secrets == {"KEY": "own", "UV_INDEX_STOKER_PASSWORD": "secret"}
    assert uv(Steps(), tmp_path, Path("/cache")).command("pip").env["UV_CACHE_DIR"] == "/cache"


def test_the_version_of_uv_is_asked_once(tmp_path: Path) -> None:
    steps = Steps(version=CommandResult(0, "uv 0.8.0\n"))
    made = uv(steps, tmp_path)
    assert [made.version, made.version] == ["uv 0.8.0"] * 2
    assert [command.argv for command in steps.asked] == [("/tools/uv", "--version")] and steps.names == ["uv"]


@pytest.mark.parametrize(
    ("text", "why"), [("error: no such loader", "no such loader"), ("", "it ended with 127")], ids=["told", "silent"]
)
def test_a_uv_that_does_not_run_is_told(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(SetupFailed) as failed:
        _ = uv(Steps(version=CommandResult(127, text)), tmp_path).version
    assert failed.value.user and str(failed.value) == f"uv does not run here: {why}; choose an image with glibc"


def test_what_uv_must_do_and_cannot_is_told(tmp_path: Path) -> None:
    assert uv(Steps(venv=CommandResult(0, "text")), tmp_path).run_checked("environment", "venv") == "text"
    with pytest.raises(SetupFailed) as failed:
        uv(Steps(venv=CommandResult(2, "error: no space")), tmp_path).run_checked("environment", "venv")
    assert str(failed.value) == "environment: no space" and failed.value.user and failed.value.code == 2


def test_an_installation_can_be_gone_on_with(tmp_path: Path) -> None:
    steps = Steps()
    uv(steps, tmp_path).install("a.txt", "pin versions", "--requirements=a.txt")
    (step,) = steps.ran
    assert step.command.argv == ("/tools/uv", "pip", "install", "--requirements=a.txt")
    assert (step.name, step.remedy) == ("a.txt", "pin versions") and step.undo is not None
    assert step.failure_message == "environment.requirements: a.txt cannot be installed"


def files(kind: Any, name: str) -> Requirements:
    return Requirements(name=name, kind=kind, files={}, settings={}, local=False)


def test_what_uv_is_to_read(tmp_path: Path) -> None:
    steps = Steps()
    made = uv(steps, tmp_path)
    assert made.target(files("requirements", "sub/a.txt"), Path("/code")) == Path("/code/sub/a.txt")
    pinned = made.target(files("uv-lock", "uv.lock"), Path("/code"), ("click==8.0", "numpy==2.0"))
    assert pinned.parent == tmp_path and pinned.read_text() == "click==8.0\nnumpy==2.0\n" and not steps.asked
    assert made.target(files("uv-lock", "sub/uv.lock"), Path("/code")) == tmp_path / "pylock.toml"
    (command,) = steps.asked
    assert command.argv[1:] == (
        "export",
        *("--frozen", "--offline", "--quiet", "--no-header", "--no-emit-project", "--no-editable"),
        "--format=pylock.toml",
        "--project=/code/sub",
        f"--output-file={tmp_path}/pylock.toml",
    )
    with pytest.raises(SetupFailed, match=r"^uv\.lock: it is out of date$"):
        uv(Steps(export=CommandResult(1, "error: it is out of date")), tmp_path).target(
            files("uv-lock", "uv.lock"), tmp_path
        )


@pytest.mark.parametrize(
    ("code", "text", "there"), [(0, "Audited 2 packages", True), (0, " + click==8.0", False), (1, "", False)]
)
def test_whether_everything_is_there_already(tmp_path: Path, code: int, text: str, there: bool) -> None:
    steps = Steps(install=CommandResult(code, text))
    assert uv(steps, tmp_path).satisfied(BASE, Path("/code/a.txt")) is there
    (command,) = steps.asked
    assert command.argv[1:] == (
        *("pip", "install", "--dry-run", "--break-system-packages", "--python=/opt/bin/python"),
        *("--requirements=/code/a.txt", "--no-editable", "--preview-features=pylock", "--offline"),
    )


def test_versions_that_only_a_distribution_can_read_are_left_out(tmp_path: Path) -> None:
    text = "torch==2.4.0+cu121\nnumpy==1!1.26.4\nold==0.1.dev3\nodd==1.0ubuntu2\n-e file:///mine\n"
    steps = Steps(list=CommandResult(0, text))
    assert uv(steps, tmp_path).installed(BASE) == {"torch": "2.4.0+cu121", "numpy": "1!1.26.4", "old": "0.1.dev3"}
    assert steps.asked[0].argv[1:] == ("pip", "list", "--quiet", "--format=freeze", "--python=/opt/bin/python")


def test_a_plan_has_the_versions_of_the_base_fixed(tmp_path: Path) -> None:
    steps = Steps(install=CommandResult(0, " + click==8.0\n"))
    made = uv(steps, tmp_path)
    made.use_index(IndexOptions(("--no-index",)))
    assert made.plan(BASE, Path("/a.txt"), {"torch": "2.4.0", "numpy": "1.0"}) == (PackageChange("+", "click", "8.0"),)
    (command,) = steps.asked
    option, _, constraints = command.argv[-1].partition("=")
    assert option == "--constraints" and Path(constraints).read_text() == "numpy==1.0\ntorch==2.4.0\n"
    assert "--no-index" in command.argv and "--dry-run" in command.argv
    assert uv(Steps(install=CommandResult(1, "no")), tmp_path).plan(BASE, Path("/a.txt"), {}) is None


# ── What of the base is kept ──────────────────────────────────────────────────────────────────────────────────────────


class Planner:
    """A uv that knows which versions go together: each plan, by the packages that are fixed for it."""

    def __init__(self, installed: Mapping[str, str], plans: Mapping[frozenset[str], tuple[PackageChange, ...]]) -> None:
        self._installed, self._plans = installed, plans
        self.tried: list[set[str]] = []

    def installed(self, _base: Python) -> Mapping[str, str]:
        return self._installed

    def plan(self, _base: Python, _target: Path, pins: Mapping[str, str]) -> tuple[PackageChange, ...] | None:
        self.tried.append(set(pins))
        assert all(self._installed[name] == version for name, version in pins.items())
        return self._plans.get(frozenset(pins))


def plan(planner: Planner) -> InstallPlan:
    return Venv(Path("/env"), BASE, planner, system=True)._plan(Path("/a.txt"))  # type: ignore[arg-type]


INSTALLED = {"torch": "2.4.0", "numpy": "1.0", "click": "7.0"}
CLICK = PackageChange("+", "click", "8.0")


def test_what_goes_with_everything_that_is_there_replaces_nothing() -> None:
    planner = Planner(INSTALLED, {frozenset(INSTALLED): (PackageChange("+", "lightning", "1.0"),)})
    assert plan(planner) == InstallPlan({"lightning": "1.0"}, {}, INSTALLED)
    assert len(planner.tried) == 1


def test_a_framework_is_kept_before_anything_else() -> None:
    free = tuple(PackageChange("-", name, version) for name, version in INSTALLED.items())
    with_torch = (PackageChange("-", "click", "7.0"), CLICK)
    with_click = (PackageChange("-", "torch", "2.4.0"), PackageChange("+", "torch", "2.5.0"))
    plans = {frozenset[str](): free, frozenset({"torch"}): with_torch, frozenset({"click"}): with_click}
    assert plan(Planner(INSTALLED, plans)) == InstallPlan(
        {"click": "8.0"}, {"click": "7.0"}, {"torch": "2.4.0", "numpy": "1.0"}
    )


def test_a_base_that_keeps_the_rest_is_asked_for_with_the_rest() -> None:
    rest = {"torch", "numpy"}
    replaced = (PackageChange("-", "click", "7.0"), CLICK)
    planner = Planner(INSTALLED, {frozenset(): replaced, frozenset(rest): replaced})
    assert plan(planner) == InstallPlan({"click": "8.0"}, {"click": "7.0"}, {"torch": "2.4.0", "numpy": "1.0"})
    assert planner.tried == [set(INSTALLED), set(), rest, set(INSTALLED)]


def test_where_nothing_can_be_the_installation_says_why() -> None:
    # Nothing of the base is left out of what uv is asked for: it would find nothing to install, and nothing wrong.
    planner = Planner(INSTALLED, {})
    assert plan(planner) == InstallPlan({}, {}, {})


def test_a_plan_for_the_rest_that_fails_is_no_reason_to_install_nothing() -> None:
    replaced = (PackageChange("-", "click", "7.0"), CLICK)
    planner = Planner(INSTALLED, {frozenset(): replaced})
    assert plan(planner) == InstallPlan({"click": "8.0"}, {"click": "7.0"}, {"torch": "2.4.0", "numpy": "1.0"})


# ── What is laid ──────────────────────────────────────────────────────────────────────────────────────────────────────


def laid(tmp_path: Path, base: Python = BASE, steps: Steps | None = None, *, system: bool = False) -> Venv:
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "lib/python3.12/site-packages").mkdir(parents=True)
    return Venv(folder, base, uv(steps or Steps(), tmp_path), system=system)


def test_the_variables_of_an_environment(tmp_path: Path) -> None:
    made = Venv(tmp_path, BASE, uv(Steps(), tmp_path), system=False)
    path = os.pathsep.join((f"{tmp_path}/bin", "/opt/bin", "/usr/bin"))
    assert made.environ() == {"PATH": path, "VIRTUAL_ENV": str(tmp_path)} and made.python == tmp_path / "bin/python"
    bare = Venv(tmp_path, replace(BASE, search=""), uv(Steps(), tmp_path), system=False)
    assert bare.environ()["PATH"] == os.pathsep.join((f"{tmp_path}/bin", "/opt/bin"))


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        (CommandResult(0, "greeting\nruns 3.12.4\n"), True),
        (CommandResult(0, "runs 3.12.44\n"), False),
        (CommandResult(1, "runs 3.12.4\n"), False),
        (CommandResult(0, ""), False),
    ],
)
def test_whether_one_that_was_restored_runs(tmp_path: Path, answer: CommandResult, runs: bool) -> None:
    steps = Steps(platform=answer)
    assert laid(tmp_path, steps=steps).runs() is runs
    assert steps.names == [str(tmp_path / "env/bin/python")] and steps.asked[0].argv[1:3] == ("-I", "-c")


def test_one_of_another_processor_does_not_run(tmp_path: Path) -> None:
    class Refusing(Steps):
        def capture(self, name: str, command: Command) -> CommandResult:
            raise SetupFailed("Exec format error", user=True)

    assert laid(tmp_path, steps=Refusing()).runs() is False


@pytest.mark.parametrize(
    ("system", "environment", "option", "path_file"),
    [(False, False, False, False), (False, True, False, False), (True, False, True, False), (True, True, False, True)],
)
def test_how_the_packages_of_the_base_are_seen(
    tmp_path: Path, system: bool, environment: bool, option: bool, path_file: bool
) -> None:
    steps = Steps()
    made = laid(tmp_path, replace(BASE, environment=environment), steps, system=system)
    made._create()
    seen = ("--system-site-packages",) if option else ()
    first = ("venv", "--quiet", "--no-project", "--python=/opt/bin/python")
    assert [command.argv[1:] for command in steps.asked] == [(*first, *seen, str(tmp_path / "env"))]
    found = tmp_path / "env/lib/python3.12/site-packages/_stoker_base.pth"
    assert found.exists() is path_file
    if path_file:
        lines = [f"import site; site.addsitedir('{site}')" for site in BASE.sites]
        assert found.read_text().splitlines() == lines


def test_commands_of_the_base_start_the_environments_python(tmp_path: Path) -> None:
    scripts = {
        "torchrun": "torch.distributed.run:main",
        "extra": "a.b : c [all]",
        "there": "a:b",
        "python-x": "a:b",
        "pip3.12": "a:b",
        "../evil": "a:b",
        "odd": "a:b.c",
    }
    made = laid(tmp_path, replace(BASE, scripts=scripts))
    (tmp_path / "env/bin/there").write_text("its own")
    made._add_scripts()
    assert sorted(path.name for path in (tmp_path / "env/bin").iterdir()) == ["extra", "there", "torchrun"]
    call = "import sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"
    assert (tmp_path / "env/bin/torchrun").read_text() == f"#!{tmp_path}/env/bin/python\n{call}"
    assert os.access(tmp_path / "env/bin/torchrun", os.X_OK)
    assert (tmp_path / "env/bin/there").read_text() == "its own"


@pytest.mark.parametrize(
    ("pip", "call"), [(("-m", "pip"), "'{env}/bin/python' -m pip"), ((), "/tools/uv pip")], ids=["its own", "none"]
)
def test_pip_on_top_of_a_base_is_the_bases_where_it_has_one(tmp_path: Path, pip: tuple[str, ...], call: str) -> None:
    root = tmp_path / "a place"
    made = laid(root, replace(BASE, pip=pip, scripts={"tool": "a:b"}), system=True)
    (root / "env/bin/pip3").write_text("its own")
    made.build_on_top()
    text = f"#!/bin/sh\nVIRTUAL_ENV='{root}/env' exec {call.format(env=root / 'env')} \"$@\"\n"
    assert (root / "env/bin/pip").read_text() == text
    assert (root / "env/bin/pip3").read_text() == "its own" and (root / "env/bin/tool").exists()


def test_an_environment_of_its_own_is_installed_into(tmp_path: Path) -> None:
    steps = Steps()
    made = laid(tmp_path, replace(BASE, scripts={"tool": "a:b"}), steps)
    made._uv.use_index(IndexOptions(("--no-index",)))
    assert made.report() == []
    made.make("a.txt", Path("/code/a.txt"), "pin versions")
    (step,) = steps.ran
    assert step.command.argv[1:] == (
        *("pip", "install", f"--python={tmp_path}/env/bin/python", "--requirements=/code/a.txt"),
        *("--no-editable", "--preview-features=pylock", "--no-index"),
    )
    assert not (tmp_path / "env/bin/tool").exists(), "the base's packages are not seen"
    text = f'#!/bin/sh\nVIRTUAL_ENV={tmp_path}/env exec /tools/uv pip "$@"\n'
    assert (tmp_path / "env/bin/pip").read_text() == text == (tmp_path / "env/bin/pip3").read_text()
    assert len(made.report()) == 1


def test_what_the_base_keeps_is_not_installed_again(tmp_path: Path) -> None:
    steps = Steps(
        list=CommandResult(0, "torch==2.4.0\nnumpy==1.0\n"),
        install=CommandResult(0, " + click==8.0\n + mine @ file:///x\n"),
    )
    made = laid(tmp_path, replace(BASE, scripts={"tool": "a:b"}), steps, system=True)
    made.make("a.txt", Path("/code/a.txt"), "")
    constraints, excludes = (word.partition("=") for word in steps.ran[0].command.argv[-2:])
    assert (constraints[0], Path(constraints[2]).read_text()) == ("--constraints", "click==8.0\n")
    assert (excludes[0], Path(excludes[2]).read_text()) == ("--excludes", "numpy\ntorch\n")
    assert (tmp_path / "env/bin/tool").exists()
    assert made.report() == ["a.txt: kept of what /opt/bin/python has: torch 2.4.0, numpy 1.0"]


def test_what_people_are_told_of_an_environment(tmp_path: Path) -> None:
    made = laid(tmp_path)
    site = tmp_path / "env/lib/python3.12/site-packages"
    (site / "click-8.0.dist-info").mkdir()
    advice = "environment.system_packages: true keeps what the image has"
    unseen = "a.txt: /opt/bin/python has torch 2.4.0, jax 0.4, which the environment does not see"
    assert list(made._report_lines("a.txt", None)) == [f"{unseen}; {advice}"]
    (site / "torch-2.5.0.dist-info").mkdir()
    (line,) = made._report_lines("a.txt", None)
    assert line.startswith("a.txt: /opt/bin/python has jax 0.4, which"), "it has a PyTorch of its own"
    (site / "jax-0.5.dist-info").mkdir()
    assert list(made._report_lines("a.txt", None)) == []
    plan = InstallPlan({"numpy": "2.0", "mine": None}, {"numpy": "1.0", "mine": "1"}, {"click": "7.0"})
    replaced = "a.txt: replaced of what /opt/bin/python has: numpy 1.0 → 2.0, mine 1 → its own"
    assert list(made._report_lines("a.txt", plan)) == [replaced]
    kept = replace(plan, replaced={}, retained={"numpy": "1.0", "torch": "2.4.0", "click": "7.0"})
    assert list(made._report_lines("a.txt", kept)) == [
        "a.txt: kept of what /opt/bin/python has: torch 2.4.0, numpy 1.0"
    ]


def test_only_packages_that_were_built_for_what_is_replaced_are_named(tmp_path: Path) -> None:
    told = """\
a warning of a package
stoker-pinned torchvision 0.19 torch 2.4.0
stoker-pinned cut off
stoker-pinned xformers 0.27 torch 2.5.0
stoker-pinned absent 1 torch 2.4.0
stoker-pinned torchtext 0.18 numpy 1.0
"""
    steps = Steps(torch=CommandResult(0, told))
    made = Venv(tmp_path / "env", BASE, uv(steps, tmp_path), system=True)
    retained = {"torchvision": "0.19", "xformers": "0.27", "torchtext": "0.18"}
    plan = InstallPlan({"torch": "2.5.0+cu121"}, {"torch": "2.4.0"}, retained)
    steps.answers = {"-c": CommandResult(0, told)}
    advice = "add torchvision to the requirements if the training uses it"
    (line,) = made._misfits(plan)
    assert line == f"torchvision 0.19 was built for torch 2.4.0, and may not work with 2.5.0+cu121; {advice}"
