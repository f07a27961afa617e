"""Ask what a governor would do about one job now, without doing it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from stoker.core.decide import decide
from stoker.core.governor_settings import DEFAULT
from stoker.core.place_capacity import waits_for_bounded_place
from stoker.core.snapshot import Action, JobSnapshot
from stoker.governor.budget_tracker import BudgetTracker
from stoker.governor.connected_providers import Fleet
from stoker.governor.market_records import MarketReader
from stoker.governor.observe import Memory, active_jobs, list_clouds, observe
from stoker.policy.reader import PolicyReader
from stoker.store.base import Store


def planned_actions(job: str, store: Store) -> tuple[tuple[Action, ...], str]:
    """The actions that a governor would take about the job now, and what the job waits for. Changes nothing."""
    fleet, memory = Fleet(store.url), Memory()
    active = active_jobs(store)
    markers = {job: active.get(job, ())}
    budgets = BudgetTracker(store, memory)
    budgets.begin(tuple(active), whole=False)
    listing = list_clouds(store, fleet, memory, markers)
    settings = PolicyReader(store, DEFAULT).read()
    now = datetime.now(timezone.utc)
    markets = MarketReader(store, now, settings.policy)
    observation = observe(store, fleet, memory, markers, listing.narrowed({job}), markets)
    snapshot = budgets.with_budget_state(replace(observation.snapshot, partial=True), settings.policy, now, 0.0)
    others: tuple[JobSnapshot, ...] = ()
    if any(map(waits_for_bounded_place, snapshot.jobs)):
        # The job's turn depends on the jobs that wait for the same place.
        others = observe(store, fleet, memory, active, list_clouds(store, fleet, memory, active), markets).snapshot.jobs
    plan = decide(replace(snapshot, partial=False, others=others), settings, now)
    problems = observation.problems | plan.problems
    return plan.actions, plan.waiting.get(job, "") or problems.get(job, "")
