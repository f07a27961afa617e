"""The seam to training jobs that others started on SageMaker: what wakes us about these is passed on from here."""

from __future__ import annotations

from stoker.governor import foreign
from stoker.governor.serverless.events import TrainingWake
from stoker.store import Store


class Foreign:
    """Passes on what happened to such jobs. `topic` is where alarms about them are to go."""

    def __init__(self, store: Store, topic: str | None = None) -> None:
        self._store = store
        self._topic = topic

    def wake(self, wake: TrainingWake) -> foreign.Looked:
        """Look at one training job. Raises StoreError when the store does not answer."""
        return foreign.wake(self._store, wake.region, wake.name, topic=self._topic)

    def tick(self) -> foreign.Looked:
        """Look at all of them. Raises StoreError when the store does not answer."""
        return foreign.tick(self._store, topic=self._topic)
