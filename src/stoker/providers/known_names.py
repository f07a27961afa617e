"""Names of machine types and regions that a provider knows without asking its cloud: for rules that name some."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class KnownNames:
    """The names in a provider's tables. Clouds add names all the time: a missing one may be newer than the table.

    `shape` matches names of machine types that the table does not list one by one. No `regions` and no `no_regions`:
    which regions there are is not known.
    """

    machines: frozenset[str] = frozenset()
    regions: frozenset[str] = frozenset()
    shape: re.Pattern[str] | None = None
    no_regions: bool = False


class KnownNamesModule(Protocol):
    """The module `known_names` of a provider."""

    def known_names(self) -> KnownNames: ...
