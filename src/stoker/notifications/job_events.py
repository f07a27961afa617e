"""Read the notifications of jobs from their logs, each log entry once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from stoker.model.errors import StoreError, StoreUnavailable
from stoker.model.job_state import JobState
from stoker.model.policy import Policy
from stoker.model.spec import Spec
from stoker.notifications.events import Notification, notification_of
from stoker.store import job_log
from stoker.store.base import Store


@dataclass(frozen=True)
class JobWithSpec:
    """A job's current state and its spec."""

    state: JobState
    spec: Spec


@dataclass(frozen=True)
class _LogSection:
    """The notifications of a job's log entries after `after`, up to and including `upto`."""

    after: int
    upto: int
    notifications: tuple[Notification, ...]


class JobEventReader:
    """Notifications of jobs, cached for as long as the jobs are active. Thread-safe for jobs that differ."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sections: dict[str, _LogSection] = {}

    def read(self, job: JobWithSpec, after: int, policy: Policy) -> tuple[Notification, ...] | None:
        """The notifications of a job's log entries after number `after`; None where the log cannot be read.

        A corrupt log is reported as a problem of its job elsewhere. Raises StoreUnavailable.
        """
        state = job.state
        section = self._sections.get(state.job)
        if section is None or section.after > after or section.upto > state.seq:
            section = _LogSection(after, after, ())
        try:
            unread = max(0, state.seq - section.upto)
            entries = list(islice(job_log.entries(self._store, state.job, section.upto + 1), unread))
        except StoreUnavailable:
            raise
        except StoreError:
            return None
        found = (notification_of(entry, state, job.spec, policy) for entry in entries)
        notifications = (*section.notifications, *(each for each in found if each is not None))
        self._sections[state.job] = _LogSection(section.after, state.seq, notifications)
        return tuple(each for each in notifications if each.seq > after)

    def retain(self, jobs: Iterable[str]) -> None:
        """Drop what was read of all other jobs."""
        active = set(jobs)
        self._sections = {job: section for job, section in self._sections.items() if job in active}
