"""Values that were observed, and values that could not be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Known(Generic[T]):
    """Somebody answered, and this is the answer."""

    value: T


@dataclass(frozen=True)
class Unknown:
    """Nobody answered, or not with sense. Never a reason to launch, terminate or restart."""

    error: str


Observed = Known[T] | Unknown


@dataclass(frozen=True)
class Stamped(Generic[T]):
    """A fact with what the store says about its object: when it was written, and which version it is."""

    value: T
    modified: datetime
    etag: str
