"""The owner of a resource: read from its labels, or from its description where it can have no labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.providers.base import LaunchOrder
from stoker.providers.gce import labels


@dataclass(frozen=True)
class Owner:
    """A claim of a job in a store. `store` is the value of the store's label."""

    store: str
    job: str
    claim: int

    @classmethod
    def of_order(cls, order: LaunchOrder) -> Owner:
        return cls(labels.store_label(order.store), order.job, order.claim)

    @property
    def claimed(self) -> tuple[str, int]:
        """The job and the number of its claim."""
        return self.job, self.claim


def owner_of(found: Mapping[str, str]) -> Owner | None:
    """The owner that these labels name; None where they are not Stoker's."""
    store, job, claim = found.get(labels.STORE), found.get(labels.JOB), found.get(labels.CLAIM, "")
    if not store or not job or not (claim.isascii() and claim.isdigit()):
        return None
    return Owner(store, labels.decode(job), int(claim))


def describe(owner: Owner) -> str:
    """A description from which `from_description` reads the owner."""
    pairs = ((labels.STORE, owner.store), (labels.JOB, owner.job), (labels.CLAIM, str(owner.claim)))
    return " ".join(f"{key}={value}" for key, value in pairs)


def from_description(text: str) -> Owner | None:
    """The owner that a description names; None where it is not Stoker's."""
    pairs = dict(pair.split("=", 1) for pair in text.split() if "=" in pair)
    return owner_of({key: value if key == labels.STORE else labels.encode(value) for key, value in pairs.items()})
