"""Names of resources: URLs as Compute Engine writes them, and what clients may write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROJECT = re.compile(r"projects/([^/]+)/(.+)")


@dataclass(frozen=True)
class Links:
    """Makes the full URLs of what is in a cloud. `base` ends with "/compute/v1"."""

    base: str

    def to(self, path: str) -> str:
        """The URL of "projects/…"."""
        return f"{self.base}/{path}"


def tail(link: str) -> str:
    """The name at the end of a URL, or the name itself."""
    return link.rstrip("/").rpartition("/")[2]


def partial(link: str, project: str) -> str:
    """ "projects/…" of a full URL, of "projects/…", or of what leaves the project out."""
    found = _PROJECT.search(link)
    return found[0] if found else f"projects/{project}/{link.lstrip('/')}"


def region_of(zone: str) -> str:
    """ "us-central1" of "us-central1-a"."""
    return zone.rpartition("-")[0]
