"""The machine types and regions of Compute Engine that its tables have."""

from __future__ import annotations

import re

from stoker.providers.gce import catalog, places
from stoker.providers.known_names import KnownNames

# Custom sizes, and machines with GPUs attached: too many to list.
_SHAPE = re.compile(r"[a-z0-9]+-custom-[0-9]+-[0-9]+(-ext)?|n1-[a-z0-9-]+\+[a-z0-9-]+:[0-9]+")


def known_names() -> KnownNames:
    return KnownNames(frozenset(catalog.table()), places.known_regions(), _SHAPE)
