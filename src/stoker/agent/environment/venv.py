"""Virtual environments, made with uv on a Python that is there.

uv looks into the environment that it installs to and nowhere else: one that sees the packages of its base would get all
of them a second time. So where the base's packages are to be kept, uv is asked first what it would change in the base
itself, with the versions there pinned; then only that is installed into the environment.
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
from stoker.agent.environment.index import Index
from stoker.agent.environment.python import MakeCommand, Python
from stoker.agent.environment.requirements import Requirements
from stoker.agent.environment.steps import Answer, Step, Steps, nothing_to_undo
from stoker.agent.environment.uv import Change, read_changes
from stoker.agent.runtime import Command
from stoker.model.errors import SetupFailed

_FIELD = "environment.requirements"
_SETTINGS = {
    # A Python that nobody chose must not come from the internet.
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_NO_PROGRESS": "1",
    "NO_COLOR": "1",
}
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==((?:\d+!)?\d[A-Za-z0-9.+]*)$", re.MULTILINE)
# As uv writes them. Some distributions name their packages' versions in ways that nobody else can read.
_VERSION = re.compile(r"(?:\d+!)?\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[a-z0-9.]+)?")
# What is worth most of what an image has: kept before everything else.
_DEAREST = ("torch", "tensorflow", "jax", "jaxlib", "torchvision", "torchaudio", "numpy")
_SAFE_SCRIPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENTRY_POINT = re.compile(r"([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_]\w*)\s*(?:\[.*\])?")
# In the environment: what people should know of it each time that it is used.
_REPORT = "stoker-report.txt"


class Uv:
    """uv, run where the training will run. `scratch` is a folder for its files, which is seen there, too."""

    def __init__(
        self,
        steps: Steps,
        command: MakeCommand,
        program: Path,
        cache: Path | None,
        scratch: Path,
    ) -> None:
        self.program = program
        self._steps = steps
        self._make = command
        self._cache = cache
        self._index = Index()
        self._scratch = scratch

    def use(self, index: Index) -> None:
        """Install from there, from now on."""
        self._index = index

    @property
    def index_args(self) -> tuple[str, ...]:
        return self._index.args

    @cached_property
    def version(self) -> str:
        """Raises SetupFailed where it does not run at all."""
        answer = self.ask("--version")
        if answer.code:
            raise SetupFailed(f"uv does not run here: {_why(answer)}; choose an image with glibc", user=True)
        return answer.text.strip()

    def command(self, *arguments: str) -> Command:
        made = self._make((str(self.program), *arguments))
        env = {**made.env, **_SETTINGS, **self._index.env}
        if self._cache is not None:
            env["UV_CACHE_DIR"] = str(self._cache)
        return replace(made, env=env, secrets={**made.secrets, **self._index.secrets})

    def ask(self, *arguments: str) -> Answer:
        return self._steps.ask("uv", self.command(*arguments))

    def ask_other(self, *argv: str) -> Answer:
        """Run another program in the same place."""
        return self._steps.ask(argv[0], self._make(argv))

    def must(self, what: str, *arguments: str) -> str:
        """Raises SetupFailed, with what uv said, when it fails."""
        answer = self.ask(*arguments)
        if answer.code:
            raise SetupFailed(f"{what}: {_why(answer)}", user=True, code=answer.code)
        return answer.text

    def install(self, name: str, remedy: str, *arguments: str) -> None:
        """What the file of this name asks for. Raises SetupFailed."""
        failing = f"{_FIELD}: {name} cannot be installed"
        command = self.command("pip", "install", *arguments)
        self._steps.run(Step(name, command, remedy, failing, nothing_to_undo))

    def scratch(self, name: str, text: str = "") -> Path:
        """A file for uv to read or write."""
        path = self._scratch / f".uv-{name}"
        path.write_text(text, encoding="utf-8")
        return path

    def target(self, files: Requirements, code: Path, pins: Sequence[str] = ()) -> Path:
        """What `uv pip install` is to read: the file itself, or what its lock says, in the form for all tools.

        `pins` is what it comes to, where that is known already.
        """
        path = code / files.name
        if pins:
            return self.scratch("pinned.txt", _lines(pins))
        if files.kind != "uv-lock":
            return path
        target = self._scratch / "pylock.toml"
        # The project itself is imported from the code, which changes more often than what it needs.
        options = ("--frozen", "--offline", "--quiet", "--no-header", "--no-emit-project", "--no-editable")
        self.must(
            files.name,
            "export",
            *options,
            "--format=pylock.toml",
            f"--project={path.parent}",
            f"--output-file={target}",
        )
        return target

    def satisfied(self, base: Python, target: Path) -> bool:
        """Whether everything is there already. Nobody is asked for newer versions."""
        answer = self.ask(*_plan_arguments(base, target), "--offline")
        return answer.code == 0 and not read_changes(answer.text)

    def installed(self, base: Python) -> dict[str, str]:
        """What uv finds installed in a Python, by name."""
        text = self.must(
            "environment.system_packages", "pip", "list", "--quiet", "--format=freeze", f"--python={base.path}"
        )
        return {name: version for name, version in _PINNED.findall(text) if _VERSION.fullmatch(version)}

    def plan(self, base: Python, target: Path, pins: Mapping[str, str]) -> tuple[Change, ...] | None:
        """What it would change in a Python, with these versions fixed; None when that cannot be.

        Raises SetupFailed where the index does not answer: that says nothing of what can be.
        """
        constraints = self.scratch("pins.txt", _pin_lines(pins))
        arguments = (*_plan_arguments(base, target), *self._index.args, f"--constraints={constraints}")
        answer = self._steps.ask_index(_FIELD, self.command(*arguments))
        return read_changes(answer.text) if answer.code == 0 else None


def _plan_arguments(base: Python, target: Path) -> tuple[str, ...]:
    # Nothing is changed by a dry run, whoever manages that Python.
    return ("pip", "install", "--dry-run", "--break-system-packages", f"--python={base.path}", *_read_from(target))


def _read_from(target: Path) -> tuple[str, ...]:
    return (f"--requirements={target}", "--no-editable", "--preview-features=pylock")


def _pin_lines(pins: Mapping[str, str]) -> str:
    return _lines(f"{name}=={version}" for name, version in sorted(pins.items()))


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _why(answer: Answer) -> str:
    return read_cause(answer.text.splitlines()).text or f"it ended with {answer.code}"


@dataclass(frozen=True)
class Plan:
    """What goes into an environment beside the packages of its base."""

    # Name and version of what is installed; of those that the base has, too, the version there.
    added: dict[str, str | None]
    replaced: dict[str, str]
    kept: dict[str, str]


class Venv:
    """An environment in a folder of its own. `system`: it sees the packages of its base."""

    def __init__(self, folder: Path, base: Python, uv: Uv, *, system: bool) -> None:
        self.folder = folder
        self.base = base
        self._uv = uv
        self._system = system

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def environ(self) -> dict[str, str]:
        """The variables that make it the training's."""
        path = os.pathsep.join(part for part in (f"{self.folder}/bin", self.base.folder, self.base.search) if part)
        return {"PATH": path, "VIRTUAL_ENV": str(self.folder)}

    def runs(self) -> bool:
        """Whether its Python does, and is of the version that it was made for."""
        text = "import platform; print('runs', platform.python_version())"
        try:
            answer = self._uv.ask_other(str(self.python), "-I", "-c", text)
        except SetupFailed:
            return False  # Of another processor, or not there at all.
        return answer.code == 0 and f"runs {self.base.version}" in answer.text.splitlines()

    def report(self) -> list[str]:
        """What people should know of it."""
        try:
            return (self.folder / _REPORT).read_text(encoding="utf-8").splitlines()
        except OSError:
            return []

    def make(self, name: str, target: Path, remedy: str) -> None:
        """Make it and install into it. Its folder must not be there. Raises SetupFailed."""
        self._lay()
        plan = self._plan(target) if self._system else None
        extra: tuple[str, ...] = ()
        if plan is not None:
            pins = {each: version for each, version in plan.added.items() if version is not None}
            extra = (
                f"--constraints={self._uv.scratch('pins.txt', _pin_lines(pins))}",
                f"--excludes={self._uv.scratch('kept.txt', _lines(sorted(plan.kept)))}",
            )
        # Nothing is compiled: that takes longer than all the rest, and the training compiles what it imports by itself.
        arguments = (f"--python={self.python}", *_read_from(target), *extra, *self._uv.index_args)
        self._uv.install(name, remedy, *arguments)
        if plan is not None:
            self._add_scripts()
        self._add_pip(f'VIRTUAL_ENV={_quote(self.folder)} exec {_quote(self._uv.program)} pip "$@"')
        (self.folder / _REPORT).write_text(_lines(self._told(name, plan)), encoding="utf-8")

    def make_on_top(self) -> None:
        """Make it with nothing in it: what it sees is all of its base's. Its folder must not be there.

        Its `pip` is pip itself, where the base has one: uv would install a second time what is only seen. Raises
        SetupFailed.
        """
        self._lay()
        self._add_scripts()
        pip = shlex.join([str(self.python), *self.base.pip]) if self.base.pip else f"{_quote(self._uv.program)} pip"
        self._add_pip(f'VIRTUAL_ENV={_quote(self.folder)} exec {pip} "$@"')

    def _lay(self) -> None:
        seen = ("--system-site-packages",) if self._system and not self.base.environment else ()
        self._uv.must(
            "environment", "venv", "--quiet", "--no-project", f"--python={self.base.path}", *seen, str(self.folder)
        )
        if self._system:
            self._see_base()

    def _plan(self, target: Path) -> Plan:
        """As much of the base as can be is kept: that a newer version could be used is no reason to replace it."""
        installed = self._uv.installed(self.base)
        pins = dict(installed)
        changes = self._uv.plan(self.base, target, pins)
        if changes is None:
            free = self._uv.plan(self.base, target, {})
            # Where even that cannot be, the installation fails, and says why.
            replaced = [change.name for change in free or () if change.sign == "-"]
            pins = {name: version for name, version in installed.items() if name not in replaced} if free else {}
            changes = self._uv.plan(self.base, target, pins) if pins else free
            for name in sorted(replaced, key=lambda name: (name not in _DEAREST, name)):
                trial = self._uv.plan(self.base, target, {**pins, name: installed[name]}) if name in installed else None
                if trial is not None:
                    pins[name], changes = installed[name], trial
        added = {change.name: change.version for change in changes or () if change.sign != "-"}
        return Plan(
            added=added,
            replaced={name: version for name, version in installed.items() if name in added},
            kept={name: version for name, version in installed.items() if name not in added},
        )

    @property
    def _site(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def _see_base(self) -> None:
        """A virtual environment sees those of its base's base by itself, never those of another virtual environment."""
        if self.base.environment:
            lines = [f"import site; site.addsitedir({site!r})" for site in self.base.sites]
            (self._site / "_stoker_base.pth").write_text(_lines(lines), encoding="utf-8")

    def _add_scripts(self) -> None:
        """The commands of the base's packages, such as torchrun: its own would start its own Python."""
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
        """`pip install` in `setup` is for this environment, and not for the Python that it was made on."""
        for name in ("pip", "pip3"):
            if not (self.folder / "bin" / name).exists():
                _write_program(self.folder / "bin" / name, f"#!/bin/sh\n{call}\n")

    def _told(self, name: str, plan: Plan | None) -> Iterator[str]:
        if plan is None:
            own = {path.name.partition("-")[0] for path in self._site.glob("*.dist-info")}
            unseen = [f"{each} {version}" for each, version in self.base.frameworks.items() if each not in own]
            if unseen:
                advice = "environment.system_packages: true keeps what the image has"
                yield f"{name}: {self.base.path} has {', '.join(unseen)}, which its environment does not see; {advice}"
            return
        if plan.replaced:
            changes = [f"{each} {old} → {plan.added[each] or 'its own'}" for each, old in plan.replaced.items()]
            yield f"{name}: replaced of what {self.base.path} has: {', '.join(changes)}"
        kept = [f"{each} {plan.kept[each]}" for each in _DEAREST if each in plan.kept]
        if kept:
            yield f"{name}: kept of what {self.base.path} has: {', '.join(kept)}"


def _quote(path: Path) -> str:
    return shlex.quote(str(path))


def _write_program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
