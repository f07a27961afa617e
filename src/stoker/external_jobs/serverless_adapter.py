"""Pass events about external training jobs from the serverless governor to the governor of external jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.governor.serverless.events import TrainingWake
from stoker.store.base import Store

if TYPE_CHECKING:
    from stoker.external_jobs.govern import ExternalJobGovernor
    from stoker.governor.serverless.external_jobs import ExternalJobsResult


class ServerlessExternalJobs:
    """Implements `ExternalJobs`. `topic` is the ARN of the SNS topic that alarms are sent to."""

    def __init__(self, store: Store, name: str, topic: str | None = None) -> None:
        self._store = store
        self._name = name
        self._topic = topic
        self._governor: ExternalJobGovernor | None = None

    def wake(self, wake: TrainingWake) -> ExternalJobsResult:
        """Make a pass over one training job. Raises StoreError when the store does not answer."""
        return self._cached_governor().wake(wake.region, wake.name)

    def tick(self) -> ExternalJobsResult:
        """Make a pass over all training jobs. Raises StoreError when the store does not answer."""
        return self._cached_governor().tick()

    def _cached_governor(self) -> ExternalJobGovernor:
        # Imported when needed: a cold start for a machine of Stoker's own does without it.
        from stoker.external_jobs.govern import ExternalJobGovernor

        if self._governor is None:
            self._governor = ExternalJobGovernor(self._store, topic=self._topic, name=self._name)
        return self._governor
