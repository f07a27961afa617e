"""Check the names of providers, regions and machine types in a policy: a misspelt one locks people out, or forbids
nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from stoker.core.policy_patterns import is_pattern, matches
from stoker.model.errors import UserError
from stoker.model.policy import Policy, Rule
from stoker.providers import registry
from stoker.providers.did_you_mean import nearest
from stoker.providers.known_names import KnownNames


@dataclass(frozen=True)
class UnknownName:
    """A name in a rule that no table has. `misspelt`: it almost is a known name."""

    text: str
    misspelt: bool

    def __str__(self) -> str:
        return self.text


def unknown_names(policy: Policy) -> list[UnknownName]:
    """The names and patterns of providers, regions and machine types that match nothing which is known here.

    Providers and names that only other computers know are possible: only names that almost are known ones count as
    misspelt, and patterns never do.
    """
    found = [unknown for rule in policy.rules for unknown in _of_providers(rule)]
    tables = [table for name in registry.names() if (table := _table(name)) is not None]
    if not tables:
        return found
    machines = frozenset[str]().union(*(table.machines for table in tables))
    # Where a provider does not know its regions, none counts as unknown.
    regions = frozenset[str]().union(*(table.regions for table in tables))
    if not all(table.regions or table.no_regions for table in tables):
        regions = frozenset()
    for rule in policy.rules:
        for place, name in _names(rule, "machines"):
            if not any(table.shape is not None and table.shape.fullmatch(name) for table in tables):
                found += _unknown(rule, place, name, machines, "machine type")
        for place, name in _names(rule, "regions") if regions else ():
            # Regions of Compute Engine may be written with their project.
            found += _unknown(rule, place, name.rpartition("/")[2] if name[0] != "/" else name, regions, "region")
    return found


def _names(rule: Rule, field: str) -> Iterator[tuple[str, str]]:
    """The names in the allow list and in the deny list of a rule, each with its place."""
    for name in getattr(rule, field) or ():
        yield field, name
    for name in getattr(rule.deny, field) if rule.deny is not None else ():
        yield f"deny.{field}", name


def _unknown(rule: Rule, place: str, name: str, known: Collection[str], what: str) -> Iterator[UnknownName]:
    if any(matches(name, each) for each in known):
        return
    if is_pattern(name):
        yield UnknownName(f"policy {rule.name}: {place}: no {what} that is known here matches {name}", misspelt=False)
        return
    similar = nearest(name, sorted(known))
    if similar is None:
        yield UnknownName(f"policy {rule.name}: {place}: no {what} that is known here is called {name}", misspelt=False)
        return
    advice = f"did you mean {similar}? for a {what} that is newer than Stoker's tables, write a pattern: {name}*"
    yield UnknownName(f"policy {rule.name}: {place}: there is no {what} {name}; {advice}", misspelt=True)


def _of_providers(rule: Rule) -> Iterator[UnknownName]:
    known = registry.names()
    for _, name in _names(rule, "providers"):
        if not any(matches(name, each) for each in known):
            close = nearest(name, known)
            hint = f"did you mean {close}?" if close else f"there are: {', '.join(known)}"
            text = f"policy {rule.name}: no provider here is called {name}; {hint}"
            yield UnknownName(text, misspelt=False)


def _table(provider: str) -> KnownNames | None:
    """The names that a provider knows; None where it keeps none, or its packages are not installed."""
    try:
        return registry.known_names(provider)
    except (UserError, ImportError):
        return None
