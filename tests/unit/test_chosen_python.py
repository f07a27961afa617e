"""The Python of a job on its machine: how it is asked, what it tells, and what `python` means then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.agent.environment import install_packages
from stoker.agent.environment.build import Recipe
from stoker.agent.environment.install_packages import Packages
from stoker.agent.environment.package_sources import PackedWheels, PrivateIndex
from stoker.agent.environment.python import Python, find, is_plain_python, put_first
from stoker.agent.environment.read_requirements import Requirements
from stoker.agent.environment.steps import CommandResult
from stoker.agent.runtime import Command
from stoker.model.errors import SetupFailed
from stoker.model.spec import Container, Environment, PackageIndex, Spec
from stoker.model.submission import Submission, Wheel
from stoker.secrets import fetch_secrets

BASE = Python(
    path="/opt/bin/python3.12",
    version="3.12.4",
    abi="cpython-312",
    platform="linux-x86_64",
    libc="glibc-2.36",
    environment=False,
    plain=False,
    sites=("/opt/lib",),
    frameworks={"torch": "2.4.0"},
    scripts={"torchrun": "torch:main"},
    pip=("-m", "pip"),
    search="/usr/bin",
)


class Steps:
    """Answers a question, and notes it."""

    def __init__(self, text: str = "", code: int = 0) -> None:
        self.answer = CommandResult(code, text)
        self.asked: list[Command] = []

    def capture(self, name: str, command: Command) -> CommandResult:
        assert name == "environment.python"
        self.asked.append(command)
        return self.answer


def command(argv: tuple[str, ...]) -> Command:
    return Command(argv, {}, Path("/"))


def tells(base: Python) -> str:
    return f"a greeting\nstoker-python {json.dumps(asdict(base))}\n"


def look(steps: Steps, wanted: str | None = None, **more: Any) -> Python:
    return find(steps, command, wanted, **more)  # type: ignore[arg-type]


def test_a_python_tells_of_itself() -> None:
    steps = Steps(tells(BASE))
    assert look(steps, "3.12") == BASE
    assert look(steps, scripts=True) == BASE
    assert [(asked.argv[:2], asked.argv[3:5], asked.argv[6]) for asked in steps.asked] == [
        (("sh", "-c"), ("sh", "3.12"), ""),
        (("sh", "-c"), ("sh", ""), "scripts"),
    ]


@pytest.mark.parametrize(
    ("code", "text", "wanted", "told"),
    [
        (9, "", None, "there is no python on this machine's PATH; there is none at all, or choose another image"),
        (
            9,
            "/a/python3\n/a/python3.11\n/a/python3\n",
            "3.12",
            (
                "there is no Python '3.12' on this machine; there are /a/python3, /a/python3.11; name one of "
                "them, or choose another image"
            ),
        ),
        (1, "\nbroken\nmore", "/opt/python", "/opt/python does not run on this machine: broken"),
        (1, tells(BASE), None, "python does not run on this machine: a greeting"),
        (0, "", None, "python does not run on this machine: it printed nothing"),
        (
            0,
            tells(replace(BASE, version="3.5.10")),
            None,
            (
                "/opt/bin/python3.12 is Python 3.5.10, and packages need 3.6 or newer; name another one, "
                "or choose another image"
            ),
        ),
    ],
)
def test_what_cannot_be_used_is_told(code: int, text: str, wanted: str | None, told: str) -> None:
    with pytest.raises(SetupFailed) as failed:
        look(Steps(text, code), wanted)
    assert failed.value.user and str(failed.value) == f"environment.python: {told}"


def test_the_oldest_that_will_do() -> None:
    assert look(Steps(tells(replace(BASE, version="3.6.8")))).version == "3.6.8"


def test_python_means_the_one_that_was_chosen(tmp_path: Path) -> None:
    links = tmp_path / "deep/bin"
    for plain in (replace(BASE, plain=True), replace(BASE, environment=True)):
        assert put_first(plain, links) == {"PATH": f"/opt/bin{os.pathsep}/usr/bin"}
    assert put_first(replace(BASE, plain=True, search=""), links) == {"PATH": "/opt/bin"}
    assert not links.exists()
    for path in ("/opt/bin/python3.12", "/other/python3"):  # May be repeated.
        assert put_first(replace(BASE, path=path), links) == {"PATH": f"{links}{os.pathsep}/usr/bin"}
        assert {link.name: str(link.readlink()) for link in links.iterdir()} == {"python": path, "python3": path}


def test_whether_python_in_its_folder_is_this_one(tmp_path: Path) -> None:
    named, other = tmp_path / "python3.12", tmp_path / "python3.11"
    named.touch(0o755)
    other.touch(0o755)
    assert not is_plain_python(str(named)), "there is no `python`"
    (tmp_path / "python").symlink_to(named)
    assert (
        is_plain_python(str(named)) and not is_plain_python(str(other)) and not is_plain_python(str(tmp_path / "none"))
    )
    named.chmod(0o644)
    assert not is_plain_python(str(named)), "it cannot be run"


# ── What a set-up does with it ────────────────────────────────────────────────────────────────────────────────────────


def a_set_up(
    tmp_path: Path, steps: Steps | None = None, *, here: bool = True, setup: str | None = None, **more: Any
) -> Packages:
    wheels = more.pop("wheels", {})
    paths = SimpleNamespace(root=tmp_path / "node", code=tmp_path / "node/code", environments=tmp_path / "node/envs")
    said: list[str] = []
    node = SimpleNamespace(paths=paths, store=None, environments=tmp_path / "shelf", say=said.append, said=said)
    spec = Spec(name="job", run="true", setup=setup, environment=Environment(**more))
    submission = replace(Submission("job-abcd", spec, "me"), wheels=wheels)
    making = SimpleNamespace(
        keeps_environments=here,
        node=node,
        submission=submission,
        steps=steps or Steps(tells(BASE)),
        ask=lambda question: question(),
    )
    fetch = lambda field, reference: fetch_secrets.fetch(field, reference, os.environ)  # noqa: E731
    return Packages(making, command, fetch)  # type: ignore[arg-type]


def test_a_job_that_names_no_python_and_needs_nothing_asks_for_none(tmp_path: Path) -> None:
    steps = Steps()
    assert a_set_up(tmp_path, steps).make() == {} and steps.asked == []


@pytest.mark.parametrize("requirements", [None, "none"])
def test_a_python_that_is_named_is_found_where_nothing_is_installed(tmp_path: Path, requirements: str | None) -> None:
    links = tmp_path / "node/bin"
    assert a_set_up(tmp_path, python="3.12", requirements=requirements).make() == {"PATH": f"{links}:/usr/bin"}
    assert (links / "python").readlink() == Path(BASE.path)


@pytest.mark.parametrize(("here", "container", "asked"), [(True, None, 0), (False, None, 1), (True, Container("x"), 1)])
def test_one_of_this_computer_whose_folder_has_it_as_python_is_not_asked(
    tmp_path: Path, here: bool, container: Container | None, asked: int
) -> None:
    path = tmp_path / "python"
    path.touch(0o755)
    steps = Steps(tells(BASE))
    a_set_up(tmp_path, steps, here=here, python=str(path), container=container).make()
    assert len(steps.asked) == asked


@pytest.mark.parametrize(
    ("setup", "here", "container", "python", "changed"),
    [
        (None, True, None, None, False),
        ("make", False, None, None, False),
        ("make", True, Container("x"), None, False),
        ("make", True, None, None, True),
        ("make", True, None, "with-pip", False),
        ("make", True, None, "without-pip", True),
    ],
)
def test_whether_a_set_up_could_change_a_python_that_is_not_its_own(
    tmp_path: Path, setup: str | None, here: bool, container: Container | None, python: str | None, changed: bool
) -> None:
    for name in ("with-pip", "without-pip"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "python").touch()
    (tmp_path / "with-pip/pip").touch()
    path = None if python is None else str(tmp_path / python / "python")
    assert a_set_up(tmp_path, here=here, setup=setup, container=container)._must_protect_base(path) is changed


def test_a_set_up_without_any_python_goes_on_unless_one_is_named(tmp_path: Path) -> None:
    made = a_set_up(tmp_path, Steps("", 9), setup="make")
    assert made.make() == {}
    (line,) = made._node.said  # type: ignore[attr-defined]
    assert line.startswith("setup has no environment of its own: environment.python: there is no python on this")
    with pytest.raises(SetupFailed, match=r"there is no Python '3\.12'"):
        a_set_up(tmp_path, Steps("", 9), setup="make", python="3.12").make()


@pytest.mark.parametrize(
    ("here", "contained", "copied", "cache"),
    [(True, False, False, False), (False, False, False, True), (True, True, True, True), (False, True, True, True)],
)
def test_which_uv_and_which_cache_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool, contained: bool, copied: bool, cache: bool
) -> None:
    asked: list[tuple[Path, bool]] = []

    def program(_store: object, _tools: object, shelf: Path, *, copied: bool) -> Path:
        asked.append((shelf, copied))
        return Path("/tools/uv")

    monkeypatch.setattr(install_packages, "find_program", program)
    made = a_set_up(tmp_path, here=here, container=Container("x") if contained else None)._uv()
    shelf = tmp_path / "shelf"
    assert asked == [(shelf, copied)] and shelf.is_dir() and made.program == Path("/tools/uv")
    assert made.command("x").env.get("UV_CACHE_DIR") == (str(shelf / "cache") if cache else None)
    (tmp_path / "node").mkdir()
    assert made.write_scratch("a", ["text"]).parent == tmp_path / "node"


def test_where_packages_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert a_set_up(tmp_path)._source(BASE) is None
    monkeypatch.setenv("TOKEN", "hunter2")
    index = PackageIndex("https://me@host/simple", "env:TOKEN")
    source = a_set_up(tmp_path, index=index)._source(BASE)
    assert isinstance(source, PrivateIndex)
    assert source.open().secrets == {"UV_INDEX_STOKER_PASSWORD": "hunter2"}
    # What was gathered at submission needs no index.
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    wheels = {"3.12-x86_64": (Wheel("a-1-py3-none-any.whl", "0" * 64, 1),)}
    packed = a_set_up(tmp_path, index=index, wheels=wheels)._source(BASE)
    assert isinstance(packed, PackedWheels) and packed.pins == ("a==1",)
    assert packed._folder == tmp_path / "node/wheels"
    with pytest.raises(SetupFailed, match=r"this machine has 3\.11-x86_64"):
        a_set_up(tmp_path, wheels=wheels)._source(replace(BASE, version="3.11.2"))


def test_a_file_that_is_not_there_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "node/code").mkdir(parents=True)
    with pytest.raises(SetupFailed, match=r"there is no a\.txt in the code folder") as failed:
        a_set_up(tmp_path)._read("a.txt")
    assert failed.value.user


def test_this_very_python_tells_of_itself_as_expected(tmp_path: Path) -> None:
    """The question itself, asked of the Python that runs this."""

    class Real(Steps):
        def capture(self, name: str, command: Command) -> CommandResult:
            done = subprocess.run(command.argv, capture_output=True, text=True, check=False)
            return CommandResult(done.returncode, done.stdout)

    found = look(Real(), sys.executable, scripts=True)
    assert found.path == sys.executable and found.environment == (sys.prefix != sys.base_prefix)
    assert found.version.startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.") and "pytest" in found.scripts
    assert found.search == os.environ["PATH"] and found.folder == str(Path(sys.executable).parent)


@pytest.mark.parametrize("fails", [False, True])
def test_the_source_of_packages_is_open_while_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    did: list[str] = []

    class Made:
        def __init__(self, folder: Path, *_: object, system: bool) -> None:
            self.folder = folder

        def make(self, name: str, _target: Path, _remedy: str) -> None:
            did.append(f"install {name} into {self.folder.name}")
            if fails:
                raise SetupFailed("no such package", user=True)

    def build(recipe: Recipe) -> Path:
        recipe.build(tmp_path / "draft")
        return tmp_path / "built"

    monkeypatch.setattr(install_packages, "Venv", Made)
    packages = a_set_up(tmp_path)
    packages._builder.get_or_build = build  # type: ignore[method-assign]
    source = SimpleNamespace(open=lambda: "opened", close=lambda: did.append("close"))
    uv = SimpleNamespace(use_index=lambda index: did.append(f"use {index}"))
    files = Requirements("a.txt", "requirements", {}, {}, local=False, local_settings=False)
    if fails:
        with pytest.raises(SetupFailed, match="no such package"):
            packages._build_environment(files, BASE, uv, source, tmp_path, "key", keep=False)  # type: ignore[arg-type]
    else:
        made = packages._build_environment(files, BASE, uv, source, tmp_path, "key", keep=False)  # type: ignore[arg-type]
        assert made.folder == tmp_path / "built"
    assert did == ["use opened", "install a.txt into draft", "close"]
