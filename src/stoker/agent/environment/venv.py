"""Virtual environments, built with uv on an existing Python.

uv looks only into the environment that it installs to: an environment that sees the packages of its base would get all
of them a second time. To keep the packages of the base, uv is first asked what it would change in the base itself with
the versions there pinned; then only that is installed into the environment.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.environment.python import Python
from stoker.agent.environment.read_requirements import is_lock, kind_of
from stoker.agent.environment.uv import Uv, read_from, write_lines
from stoker.model.errors import SetupFailed
from stoker.store.safe_extraction import Extraction

# The most valuable packages of an image: retained with priority.
_MOST_VALUABLE = ("torch", "tensorflow", "jax", "jaxlib", "torchvision", "torchaudio", "numpy")
_SAFE_SCRIPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENTRY_POINT = re.compile(r"([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_]\w*)\s*(?:\[.*\])?")
# Prints the packages below the folders of its arguments that need exactly one version of another package.
_ASK_PINNED = r"""
import glob, os, re, sys
pinned = re.compile(r"Requires-Dist: ([A-Za-z0-9._-]+)(?: *\()? *==([^*,;)\s]+)\)?\s*(?:;(?!.*\bextra\b).*)?$")
for folder in sys.argv[1:]:
    for file in glob.glob(os.path.join(glob.escape(folder), "*.dist-info", "METADATA")):
        own = {"Name": "", "Version": ""}
        for line in open(file, encoding="utf-8", errors="replace"):
            if not line.strip():
                break
            key, _, value = line.partition(": ")
            if key in own:
                own[key] = value.strip()
            found = pinned.match(line)
            if found:
                print("stoker-pinned", own["Name"], own["Version"], found.group(1), found.group(2))
"""
# A file in the environment, whose lines are logged each time that the environment is used.
_REPORT = "stoker-report.txt"


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
                self._uv.constraints(pins),
                f"--excludes={self._uv.write_scratch('retained.txt', sorted(plan.retained))}",
            )
        # Nothing is compiled: that would take longer than all the rest, and the training compiles what it imports.
        arguments = (f"--python={self.python}", *read_from(target), *extra, *self._uv.index_args)
        self._uv.install(name, remedy, *arguments)
        if plan is not None:
            self._add_scripts()
        self._add_pip(f'VIRTUAL_ENV={_quote(self.folder)} exec {_quote(self._uv.program)} pip "$@"')
        write_lines(self.folder / _REPORT, self._report_lines(name, plan))

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
            if free is None:
                # Nothing is left out, so that the installation fails and reports why.
                return InstallPlan(added={}, replaced={}, retained={})
            replaced = [change.name for change in free if change.sign == "-"]
            pins = {name: version for name, version in installed.items() if name not in replaced} if free else {}
            changes = self._uv.plan(self.base, target, pins) if pins else free
            if changes is None:
                pins, changes = {}, free
            for name in sorted(replaced, key=lambda name: (name not in _MOST_VALUABLE, name)):
                trial = self._uv.plan(self.base, target, {**pins, name: installed[name]}) if name in installed else None
                if trial is not None:
                    pins[name], changes = installed[name], trial
        added = {change.name: change.version for change in changes if change.sign != "-"}
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
            write_lines(self._site / "_stoker_base.pth", lines)

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
                advice = (
                    "" if is_lock(kind_of(name)) else "; environment.system_packages: true keeps what the image has"
                )
                yield f"{name}: {self.base.path} has {', '.join(unseen)}, which the environment does not see{advice}"
            return
        if plan.replaced:
            changes = [f"{each} {old} → {plan.added[each] or 'its own'}" for each, old in plan.replaced.items()]
            yield f"{name}: replaced of what {self.base.path} has: {', '.join(changes)}"
            yield from (f"{name}: {line}" for line in self._misfits(plan))
        retained = [f"{each} {plan.retained[each]}" for each in _MOST_VALUABLE if each in plan.retained]
        if retained:
            yield f"{name}: kept of what {self.base.path} has: {', '.join(retained)}"

    def _misfits(self, plan: InstallPlan) -> Iterator[str]:
        """Name the retained packages that were built for a version that is replaced: torchvision for its torch."""
        answer = self._uv.capture_other(self.base.path, "-I", "-c", _ASK_PINNED, *self.base.sites)
        retained = {_plain(name) for name in plan.retained}
        added = {_plain(name): version for name, version in plan.added.items()}
        for line in sorted(set(answer.text.splitlines())):
            words = line.split()
            if words[:1] != ["stoker-pinned"] or len(words) != 5:
                continue
            _, package, version, needed, pin = words
            new = added.get(_plain(needed))
            if _plain(package) in retained and new is not None and new.partition("+")[0] != pin.partition("+")[0]:
                advice = f"add {package} to the requirements if the training uses it"
                yield f"{package} {version} was built for {needed} {pin}, and may not work with {new}; {advice}"


def _plain(name: str) -> str:
    """Return the name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _quote(path: Path) -> str:
    return shlex.quote(str(path))


def _write_program(path: Path, text: str) -> None:
    with Extraction(path.parent, follow=False) as folder:
        folder.write(path.name, text.encode(), 0o755)
