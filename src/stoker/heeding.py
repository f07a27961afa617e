"""Hold a job against the rules of the house before it is submitted. Whoever governs it does the same again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone

from stoker import policies
from stoker.core import governance
from stoker.errors import UserError
from stoker.model import Offering
from stoker.rules import NO_RULES, House
from stoker.spec import Spec
from stoker.store import Store


@dataclass(frozen=True)
class Heeded:
    """What the rules leave of the offerings, the warnings, and what else the plan should say."""

    offerings: tuple[Offering, ...]
    told: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()


def house_of(store: Store | None) -> House:
    """The rules of a store. Without one nobody knows of any."""
    return policies.house(policies.current(store)) if store is not None else NO_RULES


def as_housed(house: House, spec: Spec) -> Spec:
    """The spec as the house lets it wait for spot: that says which kinds of machines it may come to."""
    retry = governance.bounded(house, _subject(spec)).spec.retry
    return replace(spec, retry=replace(spec.retry, spot_wait_s=retry.spot_wait_s))


def heed(house: House, spec: Spec, offerings: tuple[Offering, ...]) -> Heeded:
    """Raises UserError for the first rule that refuses the job."""
    subject = _subject(spec)
    found = governance.broken(house, subject, offerings)
    for finding in found:
        if finding.refuses:
            raise UserError(str(finding))
    bounds = governance.bounded(house, subject)
    noted = tuple(_noted(bounds, field) for field in bounds.by_rule)
    return Heeded(governance.allowed(house, subject, offerings), tuple(map(str, found)), noted)


def _noted(bounds: governance.Bounded, field: str) -> str:
    if field == "spot_wait":
        return (
            f"{bounds.named(field)}: after {bounds.spec.retry.spot_wait_s:g} s without spot it takes on-demand machines"
        )
    return f"{bounds.named(field)}: its {field} is the house's"


def _subject(spec: Spec) -> governance.Subject:
    return governance.Subject(spec, datetime.now(timezone.utc).date())
