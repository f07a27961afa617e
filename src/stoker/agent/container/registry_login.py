"""Registries of images, and their passwords.

A password is passed in the engine's own file format, in a private folder in memory: not on a command line, and not in
the files of the user's own `docker login`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stoker.model.errors import SetupFailed

DOCKER_HUB = "docker.io"
# Docker stores the login of Docker Hub under this name.
_HUB_KEY = "https://index.docker.io/v1/"
_ECR = re.compile(r"\d{12}\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.aws)")
_GOOGLE = re.compile(r"(?:[a-z0-9-]+-docker\.pkg\.dev|(?:[a-z]+\.)?gcr\.io)")


@dataclass(frozen=True)
class RegistryLogin:
    """The login for one registry."""

    registry: str
    user: str
    password: str = field(repr=False)


def registry_of(image: str) -> str:
    """Return the registry in an image's name. A first part without a dot or a port belongs to the name."""
    first, slash, _ = image.partition("/")
    return first if slash and (set(first) & {".", ":"} or first == "localhost") else DOCKER_HUB


def reference_of(registry: str) -> str | None:
    """Return the secret reference for the registry's password by this machine's identity; None if it has none."""
    if found := _ECR.fullmatch(registry):
        return f"aws-ecr:{found['region']}"
    return "gcp-token" if _GOOGLE.fullmatch(registry) else None


def make_login(registry: str, secret: str, fieldname: str) -> RegistryLogin:
    """Build a login from `user:password`, or from a password if the registry prescribes the user.

    Raises SetupFailed.
    """
    user, colon, password = secret.partition(":")
    if _ECR.fullmatch(registry):
        return RegistryLogin(registry, "AWS", secret)
    if _GOOGLE.fullmatch(registry) and not (colon and user in ("oauth2accesstoken", "_json_key", "_json_key_base64")):
        return RegistryLogin(registry, "oauth2accesstoken", secret)
    if not (user and password):
        raise SetupFailed(f"{fieldname}: the secret has to be `user:password` for {registry}", user=True)
    return RegistryLogin(registry, user, password)


def has_login(registry: str, environ: Mapping[str, str]) -> bool:
    """Tell if the agent's user has logged in to the registry already, or has a credential helper for it."""
    for file in _config_files(environ):
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        names = {*config.get("auths", {}), *config.get("credHelpers", {})}
        if config.get("credsStore") or names & {registry, f"https://{registry}", *_hub_names(registry)}:
            return True
    return False


@contextmanager
def login_folder(login: RegistryLogin, folder: Path) -> Iterator[Path]:
    """Provide the engine's configuration with this login, which is deleted at the end of the block."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        token = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        names = _hub_names(login.registry) or [login.registry]
        file = folder / "config.json"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as config:
            json.dump({"auths": {name: {"auth": token} for name in names}}, config)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def private_folder(environ: Mapping[str, str]) -> Path:
    """Return a folder in memory that this user may write to. Raises SetupFailed if there is none."""
    for place in (environ.get("XDG_RUNTIME_DIR"), "/dev/shm", "/run"):
        if place and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    raise SetupFailed(
        "environment.container: neither /dev/shm nor /run is writable, so there is no safe place for a password",
        user=False,
    )


def _hub_names(registry: str) -> list[str]:
    return [_HUB_KEY, DOCKER_HUB] if registry == DOCKER_HUB else []


def _config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    home = environ.get("HOME")
    folder = environ.get("DOCKER_CONFIG") or (f"{home}/.docker" if home else None)
    runtime = environ.get("XDG_RUNTIME_DIR")
    names = (environ.get("REGISTRY_AUTH_FILE"), folder and f"{folder}/config.json")
    yield from (Path(name) for name in (*names, runtime and f"{runtime}/containers/auth.json") if name)
