"""The machine types and regions of EC2 that its tables have."""

from __future__ import annotations

from stoker.providers.ec2 import catalog, places
from stoker.providers.known_names import KnownNames


def known_names() -> KnownNames:
    return KnownNames(frozenset(catalog.table()), places.known_regions())
