"""Check a deployed governor: is it alive, when was its last pass, and are there undelivered events?

The store has the time of its last pass; the cloud has the state of its parts. A part that may not be read is unknown,
and proves nothing.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, cast

from stoker.governor import deployment_record
from stoker.governor.deployment_record import CLOUDS, DeploymentRecord
from stoker.governor.pass_record import governor_name
from stoker.model import keys
from stoker.model.errors import NotFound, ProviderError, UserError
from stoker.store.base import Store
from stoker.store.store_clock import read_clock

# The slow tick comes every 15 minutes, and a call may take 5.
ALIVE_S = 20 * 60
_MODULES = {"aws": "stoker.deploy.aws_status", "gcp": "stoker.deploy.gcp_status"}

State = Literal["good", "bad", "unknown"]


@dataclass(frozen=True)
class Check:
    """The state of one part of a deployment."""

    what: str
    state: State
    text: str


@dataclass(frozen=True)
class Health:
    """The state of a deployed governor. `passed_ago_s` is None if it never made a pass."""

    deployed: DeploymentRecord
    passed_ago_s: float | None
    checks: tuple[Check, ...]

    @property
    def alive(self) -> bool:
        """Return whether its last pass is as recent as the slow tick requires."""
        return self.passed_ago_s is not None and self.passed_ago_s <= ALIVE_S

    @property
    def well(self) -> bool:
        """Return whether no problem is known."""
        whole = self.deployed.state == "there"
        return whole and self.alive and not any(check.state == "bad" for check in self.checks)


class StatusModule(Protocol):
    """A module that knows the parts of a deployment on one cloud."""

    def check_parts(self, deployed: DeploymentRecord, store_url: str) -> tuple[Check, ...]:
        """Check each part. Raises no ProviderError."""


def check_deployments(store: Store) -> tuple[Health, ...]:
    """Check every governor that is deployed for this store. Raises StoreError."""
    if store.is_local:
        return ()
    found = [deployed for cloud in sorted(_MODULES) if (deployed := deployment_record.read(store, cloud)) is not None]
    if not found:
        return ()
    now = read_clock(store, governor_name(), time.monotonic).now()
    return tuple(_health(store, deployed, now) for deployed in found)


def _health(store: Store, deployed: DeploymentRecord, now: datetime) -> Health:
    passed = store.head(keys.governor(CLOUDS[deployed.cloud].governor))
    at = passed.modified if passed is not None else None
    cloud = cast("StatusModule", importlib.import_module(_MODULES[deployed.cloud]))
    ago_s = max(0.0, (now - at).total_seconds()) if at is not None else None
    return Health(deployed, ago_s, cloud.check_parts(deployed, store.url))


def checked(what: str, ask: Callable[[], tuple[State, str]]) -> Check:
    """Check one part. `ask` calls the cloud."""
    try:
        state, text = ask()
    except NotFound:
        return Check(what, "bad", "is not there; deploy again")
    except (ProviderError, UserError) as error:
        return Check(what, "unknown", f"cannot be looked at: {error}")
    return Check(what, state, text)


def clock_text(on: bool) -> tuple[State, str]:
    """The state of the one-minute clock, which is off while no job is active."""
    return "good", "on: there are jobs to govern" if on else "off: no job is active"


def net_text(on: bool) -> tuple[State, str]:
    """The state of the slow clock, which must never be off."""
    return ("good", "on, every 15 minutes") if on else ("bad", "off: lost events are lost; deploy again")


def waiting_text(number: int, where: str) -> tuple[State, str]:
    """The state of the queue of undelivered events."""
    if not number:
        return "good", "none"
    return "bad", f"{number} in {where}; the ticks have looked at every job since"
