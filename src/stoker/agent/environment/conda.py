"""A conda environment from a file, in a prefix of its own, by whatever conda, mamba or micromamba there is.

A channel's password is in variables of that program alone. Its settings name the variables, and say nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

from stoker.agent.environment import cpu_level, variables
from stoker.agent.environment.build import Making, Recipe, digest_of
from stoker.agent.environment.index import Fetch, PrivateIndex
from stoker.agent.environment.python import MakeCommand
from stoker.agent.environment.requirements import any_here
from stoker.agent.environment.steps import Step, Steps
from stoker.agent.node import Node
from stoker.agent.runtime import Command
from stoker.model.errors import SetupFailed
from stoker.model.package_sources import read_address, user_of
from stoker.model.spec import Submission

_FIELD = "environment.conda"
_RECIPE = 1
_REMEDY = "it is kept, so the next start on another machine is quick; pin versions"
_MARK = "stoker-conda"

# Ends with 9 when there is none. The quickest comes first.
_FIND = r"""
found=
for one in "${MAMBA_EXE:-}" mamba micromamba "${CONDA_EXE:-}" conda; do
  [ -n "$found" ] || [ -z "$one" ] || found=$(command -v "$one")
done
for folder in /opt/conda /opt/miniconda3 /opt/miniforge3 /opt/mambaforge /opt/anaconda3 "$HOME/miniconda3" \
    "$HOME/miniforge3" "$HOME/mambaforge" "$HOME/anaconda3" "$HOME/micromamba" "$HOME/.local" "$HOME"; do
  for one in mamba micromamba conda; do
    [ -n "$found" ] || [ ! -x "$folder/bin/$one" ] || found=$folder/bin/$one
  done
done
[ -n "$found" ] || exit 9
echo "stoker-conda program $found"
echo "stoker-conda version $("$found" --version 2>/dev/null | tr '\n' ' ')"
echo "stoker-conda platform $(uname -m) $(getconf GNU_LIBC_VERSION 2>/dev/null)"
echo "stoker-conda search $PATH"
"""

# The channel of a file is its own, until the next word at the beginning of a line.
_CHANNELS = re.compile(r"^channels[ \t]*:[^\n]*\n(?:(?:[ \t]+|-|#)[^\n]*\n|[ \t]*\n)*", re.MULTILINE)
# They say nothing of what is installed, and `conda env export` writes where it was.
_LABELS = re.compile(r"^(?:name|prefix)[ \t]*:[^\n]*$", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """What makes the environment, as it tells of itself."""

    path: str
    version: str
    platform: str
    # PATH as it was there.
    search: str

    @property
    def micro(self) -> bool:
        return os.path.basename(self.path).startswith("micromamba")  # noqa: PTH119


@dataclass(frozen=True)
class Made:
    """The variables with which the environment is found, and the Python in it, if there is one."""

    environ: dict[str, str]
    python: str | None


class Conda:
    """One set-up of it. `command` makes commands that see what the training will see."""

    def __init__(
        self,
        node: Node,
        submission: Submission,
        steps: Steps,
        command: MakeCommand,
        making: Making,
        fetch: Fetch,
        *,
        image: str = "",
    ) -> None:
        self._node = node
        self._submission = submission
        self._wishes = submission.spec.environment
        self._steps = steps
        self._command = command
        self._making = making
        self._fetch = fetch
        self._image = image

    def make(self) -> Made:
        """The environment, whole. Raises SetupFailed, and whatever tells this node to go."""
        name = self._wishes.conda
        assert name is not None
        file = self._node.paths.code / name
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SetupFailed(f"{_FIELD}: {name} cannot be read: {error}", user=True) from None
        program = self._find()
        key = self._key(name, text, program)
        prefix = self._making.have(Recipe(name, key, program.platform, self._runs, partial(self._build, file, program)))
        python = prefix / "bin" / "python"
        path = os.pathsep.join(part for part in (f"{prefix}/bin", program.search) if part)
        environ = {"PATH": path, "CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": str(prefix)}
        return Made(environ, str(python) if python.exists() else None)

    def _find(self) -> Program:
        answer = self._steps.ask(_FIELD, self._command(("sh", "-c", _FIND)))
        if answer.code == 9:
            raise SetupFailed(
                f"{_FIELD}: there is no conda, mamba or micromamba on this machine; choose an image that has one, or "
                "use environment.requirements",
                user=True,
            )
        lines = (line.split(" ", 2) for line in answer.text.splitlines() if line.startswith(f"{_MARK} "))
        told = {line[1]: line[2].strip() if len(line) > 2 else "" for line in lines}
        if "program" not in told or not told.get("version"):
            last = answer.text.strip().splitlines()[-1:] or ["it printed nothing"]
            raise SetupFailed(f"{_FIELD}: {told.get('program', 'conda')} does not run here: {last[0]}", user=True)
        kind = f"{told.get('platform', '')} {cpu_level.level()}"
        return Program(told["program"], told["version"], kind, told.get("search", ""))

    def _key(self, name: str, text: str, program: Program) -> str:
        file = self._node.paths.code / name
        channel, index = self._wishes.conda_channel, self._wishes.index
        code = self._submission.code
        return digest_of(
            {
                "recipe": f"conda {_RECIPE}",
                "name": name,
                "text": text,
                "code": code.digest if code is not None and may_be_here(text, file.parent) else None,
                "settings": variables.digest_settings(
                    self._command((program.path,)),
                    code.digest if code is not None else "",
                    variables.CONDA_FILES,
                    here=not self._image,
                ),
                "program": (program.path, program.version),
                "platform": program.platform,
                "image": self._image or self._submission.spec.resources.image,
                "channel": read_address(channel.url).url if channel is not None else None,
                "index": read_address(index.url).url if index is not None else None,
                "apt": self._wishes.apt,
                # Its scripts name the place.
                "folder": str(self._making.root),
            }
        )

    def _runs(self, prefix: Path) -> bool:
        python = prefix / "bin" / "python"
        if not python.exists():
            return (prefix / "conda-meta").is_dir()
        return self._steps.ask(_FIELD, self._command((str(python), "-I", "-c", ""))).code == 0

    def _build(self, file: Path, program: Program, prefix: Path) -> None:
        self._node.say(f"{self._wishes.conda}: making an environment with {program.path} ({program.version})")
        # Where commands in a container may write.
        scratch = self._node.paths.environments / ".conda"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o755, parents=True)
        beside = file.with_name(f".stoker-{file.name}")
        try:
            command, private = self._creating(file, beside, program, prefix, scratch)
            name = str(self._wishes.conda)
            # A prefix that is there is refused.
            undo = partial(shutil.rmtree, prefix, ignore_errors=True)
            self._steps.run(Step(name, command, _REMEDY, f"{_FIELD}: {name} cannot be installed", undo))
            for value in private:
                forget(prefix, value)
        finally:
            beside.unlink(missing_ok=True)
            shutil.rmtree(scratch, ignore_errors=True)

    def _creating(
        self, file: Path, beside: Path, program: Program, prefix: Path, scratch: Path
    ) -> tuple[Command, tuple[str, ...]]:
        """The command that makes it, and what must not be found in it afterwards."""
        env = {"CONDA_ALWAYS_YES": "true", "MAMBA_ALWAYS_YES": "true", "PIP_NO_INPUT": "1", "NO_COLOR": "1"}
        secrets: dict[str, str] = {}
        if self._wishes.index is not None:
            index = PrivateIndex(self._wishes.index, self._fetch).for_commands()
            env |= index.env
            secrets |= index.secrets
        settings: tuple[str, ...] = ()
        channel = self._wishes.conda_channel
        if channel is not None:
            address = read_address(channel.url)
            place = address.url
            if channel.secret is not None:
                password = self._fetch("environment.conda_channel.secret", channel.secret)
                env["STOKER_CONDA_USER"] = quote(user_of(channel, address), safe="")
                secrets["STOKER_CONDA_PASSWORD"] = quote(password, safe="")
                place = place.replace("://", "://${STOKER_CONDA_USER}:${STOKER_CONDA_PASSWORD}@", 1)
                # What it unpacks remembers where it came from.
                env["CONDA_PKGS_DIRS"] = str(scratch / "pkgs")
            rules = scratch / "condarc"
            rules.write_text(f"channels: #!final\n  - {place}\ndefault_channels: #!final\n  - {place}\n")
            # In its place, for what it says of files is said relative to it.
            beside.write_text(without_channels(file.read_text(encoding="utf-8")), encoding="utf-8")
            file = beside
            env["CONDARC"] = str(rules)
            settings = ("--rc-file", str(rules)) if program.micro else ()
        create = ("create", "--yes") if program.micro else ("env", "create")
        argv = (program.path, *create, *settings, "--quiet", "--file", str(file), "--prefix", str(prefix))
        made = self._command(argv)
        given = replace(made, env={**made.env, **env}, secrets={**made.secrets, **secrets}, cwd=file.parent)
        return given, tuple(secrets.values())


def may_be_here(text: str, folder: Path) -> bool:
    """Whether a file may install something that lies in the code, as its part for pip can. In doubt it does."""
    words = re.split(r"[\s,\[\]{}'\"]+", _LABELS.sub("", re.sub(r"(^|\s)#.*$", "", text, flags=re.MULTILINE)))
    return any_here([word for word in words if word.strip("-")], folder)


def without_channels(text: str) -> str:
    """An environment file that names no channels."""
    return _CHANNELS.sub("", text if text.endswith("\n") else f"{text}\n")


def forget(prefix: Path, secret: str) -> None:
    """Take a password out of what conda noted of where packages came from."""
    for path in (prefix / "conda-meta").glob("*"):
        data = path.read_bytes() if path.is_file() else b""
        if secret.encode() in data:
            path.write_bytes(data.replace(secret.encode(), b"***"))


def is_here() -> bool:
    """Whether this computer has a program that makes such environments."""
    return subprocess.run(["sh", "-c", _FIND], capture_output=True, check=False).returncode != 9
