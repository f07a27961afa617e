"""Where Python packages come from: a private index with its password, or wheels that were gathered at submission.

A password goes into the environment of what installs, and nowhere else: not into arguments, which everybody on the
machine can read, nor into files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from stoker.agent.node import Ask
from stoker.model import keys
from stoker.model.errors import SetupFailed
from stoker.model.package_sources import read_address, user_of
from stoker.model.spec import PackageIndex, Wheel, wheels_target
from stoker.store.base import Store
from stoker.store.parallel import run_all
from stoker.store.safe_extraction import Extraction

# Reads the secret at a reference, for the field of this name. Raises SetupFailed.
Fetch = Callable[[str, str], str]

_FIELD = "environment.index.secret"
# By this name uv finds the variables that hold who asks, and the password.
_NAME = "STOKER"
_WORKERS = 8


@dataclass(frozen=True)
class Index:
    """What uv is told about it: options, variables, and variables that nobody else may see."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


class Source(Protocol):
    """Something that packages come from, opened only where they are needed."""

    @property
    def identity(self) -> str:
        """What it is, without a password: where packages came from is part of what an environment is."""

    @property
    def pins(self) -> tuple[str, ...]:
        """What the job's requirements come to, as `name==version`, where that is known already."""

    def open(self) -> Index:
        """Raises SetupFailed, and whatever tells this node to go. May be repeated."""

    def close(self) -> None:
        """Nothing of it is left on the disk. Repeating is harmless."""


class PrivateIndex:
    """An index instead of PyPI."""

    pins: tuple[str, ...] = ()

    def __init__(self, index: PackageIndex, fetch: Fetch) -> None:
        self._index = index
        self._address = read_address(index.url)
        self._fetch = fetch

    @property
    def identity(self) -> str:
        return self._address.url

    def open(self) -> Index:
        """For uv. The secret is fetched now: tokens expire."""
        user, password = self._credentials()
        env = {"UV_DEFAULT_INDEX": f"{_NAME.lower()}={self._address.url}"}
        if user is not None:
            env[f"UV_INDEX_{_NAME}_USERNAME"] = user
        return Index((), env, {} if password is None else {f"UV_INDEX_{_NAME}_PASSWORD": password})

    def for_commands(self) -> Index:
        """For commands of the user's own, which may run pip as well as uv."""
        opened = self.open()
        user, password = (
            opened.env.get(f"UV_INDEX_{_NAME}_USERNAME"),
            opened.secrets.get(f"UV_INDEX_{_NAME}_PASSWORD"),
        )
        scheme, _, place = self._address.url.partition("://")
        who = "" if user is None else quote(user, safe="")
        if password is None:
            return Index((), {**opened.env, "PIP_INDEX_URL": f"{scheme}://{who}@{place}" if who else self.identity})
        address = f"{scheme}://{who}:{quote(password, safe='')}@{place}"
        return Index((), opened.env, {**opened.secrets, "PIP_INDEX_URL": address})

    def close(self) -> None:
        """It leaves nothing."""

    def _credentials(self) -> tuple[str | None, str | None]:
        if self._index.secret is None:
            return self._address.user, None
        return user_of(self._index, self._address), self._fetch(_FIELD, self._index.secret)


class PackedWheels:
    """Wheels that were gathered at submission, from the store alone. No index is asked, and no network but the store's.

    `folder` is where they lie while they are needed.
    """

    def __init__(self, store: Store, wheels: Sequence[Wheel], folder: Path, ask: Ask) -> None:
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

    def open(self) -> Index:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ask(lambda: run_all([partial(self._bring, wheel) for wheel in self._wheels], _WORKERS))
        # UV_FIND_LINKS: what this computer's owner keeps elsewhere does not count.
        return Index(("--offline", "--no-index", "--find-links", str(self._folder)), {"UV_FIND_LINKS": ""})

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _bring(self, wheel: Wheel) -> None:
        if "/" in wheel.name:
            raise SetupFailed(f"environment.wheels: {wheel.name!r} is no name of a wheel", user=True)
        if (self._folder / wheel.name).exists():
            return
        with Extraction(self._folder, follow=False) as extraction, extraction.staging() as staging:
            with staging.new_file("0") as file:
                stored = keys.wheel(keys.shared_name(wheel.digest, wheel.generation))
                found = self._store.get_file(stored, file)
            if found is None:
                raise SetupFailed(f"{wheel.name} is not in the store any more; submit the job again", user=False)
            if found != wheel.digest:
                raise SetupFailed(
                    f"{wheel.name} in the store is not what was submitted; submit the job again", user=False
                )
            staging.place("0", wheel.name)


def choose_wheels(packed: Mapping[str, tuple[Wheel, ...]], version: str, arch: str) -> tuple[Wheel, ...]:
    """Those for this Python and processor. Raises SetupFailed where none were gathered for it."""
    target = wheels_target(version, arch)
    if target not in packed:
        there = ", ".join(sorted(packed))
        raise SetupFailed(
            f"environment.wheels: they were gathered for {there}, and this machine has {target}; set "
            f"environment.python to the version that the image has, and submit the job again",
            user=True,
        )
    return packed[target]
