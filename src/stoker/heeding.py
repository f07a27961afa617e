"""Hold a job against the rules of the house before it is submitted. Whoever governs it does the same again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from stoker import policies
from stoker.core import governance
from stoker.errors import UserError
from stoker.model import Offering
from stoker.rules import House
from stoker.spec import Spec
from stoker.store import Store


@dataclass(frozen=True)
class Heeded:
    """What the rules leave of the offerings, the warnings, and what else the plan should say."""

    offerings: tuple[Offering, ...]
    told: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()


def heed(spec: Spec, store: Store | None, offerings: tuple[Offering, ...]) -> Heeded:
    """Raises UserError for the first rule that refuses the job. Without a store nobody knows of any rules."""
    kept = policies.current(store) if store is not None else None
    return Heeded(offerings) if kept is None else hold_against(policies.house(kept), spec, offerings)


def hold_against(house: House, spec: Spec, offerings: tuple[Offering, ...]) -> Heeded:
    """As `heed`, against these rules."""
    subject = governance.Subject(spec, datetime.now(timezone.utc).date())
    found = governance.broken(house, subject, offerings)
    for finding in found:
        if finding.refuses:
            raise UserError(str(finding))
    bounds = governance.bounded(house, subject)
    noted = tuple(f"policy {rule}: its {field} is the house's" for field, rule in bounds.by_rule.items())
    return Heeded(governance.allowed(house, subject, offerings), tuple(map(str, found)), noted)
