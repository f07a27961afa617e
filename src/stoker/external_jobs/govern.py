"""Govern SageMaker's training jobs that others started, as far as the house wants that.

An event is only a wake-up: nothing in it is believed. `wake` looks at one training job, `tick` at all that are in
progress or ended lately; both observe, decide and apply as for every job, and may be repeated, late, or at once with
others. What Stoker itself started on SageMaker is governed as a job, and not here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from stoker.core.governor_settings import DEFAULT
from stoker.external_jobs import decide, index, training_job
from stoker.external_jobs import gpu_alarms as alarming
from stoker.external_jobs.apply import ForeignApplier
from stoker.external_jobs.aws_account import ForeignAccount
from stoker.external_jobs.clone_decision import may_be_resumed
from stoker.external_jobs.dispatcher import ForeignTeller
from stoker.external_jobs.gpu_alarms import Alarm
from stoker.external_jobs.observe import NAME, ForeignObserver, job_of
from stoker.external_jobs.ownership import is_own
from stoker.external_jobs.snapshot import LOOK_S, Clone, ForeignPlan, Sight, Stop, for_others
from stoker.governor import external_costs
from stoker.governor.serverless.external_jobs import Looked
from stoker.governor.store_clock import governor_name, read_clock
from stoker.model import keys
from stoker.model.errors import STUMBLES, AuthDenied, NotInstalled, StokerError, StoreUnavailable
from stoker.model.observed import Unknown
from stoker.model.policy import House
from stoker.notifications.dispatcher import Teller
from stoker.policy.reader import HouseReader
from stoker.providers.ec2.client import Clients
from stoker.store import external_job_index
from stoker.store.base import Store
from stoker.store.external_job_index import Row
from stoker.store.job_log import new_token

# Looks at one training job before the rest is left to the next wake-up: all that can follow one look fits in easily.
MOST_ROUNDS = 8
# Regions with more than can be looked at in this time, all together, are gone through in several ticks.
_TICK_S = 60.0


@dataclass
class Swept:
    """Alarms that are of no use, with the reason, and what could not be looked at."""

    found: list[tuple[str, str]] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def wake(store: Store, region: str, name: str, *, topic: str | None = None) -> Looked:
    """Look at one training job, whatever woke us. Names that are none, or of no job, are nothing to do.

    `topic` is the ARN of the SNS topic that alarms are sent to. Raises StoreError when the store does not answer.
    """
    return ForeignGovernor(store, topic=topic).wake(region, name)


def tick(store: Store, *, topic: str | None = None) -> Looked:
    """Look at every training job, in the regions that the house names, that is in progress or ended lately.

    Costs nothing but a look at the policy where the house names none.
    """
    return ForeignGovernor(store, topic=topic).tick()


def sweep(store: Store, *, dry: bool = False) -> Swept:
    """Remove alarms of training jobs that are over, gone, or no more the house's business. Nothing when `dry`."""
    return ForeignGovernor(store).sweep(dry=dry)


class ForeignGovernor:
    """Governs the training jobs of others for one store. Not thread-safe; any number may run at once elsewhere."""

    def __init__(
        self,
        store: Store,
        account: Callable[[str], ForeignAccount] | None = None,
        *,
        topic: str | None = None,
        name: str | None = None,
        now: Callable[[], datetime] | None = None,
        teller: Teller | None = None,
        token: Callable[[], str] = new_token,
    ) -> None:
        clients = Clients()
        self.store = store
        self.start = alarming.prefix(store.url)
        self.name = name or governor_name()
        self._account = account or (lambda region: ForeignAccount(region, clients))
        self._accounts: dict[str, ForeignAccount] = {}
        self._token = token
        self._house = HouseReader(store, DEFAULT)
        self._now = now
        self._teller = ForeignTeller(store, self.name, teller)
        self._observer = ForeignObserver(store, self.start, topic)

    def wake(self, region: str, name: str) -> Looked:
        """See `wake`."""
        looked = Looked()
        if NAME.fullmatch(name) is None:
            return looked
        house = self._rules(looked)
        if house is None or house.sagemaker is None or region not in house.sagemaker.regions:
            return looked
        clock = self._clock()
        row = self._look(looked, house, region, name, clock(), None)
        # What could not be looked at is to be looked at again.
        looked.active = int(bool(looked.problems) if row is None else not row.settled)
        if name in looked.gone:
            self._drop(region, name, clock())
        if row is not None:
            rows = external_job_index.read(self.store, region).rows
            gathered = self._teller.gather(house, row, rows.get(name))
            looked.problems |= self._teller.send(house, clock)
            looked.untold = self._teller.untold or not gathered
            # Until it is noted what is to be told of it, it stays as it was: the next look tells.
            if gathered and self._teller.noted:
                external_job_index.write(self.store, region, {**rows, name: row}, clock())
        return looked

    def tick(self) -> Looked:
        """See `tick`."""
        looked = Looked()
        house = self._rules(looked)
        if house is not None and house.sagemaker is not None:
            clock = self._clock()
            until_s = time.monotonic() + _TICK_S
            for region in _in_turn(house.sagemaker.regions, clock()):
                self._tick(looked, house, region, clock, until_s)
        return looked

    def plan(self) -> Looked:
        """What a tick would do now, doing nothing."""
        looked = Looked()
        house = self._rules(looked)
        if house is None or house.sagemaker is None:
            return looked
        now = self._clock()()
        for region in house.sagemaker.regions:
            try:
                account = self._at(region)
                for name in {
                    each.name
                    for each in (*account.in_progress(), *account.changed_since(now - external_job_index.ENDED_FOR))
                }:
                    found = account.describe(name)
                    if found is not None and not is_own(self.store, found):
                        sight = self._observer.sight(house, account, found, now, None, None)
                        actions = self._plan(sight, house, now).actions
                        looked.done += [decide.told(action, name) for action in actions]
            except (StokerError, *STUMBLES) as error:
                looked.problems[f"sagemaker {region}"] = str(error)
        return looked

    def sweep(self, *, dry: bool = False) -> Swept:
        """See `sweep`."""
        swept = Swept()
        house = self._rules(swept)
        if house is None:
            return swept
        wanted = set(house.sagemaker.regions) if house.sagemaker is not None else set()
        for region in sorted({*self.store.folders(keys.FAMILIES), *wanted}):
            try:
                account = self._at(region)
                for alarm in account.alarms(self.start):
                    reason = _needless(account, alarm) if region in wanted else f"{region} is not governed"
                    if reason is None:
                        continue
                    if not dry:
                        account.remove_alarms([alarm.name])
                    swept.found.append((alarm.name, reason))
            except StokerError as error:
                swept.problems[f"sagemaker {region}"] = str(error)
        return swept

    # ── One region ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tick(self, looked: Looked, house: House, region: str, clock: Callable[[], datetime], until_s: float) -> None:
        now = clock()
        try:
            account = self._at(region)
            running = account.in_progress()
            ended = account.changed_since(now - external_job_index.ENDED_FOR)
            alarms = account.alarms(self.start)
        except StokerError as error:
            # A list that failed proves nothing. Who may not see any will not see some in a minute.
            looked.problems[f"sagemaker {region}"] = str(error)
            looked.unknown |= not isinstance(error, (AuthDenied, NotInstalled))
            return
        listed = {each.name: each for each in (*ended, *running)}
        rows = dict(external_job_index.read(self.store, region).rows)
        ringing = {job_of(alarm) for alarm in alarms if alarm.ringing}
        due = [name for name, each in listed.items() if index.is_due(rows.get(name), each, house, now)]
        # What is listed nowhere may be over for long, or gone: its alarms and its row are not.
        lost = {name for name, row in rows.items() if not (row.settled and row.ended_at)} - set(listed)
        names = sorted({*ringing, *due, *lost, *({job_of(alarm) for alarm in alarms} - set(listed))})
        # Where there is not time for all, nobody is always the first: each comes to its turn.
        random.shuffle(names)
        changed: dict[str, Row] = {}
        for name in names:
            if NAME.fullmatch(name) is None or time.monotonic() > until_s:
                continue
            # Whether it still rings is asked anew.
            row = self._look(looked, house, region, name, now, None if name in ringing else alarms)
            if row is not None:
                if self._teller.gather(house, row, rows.get(name)):
                    changed[name] = row
                else:
                    looked.untold = True
        gone = looked.gone & set(rows)
        rows = {name: row for name, row in {**rows, **changed}.items() if name not in gone}
        looked.problems |= self._teller.send(house, clock)
        looked.untold = looked.untold or self._teller.untold
        # Until it is noted what is to be told of them, they stay as they were: the next tick tells.
        if (changed or gone) and self._teller.noted:
            external_job_index.write(self.store, region, rows, now)
        unsettled = {name for name, row in rows.items() if not row.settled}
        looked.active += len(unsettled | {name for name in listed if name not in rows})

    def _look(
        self, looked: Looked, house: House, region: str, name: str, now: datetime, listed: Iterable[Alarm] | None
    ) -> Row | None:
        """Look at one training job and do what follows, until nothing does. What it is now, for lists."""
        try:
            account = self._at(region)
            applier = ForeignApplier(self.store, account, self.name, house.digest, self._token, looked.done.append)
            for _ in range(MOST_ROUNDS):
                found = account.describe(name)
                if found is None:
                    self._forget(account, name, looked)
                    return None
                sight = self._observer.sight(house, account, found, now, listed, applier)
                if is_own(self.store, found):
                    return replace(index.row_of(sight, ForeignPlan(settled=True), house, now), own=True)
                plan = self._plan(sight, house, now)
                if not plan.actions:
                    row = index.row_of(sight, plan, house, now)
                    if sight.job.over:
                        external_costs.keep(self.store, row)
                    if isinstance(sight.tail, Unknown):
                        looked.problems[name] = f"its log cannot be read: {sight.tail.error}"
                    return _with_troubles(row, applier.troubles, looked)
                # Where a rival wrote something meanwhile, it is decided anew all the same.
                applier.apply(plan, sight, found)
                listed = None
        except StoreUnavailable:
            raise
        except (StokerError, *STUMBLES) as error:
            # One that cannot be looked at hides no other.
            looked.problems[name] = str(error) or type(error).__name__
        return None

    def _plan(self, sight: Sight, house: House, now: datetime) -> ForeignPlan:
        """What follows. How the budgets stand is asked for where one would be stopped to go on: it needs a machine. And
        whether it was started again by hand, where a clone would be made."""
        plan = decide.decide(sight, house, now)
        if sight.books is None and any(isinstance(each, Stop) and each.event.after for each in plan.actions):
            books = self._observer.books(house, sight.job, now)
            return plan if books is None else decide.decide(replace(sight, books=books), house, now)
        if any(isinstance(each, Clone) for each in plan.actions) and may_be_resumed(sight, now):
            resumed_as = self._observer.resumed_as(self._at(sight.job.region), sight)
            return decide.decide(replace(sight, resumed_as=resumed_as), house, now)
        return plan

    def _drop(self, region: str, name: str, now: datetime) -> None:
        rows = external_job_index.read(self.store, region).rows
        if name in rows:
            external_job_index.write(self.store, region, {kept: row for kept, row in rows.items() if kept != name}, now)

    def _forget(self, account: ForeignAccount, name: str, looked: Looked) -> None:
        looked.gone.add(name)
        names = [alarm.name for alarm in account.alarms(f"{self.start}{name}-") if job_of(alarm) == name]
        if names:
            account.remove_alarms(names)
            looked.done.append(f"{name}: is gone; its alarms are removed")

    # ── The house and its time ────────────────────────────────────────────────────────────────────────────────────────

    def _rules(self, looked: Looked | Swept) -> House | None:
        """The newest rules; None where nobody here can read them, which causes nothing."""
        policy = self._house.read()
        if policy.unread:
            looked.problems["policy"] = policy.unread
            if isinstance(looked, Looked):
                looked.unknown = True
            return None
        return for_others(policy.house)

    def _clock(self) -> Callable[[], datetime]:
        """The store's, asked for once."""
        return self._now if self._now is not None else read_clock(self.store, self.name, time.monotonic).now

    def _at(self, region: str) -> ForeignAccount:
        if region not in self._accounts:
            self._accounts[region] = self._account(region)
        return self._accounts[region]


def _in_turn(regions: Sequence[str], now: datetime) -> list[str]:
    """Another one is the first every minute, so that each comes to its turn."""
    first = int(now.timestamp() // 60) % len(regions) if regions else 0
    return [*regions[first:], *regions[:first]]


def _needless(account: ForeignAccount, alarm: Alarm) -> str | None:
    """Why an alarm is of no use; None where its job is not over for sure."""
    name = job_of(alarm)
    found = account.describe(name)
    if found is None:
        return f"there is no training job {name}"
    status = str(found.description.get("TrainingJobStatus", ""))
    return f"{name} is {status}" if status in training_job.OVER else None


def _with_troubles(row: Row, troubles: dict[str, str], looked: Looked) -> Row:
    """Alarms that could not be made or removed: told, and tried again at the next look."""
    if not troubles:
        return row
    told = f"{len(troubles)} alarms could not be set: {next(iter(troubles.values()))}"
    looked.problems[row.name] = told
    look_at = row.look_at or row.looked_at + timedelta(seconds=LOOK_S)
    return replace(row, note=f"{row.note}; {told}" if row.note else told, settled=False, look_at=look_at)
