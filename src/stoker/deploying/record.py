"""The store's word that a governor is deployed, and waking it.

Whoever submits, stops or resumes a job calls it by name, once the job's log says so. That is all a person needs to be
allowed: the governor switches its own clock on, and decides.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

from stoker import codec, layout
from stoker.errors import CodecError, StokerError, UserError
from stoker.store import Store

# By cloud, what wakes a governor there.
_CLOUDS = {"aws": "stoker.deploying.aws", "gcp": "stoker.deploying.gcp"}


@dataclass(frozen=True)
class Deployed:
    """`deployed/<cloud>.json`. `door` is what is called to wake it: a function, or a topic."""

    cloud: str
    name: str
    region: str
    door: str
    digest: str
    by: str
    # Other regions whose events are passed on to it.
    elsewhere: tuple[str, ...] = ()
    project: str = ""


class Cloud(Protocol):
    """A module that knows one cloud's deployments."""

    def wake(self, deployed: Deployed, jobs: tuple[str, ...]) -> None:
        """Have the governor look at these jobs at once. Raises StokerError where it cannot be reached."""


def write(store: Store, deployed: Deployed) -> None:
    store.put(layout.deployed(deployed.cloud), codec.dumps(deployed))


def read(store: Store, cloud: str) -> Deployed | None:
    """The deployment on one cloud; None where there is none, or what is written of it makes no sense here."""
    found = store.get(layout.deployed(cloud))
    if found is None:
        return None
    try:
        return codec.loads(Deployed, found.data, where=layout.deployed(cloud))
    except CodecError:
        return None


def find(store: Store) -> Deployed | None:
    """The governor that is deployed for this store, if any. Asks a bucket only: nobody deploys for a folder."""
    if store.near:
        return None
    named = sorted(meta.key for meta in store.list(layout.DEPLOYED) if meta.key.endswith(".json"))
    clouds = [key.removeprefix(layout.DEPLOYED).removesuffix(".json") for key in named]
    found = (read(store, cloud) for cloud in clouds if cloud in _CLOUDS)
    return next((each for each in found if each is not None), None)


def wake(store: Store, jobs: Iterable[str]) -> Deployed | None:
    """Wake the store's deployed governor; None where there is none. Raises StokerError where it cannot be reached."""
    deployed = find(store)
    if deployed is None:
        return None
    cloud = cast("Cloud", importlib.import_module(_CLOUDS[deployed.cloud]))
    try:
        cloud.wake(deployed, tuple(jobs))
    except StokerError as error:
        kind = UserError if isinstance(error, UserError) else StokerError
        raise kind(f"the governor {deployed.name} could not be woken: {error}") from error
    return deployed
