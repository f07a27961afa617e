"""The store's record of a deployed governor, and how to wake it.

A command that submits, stops or resumes a job wakes the governor by name, after the job's log was written. A person
needs no other permission: the governor switches its own schedule on, and decides.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

from stoker.model import codec, keys
from stoker.model.errors import (
    CodecError,
    ProviderError,
    StokerError,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    UserError,
)
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.grants import DeployedGrants
from stoker.store.base import Store


@dataclass(frozen=True)
class GovernorCloud:
    """The facts about the governors that can be deployed to one cloud."""

    # The module that wakes them: see `WakesGovernor`.
    module: str
    # Their name in pass records.
    governor: str
    # The cost at rest, as docs/serverless.md computes it: the slow tick, alarms, and the price of two clocks.
    monthly_cost: str
    # External training jobs are in this cloud.
    external_jobs: bool
    # The scheme of stores that its machines read.
    scheme: str
    # Events of machines stay in their region unless rules there forward them: `--events-from`.
    regional_events: bool


CLOUDS = {
    "aws": GovernorCloud(
        "stoker.deploy.aws", "aws-lambda", "about 50 cents", external_jobs=True, scheme="s3", regional_events=True
    ),
    "gcp": GovernorCloud(
        "stoker.deploy.gcp", "cloud-run", "about 30 cents", external_jobs=False, scheme="gs", regional_events=False
    ),
}
# The longest time between the call and the pass: a cold start takes seconds.
ANSWERS_WITHIN_S = 15.0
_POLL_S = 0.3


@dataclass(frozen=True)
class DeploymentRecord:
    """`deployed/<cloud>.json`. `door` is the function or topic that is called to wake the governor."""

    cloud: str
    name: str
    region: str
    door: str
    digest: str
    by: str
    # Other regions whose events are forwarded to it.
    elsewhere: tuple[str, ...] = ()
    # Regions that were given up, in which resources of it may still exist.
    leaving: tuple[str, ...] = ()
    project: str = ""
    # Grants beyond governing this store's jobs: external SageMaker jobs, and notification channels.
    sagemaker: bool = False
    notify: tuple[str, ...] = ()
    # Roles or service accounts that its machines may use, beside those of `stoker iam`.
    identities: tuple[str, ...] = ()
    # The account's own keys that encrypt its bucket, topics, secrets and volumes.
    keys: tuple[str, ...] = ()
    # The roles and machine types that clones of external jobs are limited to.
    clone_roles: tuple[str, ...] = ()
    clone_machines: tuple[str, ...] = ()
    # Mail addresses for alerts about the governor itself.
    alerts: tuple[str, ...] = ()
    # Only a governor that is "there" is relied on. In the other states, resources of it may exist in these regions.
    state: Literal["there", "making", "removing"] = "there"


class WakesGovernor(Protocol):
    """A module of `stoker.deploy` for one cloud."""

    def wake(self, deployed: DeploymentRecord, jobs: tuple[str, ...]) -> None:
        """Have the governor pass over these jobs at once, or over all. Raises StokerError where that fails."""


def wake_payload(jobs: tuple[str, ...]) -> dict[str, Any]:
    """The payload that wakes a governor, as `stoker.governor.serverless.events` reads it. No jobs means all of them."""
    return {"jobs": list(jobs)} if jobs else {"tick": True}


def write(store: Store, deployed: DeploymentRecord) -> None:
    store.put(keys.deployed(deployed.cloud), codec.dumps(deployed))


def read(store: Store, cloud: str) -> DeploymentRecord | None:
    """The deployment on one cloud; None where there is none, or this Stoker cannot read its record."""
    try:
        found = store.get(keys.deployed(cloud))
        return codec.loads(DeploymentRecord, found.data, where=keys.deployed(cloud)) if found is not None else None
    except (StoreUnavailable, StoreDenied):
        raise
    except (StoreError, CodecError):
        return None


def find(store: Store) -> DeploymentRecord | None:
    """The governor that is deployed for this store, if any. Reads buckets only: a folder has no deployed governor."""
    if store.is_local:
        return None
    named = sorted(meta.key for meta in store.list(keys.DEPLOYED) if meta.key.endswith(".json"))
    clouds = [key.removeprefix(keys.DEPLOYED).removesuffix(".json") for key in named]
    found = (read(store, cloud) for cloud in clouds if cloud in CLOUDS)
    return next((each for each in found if each is not None and each.state == "there"), None)


def record_before_change(wanted: DeploymentRecord, before: DeploymentRecord | None) -> DeploymentRecord:
    """The record to write before a deployment changes: everything that will exist, and everything that may exist
    already. An existing governor keeps running meanwhile."""
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


@contextmanager
def proving(store: Store, begun: DeploymentRecord, wanted: DeploymentRecord) -> Iterator[None]:
    """Write the record `wanted` once the block has proved that the governor works.

    Where it raises ProviderError, the record gets the state `making`, so that no client relies on this governor.
    """
    try:
        yield
    except ProviderError:
        write(store, replace(begun, state="making"))
        raise
    write(store, wanted)


def without_regions(deployed: DeploymentRecord, regions: Iterable[str]) -> DeploymentRecord:
    """The record without these regions, whatever may still exist there."""
    gone = set(regions)
    return replace(
        deployed,
        elsewhere=tuple(each for each in deployed.elsewhere if each not in gone),
        leaving=tuple(each for each in deployed.leaving if each not in gone),
    )


def last_pass(store: Store, cloud: str) -> str | None:
    """A value that changes with each pass of the governor in this cloud; None before the first."""
    found = store.head(keys.governor(CLOUDS[cloud].governor))
    return None if found is None else f"{found.modified} {found.etag}"


def has_passed(store: Store, cloud: str, before: str | None, within_s: float) -> bool:
    """Wait for a pass later than `before`. Returns False when there was none in this time. Raises StoreError."""
    until_s = time.monotonic() + within_s
    while last_pass(store, cloud) == before:
        if time.monotonic() >= until_s:
            return False
        time.sleep(_POLL_S)
    return True


def wake(store: Store, jobs: Iterable[str], *, within_s: float | None = None) -> DeploymentRecord | None:
    """Wake the store's deployed governor, for these jobs or for a whole tick. Returns None where there is none.

    With `within_s`, wait for its pass. Raises StokerError where it cannot be reached, or does not pass in time.
    """
    deployed = find(store)
    if deployed is None:
        return None
    before = last_pass(store, deployed.cloud) if within_s is not None else None
    cloud = cast("WakesGovernor", importlib.import_module(CLOUDS[deployed.cloud].module))
    try:
        cloud.wake(deployed, tuple(jobs))
    except StokerError as error:
        kind = UserError if isinstance(error, UserError) else StokerError
        raise kind(f"the governor {deployed.name} could not be woken: {error}") from error
    if within_s is not None and not has_passed(store, deployed.cloud, before, within_s):
        raise StokerError(
            f"the governor {deployed.name} in {deployed.region} was called and has done nothing for {within_s:.0f} s; "
            f"its log there shows why, and `stoker deploy {deployed.cloud}` deploys it again"
        )
    return deployed


def role_warning(deployed: DeploymentRecord, spec: Spec) -> str | None:
    """A warning about a role that the governor may not pass, so that every launch would fail; None if it may. Pure.

    A governor that launches a machine passes a role to it, and may pass only the roles of the deployment: those of
    `stoker iam` by default, others by an option.
    """
    try:
        iam = registry.iam(spec.resources.provider)
    except UserError:
        return None  # A provider without permissions, such as this computer.
    role = iam.machine_role(spec.resources)
    if role is None or role.cloud != deployed.cloud:
        return None
    granted = DeployedGrants(deployed.name, deployed.project, deployed.identities, deployed.sagemaker)
    refused = iam.refusal(role, granted)
    if refused is None:
        return None
    return (
        f"{role.field}: the governor {deployed.name} may not {refused.verb} {refused.name}, so its launches will fail; "
        f"`stoker deploy {deployed.cloud} {refused.option}` allows it"
    )
