"""The store's word that a governor is deployed, and waking it.

Whoever submits, stops or resumes a job calls it by name, once the job's log says so. That is all a person needs to be
allowed: the governor switches its own clock on, and decides.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

from stoker.model import codec, keys
from stoker.model.errors import CodecError, StokerError, UserError
from stoker.store.base import Store

# By cloud, what wakes a governor there, and how it signs its passes.
_CLOUDS = {"aws": "stoker.deploy.aws", "gcp": "stoker.deploy.gcp"}
SIGNS = {"aws": "aws-lambda", "gcp": "cloud-run"}
# Between the call and its pass: a cold start takes seconds.
ANSWERS_WITHIN_S = 15.0
_LOOK_EVERY_S = 0.3


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
    # Regions that were given up, in which something of it may still be.
    leaving: tuple[str, ...] = ()
    project: str = ""
    # What it may do beside governing this store's jobs.
    sagemaker: bool = False
    notify: tuple[str, ...] = ()
    # What its machines may be, beside those of `stoker iam`: roles, or service accounts.
    identities: tuple[str, ...] = ()
    # Keys of the account's own, with which its bucket, topics, secrets and volumes are encrypted.
    keys: tuple[str, ...] = ()
    # Addresses that are mailed when it is in trouble.
    alerts: tuple[str, ...] = ()
    # Only one that is there is relied on. Of the others something may be there, in the regions that are named.
    state: Literal["there", "making", "removing"] = "there"


class Cloud(Protocol):
    """A module that knows one cloud's deployments."""

    def wake(self, deployed: Deployed, jobs: tuple[str, ...]) -> None:
        """Have the governor look at these jobs at once, or at everything. Raises StokerError where it cannot be
        reached."""


def asked(jobs: tuple[str, ...]) -> dict[str, Any]:
    """What is said to a governor, in the words of `stoker.governor.serverless.events`: no jobs are all of them."""
    return {"jobs": list(jobs)} if jobs else {"tick": True}


def write(store: Store, deployed: Deployed) -> None:
    store.put(keys.deployed(deployed.cloud), codec.dumps(deployed))


def read(store: Store, cloud: str) -> Deployed | None:
    """The deployment on one cloud; None where there is none, or what is written of it makes no sense here."""
    found = store.get(keys.deployed(cloud))
    if found is None:
        return None
    try:
        return codec.loads(Deployed, found.data, where=keys.deployed(cloud))
    except CodecError:
        return None


def find(store: Store) -> Deployed | None:
    """The governor that is deployed for this store, if any. Asks a bucket only: nobody deploys for a folder."""
    if store.near:
        return None
    named = sorted(meta.key for meta in store.list(keys.DEPLOYED) if meta.key.endswith(".json"))
    clouds = [key.removeprefix(keys.DEPLOYED).removesuffix(".json") for key in named]
    found = (read(store, cloud) for cloud in clouds if cloud in _CLOUDS)
    return next((each for each in found if each is not None and each.state == "there"), None)


def begun(wanted: Deployed, before: Deployed | None) -> Deployed:
    """What to write before anything is made: all that is to be, and all that may be there already. A governor that is
    there goes on while it is changed."""
    if before is None:
        return replace(wanted, state="making")
    known = dict.fromkeys((*before.elsewhere, *before.leaving, before.region))
    return replace(
        wanted,
        leaving=tuple(each for each in known if each != wanted.region and each not in wanted.elsewhere),
        sagemaker=wanted.sagemaker or before.sagemaker,
        notify=tuple(dict.fromkeys((*wanted.notify, *before.notify))),
        identities=tuple(dict.fromkeys((*wanted.identities, *before.identities))),
        keys=tuple(dict.fromkeys((*wanted.keys, *before.keys))),
        alerts=tuple(dict.fromkeys((*wanted.alerts, *before.alerts))),
        state="there" if before.state == "there" else "making",
    )


def forgetting(deployed: Deployed, regions: Iterable[str]) -> Deployed:
    """Without regions that nobody will look at again, whatever may be there."""
    gone = set(regions)
    return replace(
        deployed,
        elsewhere=tuple(each for each in deployed.elsewhere if each not in gone),
        leaving=tuple(each for each in deployed.leaving if each not in gone),
    )


def last_pass(store: Store, cloud: str) -> str | None:
    """What is another one after each pass of the governor in this cloud; None before the first."""
    found = store.head(keys.governor(SIGNS[cloud]))
    return None if found is None else f"{found.modified} {found.etag}"


def has_passed(store: Store, cloud: str, before: str | None, within_s: float) -> bool:
    """Wait for a pass later than `before`. False: there was none in this time. Raises StoreError."""
    until_s = time.monotonic() + within_s
    while last_pass(store, cloud) == before:
        if time.monotonic() >= until_s:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def wake(store: Store, jobs: Iterable[str], *, within_s: float | None = None) -> Deployed | None:
    """Wake the store's deployed governor, for these jobs or for a whole tick; None where there is none.

    With `within_s`, see that it does pass. Raises StokerError where it cannot be reached, or does not.
    """
    deployed = find(store)
    if deployed is None:
        return None
    before = last_pass(store, deployed.cloud) if within_s is not None else None
    cloud = cast("Cloud", importlib.import_module(_CLOUDS[deployed.cloud]))
    try:
        cloud.wake(deployed, tuple(jobs))
    except StokerError as error:
        kind = UserError if isinstance(error, UserError) else StokerError
        raise kind(f"the governor {deployed.name} could not be woken: {error}") from error
    if within_s is not None and not has_passed(store, deployed.cloud, before, within_s):
        raise StokerError(
            f"the governor {deployed.name} in {deployed.region} was called and has done nothing for {within_s:.0f} s; "
            f"its log there tells why, and `stoker deploy {deployed.cloud}` puts it up anew"
        )
    return deployed
