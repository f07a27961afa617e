"""The interface through which a serverless governor governs external jobs; an implementation is passed to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from stoker.governor.serverless.events import TrainingWake


@dataclass
class ExternalJobsResult:
    """Actions, a line each, and problems, by training job or region."""

    done: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    # Training jobs that need another pass, as far as they were listed.
    active: int = 0
    # The number of such jobs is unknown, so the schedule stays on.
    unknown: bool = False
    # Training jobs that do not exist any more.
    gone: set[str] = field(default_factory=set)
    # Notifications are still to be sent.
    unsent: bool = False
    # The providers and regions whose prices the policy needs.
    places: set[tuple[str, str]] = field(default_factory=set)


class ExternalJobs(Protocol):
    """Govern training jobs that Stoker did not start. Both raise StoreError when the store does not answer."""

    def wake(self, wake: TrainingWake) -> ExternalJobsResult:
        """Make a pass over one training job."""
        ...

    def tick(self) -> ExternalJobsResult:
        """Make a pass over all of them."""
        ...
