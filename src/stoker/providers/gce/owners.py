"""Whose a thing of Compute Engine's is: told by its labels, or by its description where it can have no labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.providers.base import LaunchOrder
from stoker.providers.gce import labels


@dataclass(frozen=True)
class Owner:
    """The claim of a job in a store, which is told by its label."""

    store: str
    job: str
    claim: int

    @classmethod
    def of_order(cls, order: LaunchOrder) -> Owner:
        return cls(labels.store_label(order.store), order.job, order.claim)


def owner_of(told: Mapping[str, str]) -> Owner | None:
    """Whose these labels are; None where they are not ours."""
    store, job, claim = told.get(labels.STORE), told.get(labels.JOB), told.get(labels.CLAIM, "")
    if not store or not job or not (claim.isascii() and claim.isdigit()):
        return None
    return Owner(store, labels.decode(job), int(claim))


def describe(owner: Owner) -> str:
    """A description that can be read back."""
    pairs = ((labels.STORE, owner.store), (labels.JOB, owner.job), (labels.CLAIM, str(owner.claim)))
    return " ".join(f"{key}={value}" for key, value in pairs)


def from_description(text: str) -> Owner | None:
    """Whose a described thing is; None where it is not ours."""
    pairs = dict(word.split("=", 1) for word in text.split() if "=" in word)
    return owner_of({key: value if key == labels.STORE else labels.encode(value) for key, value in pairs.items()})
