"""A store with a clock and whoever listens, for tests of governors that tell."""

from __future__ import annotations

from datetime import datetime

from stoker.model import keys
from stoker.model.policy import House
from stoker.notifications.dispatcher import News, Send, Teller
from stoker.notifications.events import Letter
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
        self.store = MemoryStore(lambda: at(self.now_s), near=True)
        self.letters: list[tuple[str, Letter]] = []
        self.problem: Exception | None = None

    def now(self) -> datetime:
        return at(self.now_s)

    def open(self, to: str) -> Send:
        def send(letter: Letter) -> None:
            if self.problem is not None:
                raise self.problem
            self.letters.append((to, letter))

        return send

    def teller(self, store: Store | None = None) -> Teller:
        return Teller(store or self.store, "g", open_=self.open)

    def told(self) -> list[tuple[str, str]]:
        return [(told.kind, told.job) for _, letter in self.letters for told in letter.events]


def news(store: Store) -> dict[str, News]:
    found = {}
    for job in store.folders(keys.JOBS):
        state = job_log.read(store, job)
        if state is not None:
            found[job] = News(state, read_submission(store, state).spec)
    return found


def one_pass(teller: Teller, store: Store, now: datetime, house: House = ONE) -> dict[str, str]:
    """As a governor does it."""
    jobs = news(store)
    teller.begin(house)
    teller.note(jobs, now, active=set(jobs))
    return teller.send(lambda: now)
