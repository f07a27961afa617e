"""Govern SageMaker's training jobs that others started, as far as the house wants that.

An event is only a wake-up: nothing in it is believed. `wake` looks at one training job, `tick` at all that are in
progress or ended lately; both do the same and may be repeated, late, or at once with others.
"""

# ruff: noqa: ARG001

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.store import Store


@dataclass
class Looked:
    """What was done, a line each, and what could not be looked at, by the training job or the region."""

    done: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def wake(store: Store, region: str, name: str, *, topic: str | None = None) -> Looked:
    """Look at one training job, whatever woke us. Names that are none, or of no job, are nothing to do.

    `topic` is the ARN of the SNS topic that alarms are sent to. Raises StoreError when the store does not answer.
    """
    return Looked()


def tick(store: Store, *, topic: str | None = None) -> Looked:
    """Look at every training job, in the regions that the house names, that is in progress or ended lately."""
    return Looked()


def sweep(store: Store, *, dry: bool = False) -> Looked:
    """Remove alarms of training jobs that are over. Nothing at all when `dry`."""
    return Looked()
