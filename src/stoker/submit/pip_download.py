"""Download wheels for other machines with pip, and cache files under the home."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stoker.model.errors import UserError
from stoker.store.home import make_home

# The names of architectures in the tags of wheels.
WHEEL_ARCHITECTURES = {"x86_64": "x86_64", "arm64": "aarch64"}
_LIMIT_S = 180


def local_architecture() -> str:
    """The processor architecture of this computer: `x86_64` or `arm64`."""
    return "arm64" if platform.machine() in ("aarch64", "arm64") else platform.machine()


def download_wheel(
    requirement: str, arch: str, platforms: Sequence[str], folder: Path, options: Sequence[str] = ()
) -> str:
    """Download the wheel of a requirement for Linux machines of this architecture into the folder.

    `platforms` are names such as `manylinux_2_28`. pip compares them to the letter, so every name that the wheel may
    have is needed. Returns pip's error message, or an empty text.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--retries=1", *options]
    command += [f"--platform={name}_{WHEEL_ARCHITECTURES[arch]}" for name in platforms]
    command += [f"--dest={folder}", requirement]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()
    return lines[-1].removeprefix("ERROR: ") if ran.returncode and lines else ""


def write_cached(path: Path, data: bytes) -> None:
    """Write a file below the home atomically. Raises UserError where the folder cannot be written."""
    make_home()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(draft).replace(path)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be written: {error}; set STOKER_HOME to a folder of yours") from None
