"""The Python packages of a job: installed once per machine, in their own environment, and cached for the next job.

No environment is built if the existing Python has every package already.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
from dataclasses import asdict
from pathlib import Path

from stoker.agent.environment import cpu_level, read_requirements
from stoker.agent.environment.build import EnvironmentBuilder, Recipe
from stoker.agent.environment.package_sources import (
    FetchSecret,
    PackageSource,
    PackedWheels,
    PrivateIndex,
    choose_wheels,
)
from stoker.agent.environment.python import MakeCommand, Python, activate, find, is_plain_python, put_first
from stoker.agent.environment.read_requirements import NOTHING, Requirements
from stoker.agent.environment.uv import Uv, find_program
from stoker.agent.environment.variables import UV_FILES
from stoker.agent.environment.venv import Venv
from stoker.model.errors import SetupFailed, UserError
from stoker.providers.base import RunsInContainer

_log = logging.getLogger(__name__)

# Increase a number when the same files would produce a different environment: one of its own, or one on top of a base.
_RECIPE = 1
_RECIPE_ON_TOP = 2
_REMEDY = "it is cached, so the next start on another machine is quick; pin versions, or use a lock file"


class Packages:
    """Set up the packages of one node. `command` builds commands that see what the training will see."""

    def __init__(self, builder: EnvironmentBuilder, command: MakeCommand, fetch: FetchSecret) -> None:
        self._builder = builder
        self._node = builder.node
        self._submission = builder.submission
        self._environment = builder.submission.spec.environment
        self._steps = builder.steps
        self._ask = builder.ask
        self._command = command
        self._fetch = fetch

    def make(self, *, python: str | None = None) -> dict[str, str]:
        """Install everything that the job asks for, and return the variables with which the training finds it.

        `python` is a Python that an earlier step built. Raises SetupFailed, and whatever `check` raises to end this
        node's work.
        """
        wanted = python or self._environment.python
        name = self._environment.requirements
        if name is None or name == NOTHING:
            return self._install_on_top(wanted) if self._must_protect_base(python) else self._select_python(wanted)
        _log.info("%s: finding out what is installed", name)
        files = self._read(name)
        base = find(
            self._steps, self._command, wanted, scripts=self._must_protect_base(python) or self._may_keep(files)
        )
        uv = self._uv()
        keep = self._keeps(files, base, made=python is not None) and self._can_keep(name, base, uv)
        if keep:
            self._node.say(f"{name}: its packages go on top of {base.title}{self._advice()}")
        source = self._source(base)
        # The base may satisfy a requirement in another version, so the pins do not apply: uv resolves again.
        pins = source.pins if source is not None and not keep else ()
        target = uv.target(files, self._node.paths.code, pins)
        key = self._key(files, base, uv, source, keep=keep)
        # An environment that exists was needed when it was built, so the base is not checked again.
        clean = self._environment.system_packages is False
        if not clean and not self._builder.contains(key) and uv.satisfied(base, target):
            there = f"{name}: everything is installed already in {base.path}"
            if self._must_protect_base(python):
                self._node.say(f"{there}, and setup installs into an environment on top of it")
                return self._build_on_top(base, wanted)
            self._node.say(f"{there}, so no environment is built")
            return put_first(base, self._links) if wanted else self._activate(base)
        venv = self._build_environment(files, base, uv, source, target, key, keep=keep)
        for line in venv.report():
            self._node.say(line)
        return venv.environ()

    @property
    def _links(self) -> Path:
        return self._node.paths.root / "bin"

    @property
    def _on_image(self) -> bool:
        """The machine boots from an image that may bring an environment. A container of the job brings what it has."""
        return not self._builder.keeps_environments and (
            self._environment.container is None or isinstance(self._node.machine, RunsInContainer)
        )

    def _may_keep(self, files: Requirements) -> bool:
        wished = self._environment.system_packages
        return bool(wished) or (wished is None and self._on_image and not files.is_lock)

    def _keeps(self, files: Requirements, base: Python, *, made: bool) -> bool:
        """Tell if the environment sees the packages of its base: by default, those that an image brings.

        `made`: an earlier step built the base for this job.
        """
        wished = self._environment.system_packages
        return bool(wished) or (self._may_keep(files) and base.is_of_image and not made)

    def _can_keep(self, name: str, base: Python, uv: Uv) -> bool:
        """Tell if uv can read the packages of the base, and say why not, unless the user insists on them.

        One package with broken metadata is enough: that is no reason to start nothing.
        """
        if self._environment.system_packages is not None:
            return True
        try:
            uv.installed(base)
        except SetupFailed as failure:
            self._node.say(f"{name}: a clean environment is made, because uv cannot read {base.title}: {failure}")
            return False
        return True

    def _advice(self) -> str:
        if self._environment.system_packages is not None:
            return ""
        return "; environment.system_packages: false makes a clean environment"

    def _activate(self, base: Python) -> dict[str, str]:
        return activate(base, self._links) if self._on_image and base.is_of_image else {}

    def _select_python(self, wanted: str | None) -> dict[str, str]:
        """Return the variables that select the wanted Python when nothing is to be installed."""
        if wanted is None:
            return self._select_images_python() if self._on_image else {}
        if self._builder.keeps_environments and not self._environment.container and is_plain_python(wanted):
            return {}  # The submitter's computer has it first on the PATH already.
        return put_first(find(self._steps, self._command, wanted), self._links)

    def _select_images_python(self) -> dict[str, str]:
        try:
            base = find(self._steps, self._command, None)
        except SetupFailed:
            return {}  # A job may need no Python at all.
        if base.is_of_image:
            self._node.say(f"python is {base.title}")
        return self._activate(base)

    def _must_protect_base(self, python: str | None) -> bool:
        """Tell if commands of the set-up could install into a Python that belongs to the owner of this computer.

        A Python that an earlier step built belongs to this node. If it has no pip, the owner's pip would be next on the
        PATH.
        """
        if (
            self._submission.spec.setup is None
            or not self._builder.keeps_environments
            or self._environment.container is not None
        ):
            return False
        return python is None or not Path(python).with_name("pip").exists()

    def _install_on_top(self, wanted: str | None) -> dict[str, str]:
        try:
            base = find(self._steps, self._command, wanted, scripts=True)
        except SetupFailed as failure:
            if wanted is not None:
                raise
            # A job may need no Python at all.
            self._node.say(f"setup has no environment of its own: {failure}")
            return {}
        return self._build_on_top(base, wanted)

    def _build_on_top(self, base: Python, wanted: str | None) -> dict[str, str]:
        """Build an environment for this node alone on top of the base, for the set-up's commands to install into."""
        folder = self._node.paths.environments / "setup"
        # An agent that was killed may have left an incomplete one.
        shutil.rmtree(folder, ignore_errors=True)
        venv = Venv(folder, base, self._uv(), system=True)
        venv.build_on_top()
        # The environment sees the packages in the user's home; pip must not install there.
        environ = venv.environ() | {"PIP_USER": "0"}
        if wanted is None:
            # All other programs keep their order of precedence.
            environ["PATH"] = f"{folder}/bin{os.pathsep}{base.search}"
        return environ

    def _read(self, name: str) -> Requirements:
        try:
            return read_requirements.read(self._node.paths.code, name)
        except UserError as error:
            raise SetupFailed(str(error), user=True) from None

    def _source(self, base: Python) -> PackageSource | None:
        """Return the source of packages if it is not PyPI. Sends no request."""
        if self._submission.wheels:
            wheels = choose_wheels(self._submission.wheels, base.version, platform.machine())
            return PackedWheels(self._node.store, wheels, self._node.paths.root / "wheels", self._ask)
        index = self._environment.index
        return PrivateIndex(index, self._fetch) if index is not None else None

    def _uv(self) -> Uv:
        contained = self._environment.container is not None
        cache_folder = self._node.environments
        cache_folder.mkdir(parents=True, exist_ok=True)
        program = self._ask(
            lambda: find_program(self._node.store, self._submission.tools, cache_folder, copied=contained)
        )
        # The submitter's own cache has the packages of other projects; containers cannot see it, and cloud machines
        # have none.
        cache = None if self._builder.keeps_environments and not contained else cache_folder / "cache"
        return Uv(self._steps, self._command, program, cache, self._node.paths.root)

    def _build_environment(
        self,
        files: Requirements,
        base: Python,
        uv: Uv,
        source: PackageSource | None,
        target: Path,
        key: str,
        *,
        keep: bool,
    ) -> Venv:
        """Return the complete environment."""

        def venv(folder: Path) -> Venv:
            return Venv(folder, base, uv, system=keep)

        def build(folder: Path) -> None:
            self._node.say(f"{files.name}: building an environment on Python {base.version} ({base.path})")
            if source is None:
                return venv(folder).make(files.name, target, _REMEDY)
            try:
                uv.use_index(source.open())
                venv(folder).make(files.name, target, _REMEDY)
            finally:
                source.close()

        recipe = Recipe(files.name, key, _platform(base), lambda folder: venv(folder).runs(), build)
        return venv(self._builder.get_or_build(recipe))

    def _key(self, files: Requirements, base: Python, uv: Uv, source: PackageSource | None, *, keep: bool) -> str:
        """Return the digest of everything that decides what is installed, and where."""
        facts = {
            "recipe": _RECIPE_ON_TOP if keep else _RECIPE,
            "name": files.name,
            "files": {
                name: hashlib.sha256(data).hexdigest()
                for name, data in sorted({**files.settings, **files.files}.items())
            },
            "uv": uv.version,
            "python": {
                name: value for name, value in asdict(base).items() if name in ("path", "version", "abi", "environment")
            },
            "platform": _platform(base),
            "system": uv.installed(base) if keep else None,
            "index": source.identity if source is not None else None,
            # Part of the keys that are in stores.
            "more": "",
        }
        if keep and base.builds:
            facts["builds"] = base.builds
        uses_code = files.local or files.local_settings
        return self._builder.key(facts, self._command(("uv",)), UV_FILES, uses_code=uses_code)


def _platform(base: Python) -> str:
    return f"{base.platform} {cpu_level.level()} {base.libc} {base.abi}"
