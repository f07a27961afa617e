"""Build a conda environment from a file in its own prefix, with the conda, mamba or micromamba that is installed.

A channel's password is only in the environment variables of that program. The settings file refers to the variables.
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

from stoker.agent.confinement import read_plain
from stoker.agent.environment import cpu_level
from stoker.agent.environment.build import EnvironmentBuilder, Recipe
from stoker.agent.environment.package_sources import FetchSecret, PrivateIndex
from stoker.agent.environment.python import MakeCommand
from stoker.agent.environment.read_requirements import any_local
from stoker.agent.environment.steps import Step
from stoker.agent.environment.uv import write_lines
from stoker.agent.environment.variables import CONDA_FILES
from stoker.agent.runtime import Command
from stoker.model.errors import SetupFailed
from stoker.model.package_sources import read_address, user_name
from stoker.store.safe_extraction import Extraction

_FIELD = "environment.conda"
_RECIPE = 1
_REMEDY = "it is cached, so the next start on another machine is quick; pin versions"
_MARK = "stoker-conda"
# Far more than the list of a package's files, or the history of an environment.
_MAX_META_BYTES = 256 * 1024 * 1024

# Exits with 9 when there is no such program. The quickest program comes first.
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

# The `channels` entry of an environment file, up to the next key at the beginning of a line.
_CHANNELS = re.compile(r"^channels[ \t]*:[^\n]*\n(?:(?:[ \t]+|-|#)[^\n]*\n|[ \t]*\n)*", re.MULTILINE)
# These entries do not affect the installation, and `conda env export` writes the old location into them.
_LABELS = re.compile(r"^(?:name|prefix)[ \t]*:[^\n]*$", re.MULTILINE)


@dataclass(frozen=True)
class CondaProgram:
    """The installed conda, mamba or micromamba, as it reports itself."""

    path: str
    version: str
    platform: str
    # PATH where the training runs.
    search: str

    @property
    def micro(self) -> bool:
        return os.path.basename(self.path).startswith("micromamba")  # noqa: PTH119


@dataclass(frozen=True)
class CondaEnvironment:
    """The environment variables that select the environment, and its Python if it has one."""

    environ: dict[str, str]
    python: str | None


class Conda:
    """Set up the conda environment of one node. `command` builds commands that see what the training will see."""

    def __init__(self, builder: EnvironmentBuilder, command: MakeCommand, fetch: FetchSecret) -> None:
        self._builder = builder
        self._node = builder.node
        self._environment = builder.submission.spec.environment
        self._steps = builder.steps
        self._command = command
        self._fetch = fetch

    def make(self) -> CondaEnvironment:
        """Return the complete environment. Raises SetupFailed, and whatever `check` raises to end this node's work."""
        name = self._environment.conda
        assert name is not None
        file = self._node.paths.code / name
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SetupFailed(f"{_FIELD}: {name} cannot be read: {error}", user=True) from None
        program = self._find()
        key = self._key(name, text, program)
        prefix = self._builder.get_or_build(
            Recipe(name, key, program.platform, self._runs, partial(self._build, file, program))
        )
        python = prefix / "bin" / "python"
        path = os.pathsep.join(part for part in (f"{prefix}/bin", program.search) if part)
        environ = {"PATH": path, "CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": str(prefix)}
        return CondaEnvironment(environ, str(python) if python.exists() else None)

    def _find(self) -> CondaProgram:
        answer = self._steps.capture(_FIELD, self._command(("sh", "-c", _FIND)))
        if answer.code == 9:
            raise SetupFailed(
                f"{_FIELD}: there is no conda, mamba or micromamba on this machine; choose an image that has one, or "
                "use environment.requirements",
                user=True,
            )
        lines = (line.split(" ", 2) for line in answer.text.splitlines() if line.startswith(f"{_MARK} "))
        answers = {line[1]: line[2].strip() if len(line) > 2 else "" for line in lines}
        if "program" not in answers or not answers.get("version"):
            last = answer.text.strip().splitlines()[-1:] or ["it printed nothing"]
            raise SetupFailed(f"{_FIELD}: {answers.get('program', 'conda')} does not run here: {last[0]}", user=True)
        kind = f"{answers.get('platform', '')} {cpu_level.level()}"
        return CondaProgram(answers["program"], answers["version"], kind, answers.get("search", ""))

    def _key(self, name: str, text: str, program: CondaProgram) -> str:
        channel, index = self._environment.conda_channel, self._environment.index
        facts = {
            "recipe": f"conda {_RECIPE}",
            "name": name,
            "text": text,
            "program": (program.path, program.version),
            "platform": program.platform,
            "channel": read_address(channel.url).url if channel is not None else None,
            "index": read_address(index.url).url if index is not None else None,
        }
        uses_code = may_install_code(text, (self._node.paths.code / name).parent)
        return self._builder.key(facts, self._command((program.path,)), CONDA_FILES, uses_code=uses_code)

    def _runs(self, prefix: Path) -> bool:
        python = prefix / "bin" / "python"
        if not python.exists():
            return (prefix / "conda-meta").is_dir()
        try:
            return self._steps.capture(_FIELD, self._command((str(python), "-I", "-c", ""))).code == 0
        except SetupFailed:
            return False  # It cannot even be started: the environment is built again.

    def _build(self, file: Path, program: CondaProgram, prefix: Path) -> None:
        self._node.say(f"{self._environment.conda}: building an environment with {program.path} ({program.version})")
        # A folder that commands in a container may write to.
        scratch = self._node.paths.environments / ".conda"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o755, parents=True)
        copy = file.with_name(f".stoker-{file.name}")
        try:
            command, private = self._create_command(file, copy, program, prefix, scratch)
            name = str(self._environment.conda)
            # conda refuses a prefix that exists.
            undo = partial(shutil.rmtree, prefix, ignore_errors=True)
            self._steps.run(Step(name, command, _REMEDY, f"{_FIELD}: {name} cannot be installed", undo))
            for value in private:
                erase_password(prefix, value)
        finally:
            copy.unlink(missing_ok=True)
            shutil.rmtree(scratch, ignore_errors=True)

    def _create_command(
        self, file: Path, copy: Path, program: CondaProgram, prefix: Path, scratch: Path
    ) -> tuple[Command, tuple[str, ...]]:
        """Return the command that creates the environment, and the values that must be erased from it afterwards."""
        env = {"CONDA_ALWAYS_YES": "true", "MAMBA_ALWAYS_YES": "true", "PIP_NO_INPUT": "1", "NO_COLOR": "1"}
        secrets: dict[str, str] = {}
        if self._environment.index is not None:
            index = PrivateIndex(self._environment.index, self._fetch).for_commands()
            env |= index.env
            secrets |= index.secrets
        settings: tuple[str, ...] = ()
        channel = self._environment.conda_channel
        if channel is not None:
            address = read_address(channel.url)
            url = address.url
            if channel.secret is not None:
                password = self._fetch("environment.conda_channel.secret", channel.secret)
                env["STOKER_CONDA_USER"] = quote(user_name(channel, address), safe="")
                secrets["STOKER_CONDA_PASSWORD"] = quote(password, safe="")
                url = url.replace("://", "://${STOKER_CONDA_USER}:${STOKER_CONDA_PASSWORD}@", 1)
                # Unpacked packages record their URL with the password, so they go to a folder that is deleted.
                env["CONDA_PKGS_DIRS"] = str(scratch / "pkgs")
            condarc = scratch / "condarc"
            write_lines(condarc, ["channels: #!final", f"  - {url}", "default_channels: #!final", f"  - {url}"])
            # The copy is beside the original, because its file references are relative to its folder.
            with Extraction(copy.parent) as folder:
                folder.write(copy.name, without_channels(file.read_text(encoding="utf-8")).encode())
            file = copy
            env["CONDARC"] = str(condarc)
            settings = ("--rc-file", str(condarc)) if program.micro else ()
        create = ("create", "--yes") if program.micro else ("env", "create")
        argv = (program.path, *create, *settings, "--quiet", "--file", str(file), "--prefix", str(prefix))
        base = self._command(argv)
        command = replace(base, env={**base.env, **env}, secrets={**base.secrets, **secrets}, cwd=file.parent)
        return command, tuple(secrets.values())


def may_install_code(text: str, folder: Path) -> bool:
    """Tell if an environment file may install parts of the code, as its pip section can. In doubt it does."""
    words = re.split(r"[\s,\[\]{}'\"]+", _LABELS.sub("", re.sub(r"(^|\s)#.*$", "", text, flags=re.MULTILINE)))
    return any_local([word for word in words if word.strip("-")], folder)


def without_channels(text: str) -> str:
    """Return the text of an environment file without its channels."""
    return _CHANNELS.sub("", text if text.endswith("\n") else f"{text}\n")


def erase_password(prefix: Path, secret: str) -> None:
    """Erase a password from the package sources that conda records in the environment."""
    folder = prefix / "conda-meta"
    for path in folder.glob("*"):
        data = read_plain(path, _MAX_META_BYTES) if path.is_file() and not path.is_symlink() else b""
        if secret.encode() in data:
            with Extraction(folder, follow=False) as meta:
                meta.write(path.name, data.replace(secret.encode(), b"***"))


def is_installed() -> bool:
    """Tell if this computer has conda, mamba or micromamba."""
    return subprocess.run(["sh", "-c", _FIND], capture_output=True, check=False).returncode != 9
