"""Virtual environments, built with uv on an existing Python.

uv looks only into the environment that it installs to: an environment that sees the packages of its base would get all
of them a second time. To keep the packages of the base, uv is first asked what it would change in the base itself with
the versions there pinned; then only that is installed into the environment.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from stoker.agent.environment.error_hints import read_cause
from stoker.agent.environment.index import IndexOptions
from stoker.agent.environment.python import MakeCommand, Python
from stoker.agent.environment.requirements import Requirements
from stoker.agent.environment.steps import CommandResult, SetupSteps, Step, nothing_to_undo
from stoker.agent.environment.uv import PackageChange, parse_changes
from stoker.agent.runtime import Command
from stoker.model.errors import SetupFailed

_FIELD = "environment.requirements"
_SETTINGS = {
    # A Python that was not chosen must not be downloaded.
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_NO_PROGRESS": "1",
    "NO_COLOR": "1",
}
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==((?:\d+!)?\d[A-Za-z0-9.+]*)$", re.MULTILINE)
# Versions as uv writes them. Some distributions use versions for their packages that no other tool can parse.
_VERSION = re.compile(r"(?:\d+!)?\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[a-z0-9.]+)?")
# The most valuable packages of an image: retained with priority.
_MOST_VALUABLE = ("torch", "tensorflow", "jax", "jaxlib", "torchvision", "torchaudio", "numpy")
_SAFE_SCRIPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENTRY_POINT = re.compile(r"([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_]\w*)\s*(?:\[.*\])?")
# A file in the environment, whose lines are logged each time that the environment is used.
_REPORT = "stoker-report.txt"


class Uv:
    """Runs uv where the training will run. `scratch` is a folder for its files that is visible there."""

    def __init__(
        self,
        steps: SetupSteps,
        command: MakeCommand,
        program: Path,
        cache: Path | None,
        scratch: Path,
    ) -> None:
        self.program = program
        self._steps = steps
        self._make = command
        self._cache = cache
        self._index = IndexOptions()
        self._scratch = scratch

    def use_index(self, index: IndexOptions) -> None:
        """Install from this source from now on."""
        self._index = index

    @property
    def index_args(self) -> tuple[str, ...]:
        return self._index.args

    @cached_property
    def version(self) -> str:
        """The version of uv. Raises SetupFailed if it does not run at all."""
        answer = self.capture("--version")
        if answer.code:
            raise SetupFailed(f"uv does not run here: {_failure_text(answer)}; choose an image with glibc", user=True)
        return answer.text.strip()

    def command(self, *arguments: str) -> Command:
        made = self._make((str(self.program), *arguments))
        env = {**made.env, **_SETTINGS, **self._index.env}
        if self._cache is not None:
            env["UV_CACHE_DIR"] = str(self._cache)
        return replace(made, env=env, secrets={**made.secrets, **self._index.secrets})

    def capture(self, *arguments: str) -> CommandResult:
        return self._steps.capture("uv", self.command(*arguments))

    def capture_other(self, *argv: str) -> CommandResult:
        """Run another program in the same place."""
        return self._steps.capture(argv[0], self._make(argv))

    def run_checked(self, what: str, *arguments: str) -> str:
        """Run uv and return its output. Raises SetupFailed, with uv's message, if it fails."""
        answer = self.capture(*arguments)
        if answer.code:
            raise SetupFailed(f"{what}: {_failure_text(answer)}", user=True, code=answer.code)
        return answer.text

    def install(self, name: str, remedy: str, *arguments: str) -> None:
        """Install the requirements of the file of this name. Raises SetupFailed."""
        failure_message = f"{_FIELD}: {name} cannot be installed"
        command = self.command("pip", "install", *arguments)
        self._steps.run(Step(name, command, remedy, failure_message, nothing_to_undo))

    def write_scratch(self, name: str, text: str = "") -> Path:
        """Write a file for uv to read or overwrite, and return its path."""
        path = self._scratch / f".uv-{name}"
        path.write_text(text, encoding="utf-8")
        return path

    def target(self, files: Requirements, code: Path, pins: Sequence[str] = ()) -> Path:
        """Return the file for `uv pip install`: the file itself, or its lock exported as pylock.toml.

        `pins` are the resolved requirements, if they are known already.
        """
        path = code / files.name
        if pins:
            return self.write_scratch("pinned.txt", _lines(pins))
        if files.kind != "uv-lock":
            return path
        target = self._scratch / "pylock.toml"
        # The project itself is imported from the code, which changes more often than its requirements.
        options = ("--frozen", "--offline", "--quiet", "--no-header", "--no-emit-project", "--no-editable")
        self.run_checked(
            files.name,
            "export",
            *options,
            "--format=pylock.toml",
            f"--project={path.parent}",
            f"--output-file={target}",
        )
        return target

    def satisfied(self, base: Python, target: Path) -> bool:
        """Tell if all requirements are installed already. No index is asked for newer versions."""
        answer = self.capture(*_plan_arguments(base, target), "--offline")
        return answer.code == 0 and not parse_changes(answer.text)

    def installed(self, base: Python) -> dict[str, str]:
        """Return the packages that uv finds in a Python: versions by name."""
        text = self.run_checked(
            "environment.system_packages", "pip", "list", "--quiet", "--format=freeze", f"--python={base.path}"
        )
        return {name: version for name, version in _PINNED.findall(text) if _VERSION.fullmatch(version)}

    def plan(self, base: Python, target: Path, pins: Mapping[str, str]) -> tuple[PackageChange, ...] | None:
        """Return what uv would change in a Python with these versions pinned; None if there is no solution.

        Raises SetupFailed if the index does not answer, because that does not mean that there is no solution.
        """
        constraints = self.write_scratch("pins.txt", _pin_lines(pins))
        arguments = (*_plan_arguments(base, target), *self._index.args, f"--constraints={constraints}")
        answer = self._steps.capture_with_retries(_FIELD, self.command(*arguments))
        return parse_changes(answer.text) if answer.code == 0 else None


def _plan_arguments(base: Python, target: Path) -> tuple[str, ...]:
    # A dry run changes nothing, so it is safe for a Python that a system package manager owns.
    return ("pip", "install", "--dry-run", "--break-system-packages", f"--python={base.path}", *_read_from(target))


def _read_from(target: Path) -> tuple[str, ...]:
    return (f"--requirements={target}", "--no-editable", "--preview-features=pylock")


def _pin_lines(pins: Mapping[str, str]) -> str:
    return _lines(f"{name}=={version}" for name, version in sorted(pins.items()))


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _failure_text(answer: CommandResult) -> str:
    return read_cause(answer.text.splitlines()).text or f"it ended with {answer.code}"


@dataclass(frozen=True)
class InstallPlan:
    """The packages of an environment, compared with those of its base."""

    # Names and versions of the packages to install, and of the base's packages that they replace or leave.
    added: dict[str, str | None]
    replaced: dict[str, str]
    retained: dict[str, str]


class Venv:
    """A virtual environment in its own folder. `system`: it sees the packages of its base."""

    def __init__(self, folder: Path, base: Python, uv: Uv, *, system: bool) -> None:
        self.folder = folder
        self.base = base
        self._uv = uv
        self._system = system

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def environ(self) -> dict[str, str]:
        """The variables that make the training use this environment."""
        path = os.pathsep.join(part for part in (f"{self.folder}/bin", self.base.folder, self.base.search) if part)
        return {"PATH": path, "VIRTUAL_ENV": str(self.folder)}

    def runs(self) -> bool:
        """Tell if its Python runs and has the version that the environment was built for."""
        text = "import platform; print('runs', platform.python_version())"
        try:
            answer = self._uv.capture_other(str(self.python), "-I", "-c", text)
        except SetupFailed:
            return False  # Built for another processor, or missing.
        return answer.code == 0 and f"runs {self.base.version}" in answer.text.splitlines()

    def report(self) -> list[str]:
        """Return the lines to log each time that the environment is used."""
        try:
            return (self.folder / _REPORT).read_text(encoding="utf-8").splitlines()
        except OSError:
            return []

    def make(self, name: str, target: Path, remedy: str) -> None:
        """Build the environment and install into it. Its folder must not exist. Raises SetupFailed."""
        self._create()
        plan = self._plan(target) if self._system else None
        extra: tuple[str, ...] = ()
        if plan is not None:
            pins = {each: version for each, version in plan.added.items() if version is not None}
            extra = (
                f"--constraints={self._uv.write_scratch('pins.txt', _pin_lines(pins))}",
                f"--excludes={self._uv.write_scratch('retained.txt', _lines(sorted(plan.retained)))}",
            )
        # Nothing is compiled: that would take longer than all the rest, and the training compiles what it imports.
        arguments = (f"--python={self.python}", *_read_from(target), *extra, *self._uv.index_args)
        self._uv.install(name, remedy, *arguments)
        if plan is not None:
            self._add_scripts()
        self._add_pip(f'VIRTUAL_ENV={_quote(self.folder)} exec {_quote(self._uv.program)} pip "$@"')
        (self.folder / _REPORT).write_text(_lines(self._report_lines(name, plan)), encoding="utf-8")

    def build_on_top(self) -> None:
        """Build an empty environment that sees all packages of its base. Its folder must not exist.

        Its `pip` is the base's own pip if there is one: uv would install the visible packages a second time. Raises
        SetupFailed.
        """
        self._create()
        self._add_scripts()
        pip = shlex.join([str(self.python), *self.base.pip]) if self.base.pip else f"{_quote(self._uv.program)} pip"
        self._add_pip(f'VIRTUAL_ENV={_quote(self.folder)} exec {pip} "$@"')

    def _create(self) -> None:
        seen = ("--system-site-packages",) if self._system and not self.base.environment else ()
        self._uv.run_checked(
            "environment", "venv", "--quiet", "--no-project", f"--python={self.base.path}", *seen, str(self.folder)
        )
        if self._system:
            self._see_base()

    def _plan(self, target: Path) -> InstallPlan:
        """Keep as much of the base as possible: the existence of a newer version is no reason to replace a package."""
        installed = self._uv.installed(self.base)
        pins = dict(installed)
        changes = self._uv.plan(self.base, target, pins)
        if changes is None:
            free = self._uv.plan(self.base, target, {})
            # If even this has no solution, the installation fails and reports why.
            replaced = [change.name for change in free or () if change.sign == "-"]
            pins = {name: version for name, version in installed.items() if name not in replaced} if free else {}
            changes = self._uv.plan(self.base, target, pins) if pins else free
            for name in sorted(replaced, key=lambda name: (name not in _MOST_VALUABLE, name)):
                trial = self._uv.plan(self.base, target, {**pins, name: installed[name]}) if name in installed else None
                if trial is not None:
                    pins[name], changes = installed[name], trial
        added = {change.name: change.version for change in changes or () if change.sign != "-"}
        return InstallPlan(
            added=added,
            replaced={name: version for name, version in installed.items() if name in added},
            retained={name: version for name, version in installed.items() if name not in added},
        )

    @property
    def _site(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def _see_base(self) -> None:
        """Make the base's packages visible: Python does this by itself unless the base is a virtual environment."""
        if self.base.environment:
            lines = [f"import site; site.addsitedir({site!r})" for site in self.base.sites]
            (self._site / "_stoker_base.pth").write_text(_lines(lines), encoding="utf-8")

    def _add_scripts(self) -> None:
        """Add the console commands of the base's packages, such as torchrun: the base's would start its own Python."""
        for name, value in self.base.scripts.items():
            entry = _ENTRY_POINT.fullmatch(value)
            script = self.folder / "bin" / name
            if entry is None or _SAFE_SCRIPT.fullmatch(name) is None or name.startswith(("python", "pip")):
                continue
            if not script.exists():
                module, function = entry[1], entry[2]
                call = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
                _write_program(script, f"#!{self.python}\n{call}")

    def _add_pip(self, call: str) -> None:
        """Add `pip`, so that `pip install` in `setup` changes this environment and not its base."""
        for name in ("pip", "pip3"):
            if not (self.folder / "bin" / name).exists():
                _write_program(self.folder / "bin" / name, f"#!/bin/sh\n{call}\n")

    def _report_lines(self, name: str, plan: InstallPlan | None) -> Iterator[str]:
        if plan is None:
            own = {path.name.partition("-")[0] for path in self._site.glob("*.dist-info")}
            unseen = [f"{each} {version}" for each, version in self.base.frameworks.items() if each not in own]
            if unseen:
                advice = "environment.system_packages: true keeps what the image has"
                yield f"{name}: {self.base.path} has {', '.join(unseen)}, which the environment does not see; {advice}"
            return
        if plan.replaced:
            changes = [f"{each} {old} → {plan.added[each] or 'its own'}" for each, old in plan.replaced.items()]
            yield f"{name}: replaced of what {self.base.path} has: {', '.join(changes)}"
        retained = [f"{each} {plan.retained[each]}" for each in _MOST_VALUABLE if each in plan.retained]
        if retained:
            yield f"{name}: kept of what {self.base.path} has: {', '.join(retained)}"


def _quote(path: Path) -> str:
    return shlex.quote(str(path))


def _write_program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
