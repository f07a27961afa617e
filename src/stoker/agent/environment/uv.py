"""uv, the program that installs packages: locate it on this machine, run it, and parse its output.

A cloud machine fetches it from the store, by the digest that was fixed when the job was submitted. The submitter's own
computer uses the uv that was installed with Stoker.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from stoker.agent.environment.error_hints import read_cause
from stoker.agent.environment.package_sources import IndexOptions
from stoker.agent.environment.python import MakeCommand, Python
from stoker.agent.environment.read_requirements import EXPORT_LOCK, FIELD, UV_SETTINGS, Requirements
from stoker.agent.environment.steps import CommandResult, SetupSteps, Step, nothing_to_undo
from stoker.agent.fetch_programs import fetch_program, place_program
from stoker.agent.runtime import Command
from stoker.model.errors import SetupFailed
from stoker.store.base import Store
from stoker.store.safe_extraction import Extraction

# A change that uv made or would make: ` + numpy==2.1.0`, ` - torch==2.4.0 (from file:///…)`, ` + mine @ file:///…`.
_CHANGE = re.compile(r"^ (?P<sign>[+~-]) (?P<name>[A-Za-z0-9._-]+)(?:==(?P<version>\S+)| @ \S+)?", re.MULTILINE)
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==((?:\d+!)?\d[A-Za-z0-9.+]*)$", re.MULTILINE)
# Versions as uv writes them. Some distributions use versions for their packages that no other tool can parse.
_VERSION = re.compile(r"(?:\d+!)?\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[a-z0-9.]+)?")


@dataclass(frozen=True)
class PackageChange:
    """A package that is added (`+`), removed (`-`) or installed again (`~`)."""

    sign: str
    name: str
    # None for a package that comes from an address or a folder.
    version: str | None


def parse_changes(text: str) -> tuple[PackageChange, ...]:
    """Parse the changes that uv made, or would make, from its output."""
    return tuple(PackageChange(found["sign"], found["name"], found["version"]) for found in _CHANGE.finditer(text))


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
        env = {**made.env, **UV_SETTINGS, **self._index.env}
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
        failure_message = f"{FIELD}: {name} cannot be installed"
        command = self.command("pip", "install", *arguments)
        self._steps.run(Step(name, command, remedy, failure_message, nothing_to_undo))

    def write_scratch(self, name: str, lines: Iterable[str]) -> Path:
        """Write a file for uv to read, and return its path."""
        path = self._scratch / f".uv-{name}"
        write_lines(path, lines)
        return path

    def constraints(self, pins: Mapping[str, str]) -> str:
        """Return the option that pins these packages to these versions."""
        lines = (f"{name}=={version}" for name, version in sorted(pins.items()))
        return f"--constraints={self.write_scratch('pins.txt', lines)}"

    def target(self, files: Requirements, code: Path, pins: Sequence[str] = ()) -> Path:
        """Return the file for `uv pip install`: the file itself, or its lock exported as pylock.toml.

        `pins` are the resolved requirements, if they are known already.
        """
        path = code / files.name
        if pins:
            return self.write_scratch("pinned.txt", pins)
        if files.kind != "uv-lock":
            return path
        target = self._scratch / "pylock.toml"
        arguments = (*EXPORT_LOCK, "--format=pylock.toml", f"--project={path.parent}", f"--output-file={target}")
        self.run_checked(files.name, *arguments)
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
        arguments = (*_plan_arguments(base, target), *self._index.args, self.constraints(pins))
        answer = self._steps.capture_with_retries(FIELD, self.command(*arguments))
        return parse_changes(answer.text) if answer.code == 0 else None


def _plan_arguments(base: Python, target: Path) -> tuple[str, ...]:
    # A dry run changes nothing, so it is safe for a Python that a system package manager owns.
    return ("pip", "install", "--dry-run", "--break-system-packages", f"--python={base.path}", *read_from(target))


def read_from(target: Path) -> tuple[str, ...]:
    """Return the options with which uv reads the requirements in this file."""
    return (f"--requirements={target}", "--no-editable", "--preview-features=pylock")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file in a folder that commands in a container may write to: no link of that name is followed."""
    with Extraction(path.parent, follow=False) as folder:
        folder.write(path.name, "".join(f"{line}\n" for line in lines).encode())


def _failure_text(answer: CommandResult) -> str:
    return read_cause(answer.text.splitlines()).text or f"it ended with {answer.code}"


def find_program(store: Store, tools: Mapping[str, str], cache: Path, *, copied: bool) -> Path:
    """Return the path of uv, and fetch it first if needed. May be repeated.

    `copied`: the program must be in `cache`, which a container can see. Raises SetupFailed, StoreError.
    """
    return fetch_program(store, tools, "uv", cache) or _installed(cache if copied else None)


def _installed(cache: Path | None) -> Path:
    try:
        from uv import find_uv_bin

        program = Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
        if found is None:
            reason = "uv, which installs packages, was not found; install Stoker again, or uv itself: pip install uv"
            raise SetupFailed(reason, user=False) from None
        program = Path(found)
    if cache is None:
        return program
    status = program.stat()
    copy = cache / "tools" / f"{status.st_size:x}-{status.st_mtime_ns:x}" / "uv"
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with program.open("rb") as source:
            place_program(source, copy)
    return copy
