"""The governor: observe, decide, apply. It keeps no state of its own; any number may run at once, anywhere."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime

from stoker.core.budgets import Held
from stoker.core.decide import decide
from stoker.core.governor_settings import DEFAULT, Policy
from stoker.core.snapshot import Action, Append, JobSnapshot, Plan, Snapshot, Unmark
from stoker.governor.apply import Applier
from stoker.governor.budget_tracker import Bookkeeper
from stoker.governor.connected_providers import Fleet
from stoker.governor.cost_ledger import write_spent
from stoker.governor.index_writer import Indexer
from stoker.governor.leftovers import sweep
from stoker.governor.market_records import MarketReader
from stoker.governor.observe import (
    Memory,
    Observation,
    active_jobs,
    known_places,
    list_clouds,
    observe,
)
from stoker.governor.store_clock import Freshness, StoreClock, governor_name, read_clock, record_pass, with_sleep
from stoker.model.errors import STUMBLES, StokerError, StoreUnavailable, in_words
from stoker.model.offerings import Offering
from stoker.model.policy import House
from stoker.notifications.dispatcher import SINGLE_S, WATCH_S, News, Teller
from stoker.notifications.events import Told, budget, leftover_name, orphan, orphans
from stoker.notifications.outbox import MOST_WAITING
from stoker.policy.reader import HouseReader
from stoker.providers.base import Wakes
from stoker.store.base import Store
from stoker.store.job_log import new_token
from stoker.store.removed_jobs import clear_markers

# Looks at one job in one pass before the rest is left to the next: a claim, its launch, its close and the next claim
# fit in easily, and a bug that never comes to rest cannot spin.
MOST_ROUNDS = 12

# The tick is only the net under events. Near stores cost nothing to look at.
TICK_NEAR_S = 2.0
TICK_FAR_S = 15.0
# Whoever makes a single pass sweeps; a loop need not in each.
SWEEP_EVERY_S = 60.0
# What is known of the markets is at most so old.
MARKETS_FOR_S = 60.0
# A job's end is told before the job is forgotten. A store in which nothing can be noted for so long holds up no job.
NOTED_WITHIN_S = 600.0


@dataclass(frozen=True)
class Pass:
    """What one pass did."""

    active: int
    at: datetime
    actions: tuple[Action, ...] = ()
    # Seconds until the next look is due even if nothing happens; None: no deadline is known.
    wake_in_s: float | None = None
    problems: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    # Something is still to be told that this governor may be able to tell; or that anybody may, some time later.
    untold: bool = False
    unsent: bool = False

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do, as far as this pass saw."""
        return self.active == 0 and not self.untold


class Governor:
    """Governs every active job of one store. Not thread-safe; make one for each thread."""

    def __init__(
        self,
        store: Store,
        fleet: Fleet | None = None,
        policy: Policy = DEFAULT,
        name: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        token: Callable[[], str] = new_token,
        teller: Teller | None = None,
        with_sleep: Callable[[], float] = with_sleep,
    ) -> None:
        self.store = store
        self.fleet = fleet or Fleet(store.url)
        self.policy = policy
        self._house = HouseReader(store, policy)
        self.name = name or governor_name()
        self.monotonic = monotonic
        self._with_sleep = with_sleep
        self.memory = Memory()
        self.applier = Applier(store, self.fleet, self.memory, self.name, token)
        self.indexer = Indexer(store, self.memory, monotonic)
        self.bookkeeper = Bookkeeper(store, self.memory)
        self.teller = teller or Teller(store, self.name, token)
        # How long a pass waits for messages to be out.
        self._patience_s = SINGLE_S
        # Removed by this governor, and not noted yet.
        self._removed: list[Told] = []
        self._clock: StoreClock | None = None
        self._swept_s: float | None = None
        self._markets: MarketReader | None = None
        self._markets_s = 0.0

    def plan(self) -> tuple[Plan, Observation]:
        """What a pass would do now, doing nothing."""
        self.policy = self._house.read()
        markers = active_jobs(self.store)
        self.bookkeeper.begin(tuple(markers))
        clock = read_clock(self.store, self.name, self.monotonic)
        self._look_at_markets(clock)
        observation = self._observe(markers)
        return self._decide(observation.snapshot, clock.now()), observation

    def run_pass(self, only: set[str] | None = None) -> Pass:
        """One pass over every active job, or over `only` these. Raises StoreError when the store does not answer."""
        self.policy = self.applier.policy = self._house.read()
        active = active_jobs(self.store)
        markers = {job: found for job, found in active.items() if only is None or job in only}
        clock = self._begin(active, len(markers), whole=only is None)
        sweeping = only is None and self._sweep_is_due()
        fresh = Freshness(clock.now(), self._with_sleep, self.monotonic)
        observation = self._observe(markers, everywhere=sweeping, only=only)
        absent = markers.keys() - {job.state.job for job in observation.snapshot.jobs} - observation.problems.keys()
        problems = observation.problems | clear_markers(self.store, sorted(absent))
        self._forget_others({*active, *observation.listing.jobs()})
        actions: list[Action] = []
        others: tuple[JobSnapshot, ...] | None = () if only is None else None
        plan = self._decide(replace(observation.snapshot, partial=only is not None, others=others), fresh.observed())
        problems |= plan.problems
        newest = {job.state.job: job for job in observation.snapshot.jobs}
        waiting = dict(plan.waiting)
        wakes = [plan.wake_at]
        for _ in range(MOST_ROUNDS):
            plan = self._recorded_first(plan, newest, waiting, problems, clock)
            plan = self._noted_first(plan, newest, clock)
            applied = self.applier.apply(plan, _Purse(self.bookkeeper, self.policy.house, clock), fresh.still)
            actions += applied.done
            waiting |= applied.waiting
            self._note_words(applied.done, problems)
            problems |= applied.problems
            if applied.stale:
                problems["clock"] = "this computer slept, or this process was stopped: the next pass decides anew"
                wakes.append(clock.now())
                break
            again = {job: markers.get(job, ()) for job in applied.moved if job not in applied.problems}
            if not again:
                break
            fresh = Freshness(clock.now(), self._with_sleep, self.monotonic)
            part = self._observe_again(again, observation)
            self._note_markets(part, newest, problems)
            newest |= {job.state.job: job for job in part.snapshot.jobs}
            others = tuple(newest.values()) if only is None else None
            plan = self._decide(replace(part.snapshot, partial=True, others=others), fresh.observed())
            problems |= part.problems | plan.problems
            waiting = {job: text for job, text in waiting.items() if job not in again} | plan.waiting
            wakes.append(plan.wake_at)
        # What could not be done is why it waits, whatever was decided: `ps` and `explain` tell it.
        waiting |= {job: text for job, text in problems.items() if job in newest}
        self.indexer.update_all(list(newest.values()), waiting, clock.now())
        removed = orphans(actions, clock.now())
        if sweeping:
            problems |= self._sweep(observation, removed, clock)
        problems |= self._tell(newest, removed, None if only is not None else set(markers), clock)
        return Pass(
            active=len(markers),
            at=clock.now(),
            actions=tuple(actions),
            wake_in_s=_soonest(wakes, clock),
            problems=problems,
            waiting=waiting,
            untold=self.teller.pending,
            unsent=self.teller.unsent or bool(self._removed),
        )

    def _begin(self, active: Collection[str], count: int, *, whole: bool) -> StoreClock:
        """Record a pass over so many jobs, and begin the accounts of all that are active."""
        clock = self._clock = record_pass(self.store, self.name, count, self.monotonic)
        self.bookkeeper.begin(tuple(sorted(active)), whole=whole, now=clock.now())
        self.teller.begin(self.policy.house)
        self._look_at_markets(clock)
        return clock

    def _forget_others(self, seen: set[str]) -> None:
        """Forget jobs that are neither active nor have machines: an id that comes again is another job. Partial passes
        do so too, since no whole one may come for months."""
        self.memory.keep(seen)
        self.applier.market.keep(seen)

    def _note_markets(self, part: Observation, before: dict[str, JobSnapshot], problems: dict[str, str]) -> None:
        """Share what was seen of the markets since the job was looked at before."""
        for job in part.snapshot.jobs:
            known = before.get(job.state.job)
            try:
                self.applier.market.note(known.state if known else None, job.state)
            except STUMBLES as error:
                problems[job.state.job] = in_words(error)

    def watch(
        self,
        until: Callable[[Pass], bool],
        on_pass: Callable[[Pass], None] | None = None,
        on_error: Callable[[StokerError], None] | None = None,
    ) -> None:
        """Pass after pass until `until` says enough. Wakes at once for a notice or an exit on this computer."""
        self._patience_s = WATCH_S
        while True:
            try:
                done = self.run_pass()
            except StokerError as error:
                # A store that does not answer decides nothing. Keep trying: machines mind themselves meanwhile.
                if on_error is not None:
                    on_error(error)
                self.sleep(None)
                continue
            if on_pass is not None:
                on_pass(done)
            if until(done):
                self._finish_telling()
                return
            self.sleep(done.wake_in_s)

    def sleep(self, wake_in_s: float | None) -> None:
        """Until the next look is due: a deadline, a wake-up, or the tick (with jitter, so that many do not march)."""
        tick_s = (TICK_NEAR_S if self.store.near else TICK_FAR_S) * random.uniform(0.8, 1.2)
        pause_s = min(tick_s, wake_in_s) if wake_in_s is not None else tick_s
        waker = next((p for p in self.fleet.connected() if isinstance(p, Wakes) and p.capabilities.wakes), None)
        if waker is not None:
            waker.wait(max(0.02, pause_s))
        else:
            time.sleep(max(0.02, pause_s))

    def _look_at_markets(self, clock: StoreClock) -> None:
        """Anew now and then: of a day in which much happened, it takes many calls."""
        house, now_s = self.policy.house, self.monotonic()
        if self._markets is None or self._markets.house != house or now_s - self._markets_s >= MARKETS_FOR_S:
            self._markets, self._markets_s = MarketReader(self.store, clock.now(), house), now_s

    def _observe(
        self, markers: dict[str, tuple[int, ...]], *, everywhere: bool = False, only: set[str] | None = None
    ) -> Observation:
        """`everywhere`: also where only machines of jobs can be that nobody knows any more. `only`: of what is listed
        there, nothing is looked into but what belongs to these."""
        more = known_places(self.store) if everywhere else ()
        listing = list_clouds(self.store, self.fleet, self.memory, markers, more)
        if only is not None:
            listing = listing.narrowed(only)
        return observe(self.store, self.fleet, self.memory, markers, listing, self._markets)

    def _observe_again(self, moved: dict[str, tuple[int, ...]], before: Observation) -> Observation:
        """The jobs whose logs have moved on. The clouds are not listed again: an older list only ever knows less."""
        listing = before.listing.narrowed(set(moved))
        return observe(self.store, self.fleet, self.memory, moved, listing, self._markets)

    def _sweep_is_due(self) -> bool:
        """Now and then: looking everywhere costs a call for each place."""
        due = self._swept_s is None or self.monotonic() - self._swept_s >= SWEEP_EVERY_S
        if due:
            self._swept_s = self.monotonic()
        return due

    def _sweep(self, observation: Observation, removed: list[Told], clock: StoreClock) -> dict[str, str]:
        """Remove what machines left beside them, in the places that were listed."""
        problems: dict[str, str] = {}
        for place in observation.listing.instances:
            swept = sweep(self.store, self.fleet, place)
            problems |= swept.problems
            removed += [orphan(each.job, leftover_name(each), why, clock.now()) for each, why in swept.orphans]
        return problems

    # ── Telling people ────────────────────────────────────────────────────────────────────────────────────────────────

    def _noted_first(self, plan: Plan, newest: dict[str, JobSnapshot], clock: StoreClock) -> Plan:
        """Without a marker nobody looks at a job again: its end is noted before, for whoever tells it."""
        ending = {action.job for action in plan.actions if isinstance(action, Unmark)}
        if not ending:
            return plan
        try:
            self.teller.note(self._news({job: newest[job] for job in ending}), clock.now())
        except StoreUnavailable:
            held = {job for job in ending if _ended_lately(newest[job], clock.now())}
            kept = (action for action in plan.actions if not (isinstance(action, Unmark) and action.job in held))
            return replace(plan, actions=tuple(kept))
        except Exception:  # noqa: BLE001 - whatever it is, it is told below, and no job waits for it
            pass
        return plan

    def _tell(
        self, newest: dict[str, JobSnapshot], removed: list[Told], active: set[str] | None, clock: StoreClock
    ) -> dict[str, str]:
        """After everything else, and whatever comes of it. Answers what went wrong."""
        try:
            self._removed = [*self._removed, *removed][-MOST_WAITING:]
            spent = self.bookkeeper.unheralded(self.policy.house)
            more = [*self._removed, *(budget(each, clock.now()) for each in spent)]
            self.teller.note(self._news(newest), clock.now(), more=more, active=active)
            # Only now: nobody would find out again what is gone.
            self._removed = []
            for each in spent:
                self.bookkeeper.note_told(each.mark)
            return self.teller.send(clock.now, self._patience_s)
        except StokerError as error:
            return {"notify": str(error)}
        except Exception as error:  # noqa: BLE001 - a side-channel: no bug in it may end a pass
            return {"notify": f"{type(error).__name__}: {error}"}

    def _finish_telling(self) -> None:
        try:
            if self._clock is not None:
                self.teller.finish(self._clock.now)
        except Exception:  # noqa: BLE001 - as above; what is not out, another governor sends
            pass

    def _news(self, jobs: dict[str, JobSnapshot]) -> dict[str, News]:
        """What the appliers know is newer than what was observed; a job that was unmarked has been noted already."""
        return {
            job: News(self.memory.states.get(job, seen.state), seen.spec)
            for job, seen in jobs.items()
            if job in self.memory.states
        }

    # ── Small steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """Decide as of `now`, when the observation began: what a stopped process saw is not old by that clock."""
        known = self.bookkeeper.with_books(snapshot, self.policy.house, now, self.monotonic())
        return decide(known, self.policy, now)

    def _note_words(self, done: list[Action], problems: dict[str, str]) -> None:
        for action in done:
            if isinstance(action, Append):
                try:
                    self.bookkeeper.note_words(self.policy.house, action)
                except (StokerError, *STUMBLES) as error:
                    # At worst it is told twice.
                    problems.setdefault(action.job, in_words(error))

    def _recorded_first(
        self,
        plan: Plan,
        newest: dict[str, JobSnapshot],
        waiting: dict[str, str],
        problems: dict[str, str],
        clock: StoreClock,
    ) -> Plan:
        """Without a marker nobody looks at a job again: what `ps` will tell of it for good, and what it spent, is
        written before."""
        kept: list[Action] = []
        for action in plan.actions:
            if isinstance(action, Unmark):
                try:
                    job = newest[action.job]
                    write_spent(self.store, job.state, job.spec, clock.now())
                    self.indexer.update(job, waiting.get(action.job, ""), clock.now())
                except (StokerError, *STUMBLES) as error:
                    # It stays active: were it forgotten, its money would never count. A role that may not write there
                    # yet is a reason to tell.
                    problems[action.job] = in_words(error)
                    continue
            kept.append(action)
        return replace(plan, actions=tuple(kept))


@dataclass(frozen=True)
class _Purse:
    """The books of this pass, at the present time."""

    keeper: Bookkeeper
    house: House
    clock: StoreClock

    def keeps_back(self, job: str, offering: Offering) -> str | None:
        self.keeper.look_again(self.house, job, self.clock.now())
        # A look takes its time, and what runs costs money meanwhile.
        return self.keeper.keeps_back(self.house, job, offering, self.clock.now())

    def yields(self, job: str, number: int) -> Held | None:
        return self.keeper.yields(self.house, job, number, self.clock.now())

    def claimed(self, job: str) -> None:
        self.keeper.claimed(job)


def _ended_lately(job: JobSnapshot, now: datetime) -> bool:
    ended = job.state.ended
    return ended is not None and (now - ended.at).total_seconds() < NOTED_WITHIN_S


def _soonest(wakes: list[datetime | None], clock: StoreClock) -> float | None:
    known = [wake for wake in wakes if wake is not None]
    return max(0.0, (min(known) - clock.now()).total_seconds()) if known else None
