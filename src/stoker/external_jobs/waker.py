"""The seam to training jobs that others started on SageMaker: what wakes us about these is passed on from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.governor.serverless.events import TrainingWake
from stoker.store.base import Store

if TYPE_CHECKING:
    from stoker.external_jobs.govern import ForeignGovernor
    from stoker.governor.serverless.external_jobs import Looked


class Foreign:
    """Passes on what happened to such jobs. `topic` is where alarms about them are to go."""

    def __init__(self, store: Store, name: str, topic: str | None = None) -> None:
        self._store = store
        self._name = name
        self._topic = topic
        self._governor: ForeignGovernor | None = None

    def wake(self, wake: TrainingWake) -> Looked:
        """Look at one training job. Raises StoreError when the store does not answer."""
        return self._kept().wake(wake.region, wake.name)

    def tick(self) -> Looked:
        """Look at all of them. Raises StoreError when the store does not answer."""
        return self._kept().tick()

    def _kept(self) -> ForeignGovernor:
        # A cold start for a machine of ours need not import it.
        from stoker.external_jobs.govern import ForeignGovernor

        if self._governor is None:
            self._governor = ForeignGovernor(self._store, topic=self._topic, name=self._name)
        return self._governor
