"""Look after a deployed governor: is it alive, when did it pass last, and does anything wait that it never got?

The store tells when it passed; the cloud tells of its parts. A part that may not be looked at is unknown, and no proof
of anything.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, cast

from stoker.governor import deployment_record
from stoker.governor.deployment_record import SIGNS, Deployed
from stoker.governor.store_clock import governor_name, read_clock
from stoker.model import keys
from stoker.model.errors import NotFound, ProviderError, UserError
from stoker.store.base import Store

# The slow tick comes every 15 minutes, and a call may take 5.
ALIVE_S = 20 * 60
_CLOUDS = {"aws": "stoker.deploy.aws_status", "gcp": "stoker.deploy.gcp_status"}

State = Literal["good", "bad", "unknown"]


@dataclass(frozen=True)
class Check:
    """One part of a deployment, and how it is."""

    what: str
    state: State
    text: str


@dataclass(frozen=True)
class Health:
    """A deployed governor. `passed_at` is by the store's clock; None: it never passed."""

    deployed: Deployed
    passed_at: datetime | None
    passed_ago_s: float | None
    checks: tuple[Check, ...]

    @property
    def alive(self) -> bool:
        """Whether it passed as lately as the slow tick has it."""
        return self.passed_ago_s is not None and self.passed_ago_s <= ALIVE_S

    @property
    def well(self) -> bool:
        """Whether nothing is known to be wrong with it."""
        whole = self.deployed.state == "there"
        return whole and self.alive and not any(check.state == "bad" for check in self.checks)


class Cloud(Protocol):
    """A module that knows the parts of a deployment on one cloud."""

    def look(self, deployed: Deployed, store_url: str) -> tuple[Check, ...]:
        """How each of them is. Raises nothing of the cloud's."""


def look(store: Store) -> tuple[Health, ...]:
    """Every governor that is deployed for this store. Raises StoreError."""
    if store.near:
        return ()
    found = [deployed for cloud in sorted(_CLOUDS) if (deployed := deployment_record.read(store, cloud)) is not None]
    if not found:
        return ()
    now = read_clock(store, governor_name(), time.monotonic).now()
    return tuple(_health(store, deployed, now) for deployed in found)


def _health(store: Store, deployed: Deployed, now: datetime) -> Health:
    passed = store.head(keys.governor(SIGNS[deployed.cloud]))
    at = passed.modified if passed is not None else None
    cloud = cast("Cloud", importlib.import_module(_CLOUDS[deployed.cloud]))
    ago_s = max(0.0, (now - at).total_seconds()) if at is not None else None
    return Health(deployed, at, ago_s, cloud.look(deployed, store.url))


def checked(what: str, ask: Callable[[], tuple[State, str]]) -> Check:
    """Ask the cloud about one part."""
    try:
        state, text = ask()
    except NotFound:
        return Check(what, "bad", "is not there; deploy again")
    except (ProviderError, UserError) as error:
        return Check(what, "unknown", f"cannot be looked at: {error}")
    return Check(what, state, text)


def clock_text(on: bool) -> tuple[State, str]:
    """The clock of one minute is off while no job is active."""
    return "good", "on: there are jobs to govern" if on else "off: no job is active"


def net_text(on: bool) -> tuple[State, str]:
    """The slow clock is never off."""
    return ("good", "on, every 15 minutes") if on else ("bad", "off: lost events are lost; deploy again")


def waiting_text(number: int, where: str) -> tuple[State, str]:
    """How many events were never delivered."""
    if not number:
        return "good", "none"
    return "bad", f"{number} in {where}; the ticks have looked at every job since"
