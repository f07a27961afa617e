"""Results of `stoker check` that every cloud gives alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stoker.model.errors import (
    AuthDenied,
    InvalidRequest,
    NotFound,
    ProviderError,
    QuotaExceeded,
    StokerError,
    UserError,
)
from stoker.model.offerings import Offering
from stoker.model.resources import Resources
from stoker.providers.base import CheckResult
from stoker.providers.offerings import is_wanted
from stoker.providers.regional_offerings import Offers

TRY_LATER = "it may pass: check again in a while"


class ExplainsOffers(Offers, Protocol):
    """The part of a provider that knows its offerings, and why there are none."""

    def why_none(self, resources: Resources) -> str: ...


def check_ok(error: StokerError) -> bool | None:
    """The `ok` of a check that failed with this error: None where no answer came, which proves nothing."""
    return False if isinstance(error, (AuthDenied, InvalidRequest, NotFound, QuotaExceeded, UserError)) else None


def check_offers(
    provider: ExplainsOffers, resources: Resources, explain: Callable[[StokerError], tuple[str, str]]
) -> tuple[tuple[Offering, ...], CheckResult]:
    """The offerings that a job accepts, spot first, and the result of looking for them. `explain` returns the detail of
    an error, and how to fix its cause."""
    try:
        found = provider.offerings(resources)
    except (ProviderError, UserError) as error:
        return (), CheckResult("offers", check_ok(error), *explain(error))
    wanted = (each for each in found if is_wanted(resources, spot=each.spot))
    offered = tuple(sorted(wanted, key=lambda offering: not offering.spot))
    if not offered:
        return (), CheckResult("offers", False, provider.why_none(resources), "`stoker offers` lists more")
    return offered, CheckResult("offers", True, f"{len(offered)} offerings; first {offered[0].key}")
