"""The Python packages of a job: installed once on a machine, in an environment of their own, and kept for the next one.

The Python that is there may have everything already: then nothing is made.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
from dataclasses import asdict
from pathlib import Path

from stoker.agent.environment import cpu_level, requirements, variables
from stoker.agent.environment.build import Making, Recipe, digest_of
from stoker.agent.environment.index import PackedWheels, PrivateIndex, Source, choose_wheels
from stoker.agent.environment.python import MakeCommand, Python, find, is_plain, put_first
from stoker.agent.environment.requirements import NOTHING, Requirements
from stoker.agent.environment.steps import Steps
from stoker.agent.environment.uv import find_program
from stoker.agent.environment.venv import Uv, Venv
from stoker.agent.node import Ask, Node
from stoker.model.errors import SetupFailed, UserError
from stoker.model.spec import Submission
from stoker.secrets.fetch_secrets import fetch

_log = logging.getLogger(__name__)

# Counted up when the same files would make another environment than before.
_RECIPE = 1
_REMEDY = "it is kept, so the next start on another machine is quick; pin versions, or use a lock file"


class Packages:
    """One set-up of them. `command` makes commands that see what the training will see."""

    def __init__(
        self,
        node: Node,
        submission: Submission,
        steps: Steps,
        command: MakeCommand,
        ask: Ask,
        making: Making,
        *,
        image: str = "",
    ) -> None:
        self._node = node
        self._submission = submission
        self._wishes = submission.spec.environment
        self._steps = steps
        self._command = command
        self._ask = ask
        self._making = making
        # What the training's container is made from, exactly; empty on the machine itself.
        self._image = image

    def make(self, *, python: str | None = None, more: str = "") -> dict[str, str]:
        """Everything that the job asks for. Answers the variables with which the training finds it.

        `python` is a Python that an earlier step made. `more` is whatever else decides what is installed. Raises
        SetupFailed, and whatever tells this node to go.
        """
        wanted = python or self._wishes.python
        name = self._wishes.requirements
        if name is None or name == NOTHING:
            return self._on_top(wanted) if self._is_changed(python) else self._chosen(wanted)
        _log.info("%s: finding out what is installed", name)
        files = self._read(name)
        scripts = self._is_changed(python) or bool(self._wishes.system_packages)
        base = find(self._steps, self._command, wanted, scripts=scripts)
        uv = self._uv()
        source = self._source(base)
        # What the base has already may do: then the requirements are resolved anew, with that in mind.
        pins = source.pins if source is not None and not self._wishes.system_packages else ()
        target = uv.target(files, self._node.paths.code, pins)
        key = self._key(files, base, uv, source, more)
        # One that was made once was needed, and is as good as what its base may have got since.
        if not self._making.knows(key) and uv.satisfied(base, target):
            there = f"{name}: everything is installed already in {base.path}"
            if self._is_changed(python):
                self._node.say(f"{there}, and what setup installs goes into an environment on top of it")
                return self._layer(base, wanted)
            self._node.say(f"{there}, so no environment is made")
            return put_first(base, self._links) if wanted else {}
        venv = self._made(files, base, uv, source, target, key)
        for line in venv.report():
            self._node.say(line)
        return venv.environ()

    @property
    def _links(self) -> Path:
        return self._node.paths.root / "bin"

    def _chosen(self, wanted: str | None) -> dict[str, str]:
        """Nothing is to be installed: only the Python has to be found."""
        if wanted is None or (self._making.here and not self._wishes.container and is_plain(wanted)):
            return {}  # Its folder is first on the PATH.
        return put_first(find(self._steps, self._command, wanted), self._links)

    def _is_changed(self, python: str | None) -> bool:
        """Whether commands of the set-up could install into a Python that is somebody's own.

        One that an earlier step made is this node's. If it has no pip, theirs would be the next on the PATH.
        """
        if self._submission.spec.setup is None or not self._making.here or self._wishes.container is not None:
            return False
        return python is None or not Path(python).with_name("pip").exists()

    def _on_top(self, wanted: str | None) -> dict[str, str]:
        try:
            base = find(self._steps, self._command, wanted, scripts=True)
        except SetupFailed as failure:
            if wanted is not None:
                raise
            # A job may well need no Python at all.
            self._node.say(f"setup has no environment of its own: {failure}")
            return {}
        return self._layer(base, wanted)

    def _layer(self, base: Python, wanted: str | None) -> dict[str, str]:
        """An environment of this node's alone, with all that its base has: what is installed goes there."""
        folder = self._node.paths.environments / "setup"
        # Left by an agent that was killed, maybe half made.
        shutil.rmtree(folder, ignore_errors=True)
        venv = Venv(folder, base, self._uv(), system=True)
        venv.make_on_top()
        # It sees the packages of the user's home, too, which is no reason to install there.
        environ = venv.environ() | {"PIP_USER": "0"}
        if wanted is None:
            # Other programs are found in the order that they were found in.
            environ["PATH"] = f"{folder}/bin{os.pathsep}{base.search}"
        return environ

    def _read(self, name: str) -> Requirements:
        try:
            return requirements.read(self._node.paths.code, name)
        except UserError as error:
            raise SetupFailed(str(error), user=True) from None

    def _source(self, base: Python) -> Source | None:
        """Where packages come from, where that is not PyPI. Nobody is asked yet."""
        if self._submission.wheels:
            wheels = choose_wheels(self._submission.wheels, base.version, platform.machine())
            return PackedWheels(self._node.store, wheels, self._node.paths.root / "wheels", self._ask)
        if self._wishes.index is None:
            return None
        return PrivateIndex(
            self._wishes.index, lambda field, reference: self._ask(lambda: fetch(field, reference, os.environ))
        )

    def _uv(self) -> Uv:
        contained = self._wishes.container is not None
        shelf = self._node.environments
        shelf.mkdir(parents=True, exist_ok=True)
        program = self._ask(lambda: find_program(self._node.store, self._submission.tools, shelf, copied=contained))
        # The submitter's own cache has what other projects use; a container cannot see it, nor a machine have one.
        cache = None if self._making.here and not contained else shelf / "cache"
        return Uv(self._steps, self._command, program, cache, self._node.paths.root)

    def _made(self, files: Requirements, base: Python, uv: Uv, source: Source | None, target: Path, key: str) -> Venv:
        """The environment, whole."""

        def venv(folder: Path) -> Venv:
            return Venv(folder, base, uv, system=bool(self._wishes.system_packages))

        def build(folder: Path) -> None:
            self._node.say(f"{files.name}: making an environment on Python {base.version} ({base.path})")
            if source is None:
                return venv(folder).make(files.name, target, _REMEDY)
            try:
                uv.use(source.open())
                venv(folder).make(files.name, target, _REMEDY)
            finally:
                source.close()

        recipe = Recipe(files.name, key, _platform(base), lambda folder: venv(folder).runs(), build)
        return venv(self._making.have(recipe))

    def _key(self, files: Requirements, base: Python, uv: Uv, source: Source | None, more: str) -> str:
        """The digest of everything that decides what is installed, and where."""
        spec, wishes = self._submission.spec, self._wishes
        code = self._submission.code
        facts = {
            "recipe": _RECIPE,
            "name": files.name,
            "files": {
                name: hashlib.sha256(data).hexdigest()
                for name, data in sorted({**files.settings, **files.files}.items())
            },
            "code": code.digest if (files.local or files.local_settings) and code is not None else None,
            "settings": variables.digest_settings(
                self._command(("uv",)),
                code.digest if code is not None else "",
                variables.UV_FILES,
                here=not self._image,
            ),
            "uv": uv.version,
            "python": {
                name: value for name, value in asdict(base).items() if name in ("path", "version", "abi", "environment")
            },
            "platform": _platform(base),
            "image": self._image or spec.resources.image,
            "system": uv.installed(base) if wishes.system_packages else None,
            "index": source.identity if source is not None else None,
            "apt": wishes.apt,
            # Its scripts name the place.
            "folder": str(self._making.root),
            "more": more,
        }
        return digest_of(facts)


def _platform(base: Python) -> str:
    return f"{base.platform} {cpu_level.level()} {base.libc} {base.abi}"
