"""Tell people what happens to training jobs of others. Nothing that fails here harms anything."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from stoker.external_jobs import chain_log
from stoker.external_jobs import notifications as foreign_news
from stoker.external_jobs.notifications import Whose
from stoker.model.errors import StokerError, StoreError
from stoker.model.policy import House
from stoker.notifications.dispatcher import Teller
from stoker.notifications.events import Told
from stoker.store.base import Store
from stoker.store.external_job_index import Row


class ForeignTeller:
    """Notes what the log of a family tells, and sends it. Noting it again, or by another governor, tells it once.

    What cannot be noted is kept for the next time.
    """

    def __init__(self, store: Store, by: str, teller: Teller | None = None) -> None:
        self._store = store
        self._teller = teller or Teller(store, by)
        self._news: list[Told] = []

    @property
    def untold(self) -> bool:
        """Whether something is to be told yet, by whoever can."""
        return bool(self._news) or self._teller.unsent

    @property
    def noted(self) -> bool:
        """Whether everything that was gathered is in the store, for whoever tells it."""
        return not self._news

    def gather(self, house: House, row: Row, before: Row | None) -> bool:
        """What was written since the job was last looked at. False: that could not be read."""
        after = before.seq if before is not None and before.origin == row.origin else 0
        if not house.notify or row.seq <= after or row.own:
            return True
        where = f"{row.nodes} × {row.machine}" if row.nodes > 1 else row.machine
        whose = Whose(row.origin, row.region, f"{where}{' spot' if row.spot else ''} on SageMaker", row.tags)
        try:
            entries = list(chain_log.entries(self._store, row.region, row.origin, after + 1))
        except StoreError:
            return False
        known = {(told.stream, told.seq) for told in self._news}
        found = (foreign_news.tell(entry, whose, house) for entry in entries)
        self._news += [told for told in found if told is not None and (told.stream, told.seq) not in known]
        return True

    def send(self, house: House, now: Callable[[], datetime]) -> dict[str, str]:
        """Send what was gathered, and what waits. Answers what went wrong."""
        if not house.notify:
            self._news = []
            return {}
        try:
            self._teller.begin(house)
            self._teller.note({}, now(), more=self._news)
            self._news = []
            return self._teller.send(now)
        except StokerError as error:
            return {"notify": str(error)}
        except Exception as error:  # noqa: BLE001 - a side-channel: no bug in it may end a look
            return {"notify": f"{type(error).__name__}: {error}"}
