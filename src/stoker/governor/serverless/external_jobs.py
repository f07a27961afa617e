"""What a serverless governor needs of external jobs, given to it as an argument."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from stoker.governor.serverless.events import TrainingWake


@dataclass
class Looked:
    """What was done, a line each, and what could not be looked at, by the training job or the region."""

    done: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    # Training jobs that have to be looked at again, as far as they were listed.
    active: int = 0
    # Nobody could tell how many these are: no reason to rest.
    unknown: bool = False
    # Training jobs that are no more.
    gone: set[str] = field(default_factory=set)
    # People are to be told something yet.
    untold: bool = False


class ExternalJobs(Protocol):
    """Govern training jobs that Stoker did not start. Both raise StoreError when the store does not answer."""

    def wake(self, wake: TrainingWake) -> Looked:
        """Look at one training job."""
        ...

    def tick(self) -> Looked:
        """Look at all of them."""
        ...
