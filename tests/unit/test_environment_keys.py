"""By what an environment is known: an equal one is found again, and one that would be another is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.agent.environment import cpu_level
from stoker.agent.environment.build import EnvironmentBuilder
from stoker.agent.environment.conda import Conda, CondaProgram
from stoker.agent.environment.install_packages import Packages
from stoker.agent.environment.python import Python
from stoker.agent.environment.read_requirements import Requirements
from stoker.agent.runtime import Command
from stoker.model.resources import Resources
from stoker.model.spec import Environment, PackageIndex, Spec
from stoker.model.submission import Code, Submission

BASE = Python(
    path="/opt/bin/python",
    version="3.12.4",
    abi="cpython-312",
    platform="linux-x86_64",
    libc="glibc-2.36",
    environment=True,
    plain=True,
    sites=("/opt/lib",),
    frameworks={"torch": "2.4.0"},
    scripts={},
    pip=("-m", "pip"),
    search="/usr/bin",
)
FILES = Requirements(
    name="requirements.txt",
    kind="requirements",
    files={"requirements.txt": b"click\n", "more.txt": b"numpy\n"},
    settings={"uv.toml": b""},
    local=True,
    local_settings=False,
)
PROGRAM = CondaProgram("/opt/conda/bin/conda", "conda 24.1", "x86_64 glibc 2.36 v3", "/usr/bin")
TEXT = "dependencies: [pip, {pip: [./libs/mine]}]\n"


class Case:
    """Everything that decides what is installed. An attribute is changed, and another key is expected."""

    def __init__(self, home: Path) -> None:
        self.code: Code | None = Code("c" * 64, 1, 1)
        self.wishes = Environment(requirements="requirements.txt", conda="env.yml", apt=("git",))
        self.resources = Resources(image="ami-1")
        # In a container the settings of this machine's user count for nothing.
        self.image = "repo@sha256:1"
        self.root = Path("/environments")
        self.env = {"HOME": str(home), "UV_RESOLUTION": "highest", "CONDA_SUBDIR": "linux-64"}
        # Of Python packages.
        self.files, self.base, self.uv = FILES, BASE, "uv 0.8.0"
        self.installed = {"torch": "2.4.0"}
        self.source: Any = None
        # Of conda.
        self.program, self.name, self.text = PROGRAM, "env.yml", TEXT
        (home / ".config/uv").mkdir(parents=True)
        (home / ".config/uv/uv.toml").write_text("offline = true\n")
        (home / ".condarc").write_text("offline: true\n")

    def _making(self) -> EnvironmentBuilder:
        paths = SimpleNamespace(code=Path("/nowhere/code"), environments=Path("/own"))
        node: Any = SimpleNamespace(paths=paths, environments=self.root, machine=None, store=None)
        spec = Spec(name="job", run="true", environment=self.wishes, resources=self.resources)
        submission = Submission("job-abcd", spec, "me", code=self.code)
        nothing: Any = None
        return EnvironmentBuilder(node, submission, nothing, nothing, nothing, image=self.image)

    def _command(self, argv: tuple[str, ...]) -> Command:
        return Command(argv, self.env, Path("/nowhere/code"))

    def packages(self) -> str:
        made = Packages(self._making(), self._command, lambda *_: "")
        uv = SimpleNamespace(version=self.uv, installed=lambda base: self.installed)
        keep = bool(self.wishes.system_packages)
        return made._key(self.files, self.base, uv, self.source, keep=keep)  # type: ignore[arg-type]

    def conda(self) -> str:
        made = Conda(self._making(), self._command, lambda *_: "")
        return made._key(self.name, self.text, self.program)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(cpu_level, "level", lambda: "v3")
    return Case(tmp_path)


def test_what_an_earlier_version_of_stoker_kept_is_found_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """These keys are in stores. A change of what they are made of has every environment made once more."""
    del case.env["HOME"]
    monkeypatch.setenv("HOME", "/nowhere")
    case.source = SimpleNamespace(identity="https://packages.example/simple")
    case.wishes = replace(case.wishes, system_packages=True, conda_channel=PackageIndex("https://me@host/conda"))
    assert case.packages() == "70beb5cd06d64f6ac73a0f0252378fba"
    assert case.conda() == "06751758cffef84f6512b814ff1df217"


BOTH: dict[str, Callable[[Case], None]] = {
    "the code, where parts of it are installed": lambda case: setattr(case, "code", Code("d" * 64, 1, 1)),
    "variables": lambda case: case.env.update({"PIP_PRE": "1"}),
    "the container's image": lambda case: setattr(case, "image", "repo@sha256:2"),
    "the machine's image": lambda case: (setattr(case, "image", ""), setattr(case, "resources", Resources(image="b"))),
    "Debian packages": lambda case: setattr(case, "wishes", replace(case.wishes, apt=("git", "gcc"))),
    "where it lies": lambda case: setattr(case, "root", Path("/elsewhere")),
}
OF_PACKAGES: dict[str, Callable[[Case], None]] = {
    "a file": lambda case: setattr(case, "files", replace(FILES, files={**FILES.files, "more.txt": b"numpy<2\n"})),
    "settings in the code": lambda case: setattr(case, "files", replace(FILES, settings={"uv.toml": b"x"})),
    "which file": lambda case: setattr(case, "files", replace(FILES, name="more.txt")),
    "uv": lambda case: setattr(case, "uv", "uv 0.9.0"),
    "the Python": lambda case: setattr(case, "base", replace(BASE, path="/other/python")),
    "its version": lambda case: setattr(case, "base", replace(BASE, version="3.12.5")),
    "its kind": lambda case: setattr(case, "base", replace(BASE, environment=False)),
    "its C library": lambda case: setattr(case, "base", replace(BASE, libc="musl")),
    "its ABI": lambda case: setattr(case, "base", replace(BASE, abi="cpython-312d")),
    "an index": lambda case: setattr(case, "source", SimpleNamespace(identity="https://host/simple")),
    "what is kept": lambda case: setattr(case, "wishes", replace(case.wishes, system_packages=True)),
}
OF_CONDA: dict[str, Callable[[Case], None]] = {
    "the file": lambda case: setattr(case, "text", f"{TEXT}# changed\n"),
    "its name": lambda case: setattr(case, "name", "other.yml"),
    "the program": lambda case: setattr(case, "program", replace(PROGRAM, path="/usr/bin/mamba")),
    "its version": lambda case: setattr(case, "program", replace(PROGRAM, version="conda 25.1")),
    "the machine": lambda case: setattr(case, "program", replace(PROGRAM, platform="aarch64")),
    "a channel": lambda case: setattr(case, "wishes", replace(case.wishes, conda_channel=PackageIndex("https://a/b"))),
    "an index": lambda case: setattr(case, "wishes", replace(case.wishes, index=PackageIndex("https://a/b"))),
}


@pytest.mark.parametrize("what", [*BOTH, *OF_PACKAGES])
def test_packages_are_made_anew_for_another(case: Case, what: str) -> None:
    before = case.packages()
    assert case.packages() == before
    (BOTH | OF_PACKAGES)[what](case)
    assert case.packages() != before


@pytest.mark.parametrize("what", [*BOTH, *OF_CONDA])
def test_a_conda_environment_is_made_anew_for_another(case: Case, what: str) -> None:
    before = case.conda()
    assert case.conda() == before
    (BOTH | OF_CONDA)[what](case)
    assert case.conda() != before


def test_what_is_installed_from_elsewhere_does_not_depend_on_the_code(case: Case) -> None:
    case.files, case.text = replace(FILES, local=False), "dependencies: [python]\n"
    before = case.packages(), case.conda()
    case.code = Code("d" * 64, 1, 1)
    assert (case.packages(), case.conda()) == before
    # Settings may lead into the code, too.
    case.files = replace(case.files, local_settings=True)
    assert case.packages() != before[0]


def test_a_job_without_code_has_its_own_key(case: Case) -> None:
    before = case.packages(), case.conda()
    case.code = None
    assert case.packages() != before[0] and case.conda() != before[1]


def test_what_the_base_has_counts_only_where_it_is_kept(case: Case) -> None:
    before = case.packages()
    case.installed = {"torch": "2.5.0"}
    assert case.packages() == before
    case.wishes = replace(case.wishes, system_packages=True)
    kept = case.packages()
    case.installed = {"torch": "2.4.0"}
    assert case.packages() != kept


def test_settings_of_the_machines_user_count_on_the_machine_alone(case: Case, tmp_path: Path) -> None:
    def change() -> None:
        (tmp_path / ".config/uv/uv.toml").write_text("offline = false\n")
        (tmp_path / ".condarc").write_text("offline: false\n")

    before = case.packages(), case.conda()
    change()
    assert (case.packages(), case.conda()) == before, "the container does not see them"
    case.image = ""
    before = case.packages(), case.conda()
    (tmp_path / ".config/uv/uv.toml").write_text("")
    (tmp_path / ".condarc").write_text("")
    assert case.packages() != before[0] and case.conda() != before[1]


def test_passwords_in_addresses_do_not_count(case: Case) -> None:
    case.wishes = replace(case.wishes, conda_channel=PackageIndex("https://me@host/conda"))
    before = case.conda()
    case.wishes = replace(case.wishes, conda_channel=PackageIndex("https://you@host/conda"))
    assert case.conda() == before


def test_the_builds_of_condas_packages_count_where_they_are_kept(case: Case) -> None:
    before = case.packages()
    case.base = replace(BASE, builds=("pytorch-2.4.0-cuda12.json",))
    assert case.packages() == before
    case.wishes = replace(case.wishes, system_packages=True)
    kept = case.packages()
    case.base = replace(BASE, builds=("pytorch-2.4.0-cpu.json",))
    assert case.packages() != kept
