"""Sources of Python packages: a private index with its password, or wheels that were packed at submission.

A password is passed only in the environment of the installer: never in arguments, which every user of the machine can
read, nor in files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from stoker.agent.node import AskStore
from stoker.model import keys
from stoker.model.errors import SetupFailed
from stoker.model.package_sources import read_address, user_name
from stoker.model.spec import PackageIndex
from stoker.model.submission import Wheel, wheels_target
from stoker.store.base import Store
from stoker.store.parallel import run_all
from stoker.store.safe_extraction import Extraction

# Fetches the secret at a reference, for the field of this name. Raises SetupFailed.
FetchSecret = Callable[[str, str], str]

_FIELD = "environment.index.secret"
# uv derives the names of the user and password variables from this index name.
_NAME = "STOKER"
_WORKERS = 8


@dataclass(frozen=True)
class IndexOptions:
    """How uv is pointed to a source: options, variables, and variables whose values are secret."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


class PackageSource(Protocol):
    """A source of packages, opened only when packages are needed."""

    @property
    def identity(self) -> str:
        """Identifies the source, without its password: the source of the packages is part of an environment's key."""

    @property
    def pins(self) -> tuple[str, ...]:
        """The resolved requirements of the job as `name==version`, if they are known already."""

    def open(self) -> IndexOptions:
        """Make the source ready.

        May be repeated. Raises SetupFailed, and whatever `ask` raises to end this node's work.
        """

    def close(self) -> None:
        """Remove what `open` left on the disk. Repeating is harmless."""


class PrivateIndex:
    """An index that is used instead of PyPI."""

    pins: tuple[str, ...] = ()

    def __init__(self, index: PackageIndex, fetch: FetchSecret) -> None:
        self._index = index
        self._address = read_address(index.url)
        self._fetch = fetch

    @property
    def identity(self) -> str:
        return self._address.url

    def open(self) -> IndexOptions:
        """Return the options for uv. The secret is fetched now, because tokens expire."""
        user, password = self._credentials()
        env = {"UV_DEFAULT_INDEX": f"{_NAME.lower()}={self._address.url}"}
        if user is not None:
            env[f"UV_INDEX_{_NAME}_USERNAME"] = user
        return IndexOptions((), env, {} if password is None else {f"UV_INDEX_{_NAME}_PASSWORD": password})

    def for_commands(self) -> IndexOptions:
        """Return the options for commands of the user, which may run pip as well as uv."""
        opened = self.open()
        user, password = (
            opened.env.get(f"UV_INDEX_{_NAME}_USERNAME"),
            opened.secrets.get(f"UV_INDEX_{_NAME}_PASSWORD"),
        )
        scheme, _, host = self._address.url.partition("://")
        login = "" if user is None else quote(user, safe="")
        if password is None:
            return IndexOptions(
                (), {**opened.env, "PIP_INDEX_URL": f"{scheme}://{login}@{host}" if login else self.identity}
            )
        address = f"{scheme}://{login}:{quote(password, safe='')}@{host}"
        return IndexOptions((), opened.env, {**opened.secrets, "PIP_INDEX_URL": address})

    def close(self) -> None:
        """Do nothing: an index leaves nothing on the disk."""

    def _credentials(self) -> tuple[str | None, str | None]:
        if self._index.secret is None:
            return self._address.user, None
        return user_name(self._index, self._address), self._fetch(_FIELD, self._index.secret)


class PackedWheels:
    """Wheels that were packed at submission, fetched from the store.

    Installing them needs no index, and no network beyond the store. `folder` holds the wheels while they are needed.
    """

    def __init__(self, store: Store, wheels: Sequence[Wheel], folder: Path, ask: AskStore) -> None:
        self._store = store
        self._wheels = wheels
        self._folder = folder
        self._ask = ask

    @property
    def identity(self) -> str:
        return "wheels " + " ".join(sorted(wheel.digest for wheel in self._wheels))

    @property
    def pins(self) -> tuple[str, ...]:
        return tuple(f"{wheel.project}=={wheel.version}" for wheel in self._wheels)

    def open(self) -> IndexOptions:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ask(lambda: run_all([partial(self._fetch_wheel, wheel) for wheel in self._wheels], _WORKERS))
        # An empty UV_FIND_LINKS overrides the one that this computer's owner may have set.
        return IndexOptions(("--offline", "--no-index", "--find-links", str(self._folder)), {"UV_FIND_LINKS": ""})

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _fetch_wheel(self, wheel: Wheel) -> None:
        if "/" in wheel.name:
            raise SetupFailed(f"environment.wheels: {wheel.name!r} is not the name of a wheel", user=True)
        if (self._folder / wheel.name).exists():
            return
        with Extraction(self._folder, follow=False) as extraction, extraction.staging() as staging:
            with staging.new_file("0") as file:
                stored = keys.wheel(keys.shared_name(wheel.digest, wheel.generation))
                found = self._store.get_file(stored, file)
            if found is None:
                raise SetupFailed(f"{wheel.name} is no longer in the store; submit the job again", user=False)
            if found != wheel.digest:
                raise SetupFailed(
                    f"{wheel.name} in the store is not what was submitted; submit the job again", user=False
                )
            staging.place("0", wheel.name)


def choose_wheels(packed: Mapping[str, tuple[Wheel, ...]], version: str, arch: str) -> tuple[Wheel, ...]:
    """Return the wheels for this Python and processor. Raises SetupFailed if none were packed for them."""
    target = wheels_target(version, arch)
    if target not in packed:
        there = ", ".join(sorted(packed))
        raise SetupFailed(
            f"environment.wheels: the wheels were packed for {there}, and this machine has {target}; set "
            f"environment.python to the version that the image has, and submit the job again",
            user=True,
        )
    return packed[target]
