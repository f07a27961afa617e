"""The machine that this provider has."""

from __future__ import annotations

from stoker.providers.known_names import KnownNames
from stoker.providers.local.offers import MACHINE


def known_names() -> KnownNames:
    return KnownNames(frozenset({MACHINE}), no_regions=True)
