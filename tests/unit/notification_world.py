"""A store with a clock and whoever listens, for tests of governors that tell."""

from __future__ import annotations

from datetime import datetime

from stoker.model import keys
from stoker.model.policy import Policy
from stoker.notifications.dispatcher import NotificationDispatcher
from stoker.notifications.events import Message
from stoker.notifications.job_events import JobWithSpec
from stoker.notifications.senders import Send
from stoker.policy.policy_file import parse_policy
from stoker.store import job_log
from stoker.store.base import Store
from stoker.store.job_index import read_submission
from stoker.testing.memory_store import MemoryStore
from tests.support.sim_data import at

ONE = parse_policy(b"notify: ['json://one']", "p")


class World:
    """A store with a clock, and whoever listens."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.store = MemoryStore(lambda: at(self.now_s), is_local=True)
        self.messages: list[tuple[str, Message]] = []
        self.problem: Exception | None = None

    def now(self) -> datetime:
        return at(self.now_s)

    def open(self, to: str) -> Send:
        def send(message: Message) -> None:
            if self.problem is not None:
                raise self.problem
            self.messages.append((to, message))

        return send

    def dispatcher(self, store: Store | None = None) -> NotificationDispatcher:
        return NotificationDispatcher(store or self.store, "g", open_=self.open)

    def told(self) -> list[tuple[str, str]]:
        return [(told.kind, told.job) for _, message in self.messages for told in message.events]


def news(store: Store) -> dict[str, JobWithSpec]:
    found = {}
    for job in store.folders(keys.JOBS):
        state = job_log.read(store, job)
        if state is not None:
            found[job] = JobWithSpec(state, read_submission(store, state).spec)
    return found


def one_pass(dispatcher: NotificationDispatcher, store: Store, now: datetime, policy: Policy = ONE) -> dict[str, str]:
    """As a governor does it."""
    jobs = news(store)
    dispatcher.begin(policy)
    dispatcher.record(jobs, now, active=set(jobs))
    return dispatcher.send(lambda: now)
