"""Observed values, and values that could not be observed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Known(Generic[T]):
    """An answer that was received."""

    value: T


@dataclass(frozen=True)
class Unknown:
    """No answer, or no usable one. Never a reason to launch, terminate or restart."""

    error: str


Observed = Known[T] | Unknown


@dataclass(frozen=True)
class Stamped(Generic[T]):
    """A fact with the modification time and ETag of its object in the store."""

    value: T
    modified: datetime
    etag: str
