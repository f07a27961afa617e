"""Is the simulation able to fail? Each rule of the protocol is taken out, and a seed must notice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from stoker.core import attempt_verdict, decide, ended_jobs, gate, maintain_claim, unowned_machines
from stoker.core.governor_settings import GovernorSettings
from stoker.core.job_decision import JobDecision
from stoker.core.place_capacity import CapacityQueue
from stoker.core.snapshot import JobSnapshot
from stoker.governor import observe
from stoker.governor.apply import Applier
from stoker.maintenance import delete
from stoker.model import keys
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import Ended
from stoker.model.observed import Known
from stoker.store import job_index, job_log, node_facts
from tests.support import sim
from tests.support.sim_cloud import SimProvider

# Most mutants are noticed within a few dozen seeds.
MOST_SEEDS = 2000

Patch = pytest.MonkeyPatch


def older_claims_do_not_matter(patch: Patch) -> None:
    patch.setattr(gate, "_released", lambda older, exits: True)


def absence_is_gone(patch: Patch) -> None:
    def states(fleet: Any, state: JobState, listing: observe.CloudListing) -> Any:
        there = {
            instance.id: instance.state
            for part in listing.instances.values()
            if isinstance(part, Known)
            for instance in part.value
        }
        named = [node.instance for claim in state.claims for node in claim.launched or ()]
        return Known({name: there.get(name, "gone") for name in named})

    patch.setattr(observe, "_states", states)


def stopping_is_gone(patch: Patch) -> None:
    def is_gone(self: JobSnapshot, instance: str) -> bool:
        return isinstance(self.states, Known) and self.states.value.get(instance) in ("gone", "stopping")

    patch.setattr(JobSnapshot, "is_gone", is_gone)
    patch.setattr(JobSnapshot, "is_over", is_gone)


def one_exit_closes_a_gang(patch: Patch) -> None:
    def over(self: JobDecision, claim: Claim) -> bool:
        return claim.launched is not None and any(
            self.job.exit_of(claim, rank) is not None or self.job.rank_gone(claim, rank) for rank in range(claim.nodes)
        )

    patch.setattr(JobDecision, "is_over", over)


def names_do_not_matter(patch: Patch) -> None:
    def may_train(state: JobState | None, number: int, instance: str, exits: Any) -> gate.Permission:
        claim = state.claim(number) if state else None
        if state is None or claim is None or not claim.open or state.ended or state.stop:
            return gate.Wait("no")
        older = [c for c in state.claims if c.number < number and c.open]
        return gate.Wait("older") if older else gate.Go()

    patch.setattr(gate, "may_train", may_train)


def a_newer_claim_ends_the_older(patch: Patch) -> None:
    real = gate.should_leave

    def should_leave(state: JobState | None, number: int, instance: str) -> gate.Leave | None:
        if state is not None and state.last_claim is not None and state.last_claim.number > number:
            return gate.Leave("superseded", "closed")
        return real(state, number, instance)

    patch.setattr(gate, "should_leave", should_leave)


def a_broken_gang_goes_on(patch: Patch) -> None:
    patch.setattr(maintain_claim, "_drain_broken_gang", lambda look, claim: False)


def facts_are_read_before_the_machines(patch: Patch) -> None:
    """An exit written between the two is missed, and a success taken for a loss."""
    early: dict[tuple[str, int], Any] = {}
    read_claim, states = node_facts.read_claim, observe._states

    def prefetch(fleet: Any, state: JobState, listing: Any) -> Any:
        for claim in state.open_claims:
            early[state.job, claim.number] = read_claim(stores[-1], state.job, claim)
        return states(fleet, state, listing)

    stores: list[Any] = []
    real = observe._observe_job

    def observe_job(store: Any, *rest: Any) -> Any:
        stores.append(store)
        try:
            return real(store, *rest)
        finally:
            stores.pop()

    patch.setattr(observe, "_observe_job", observe_job)
    patch.setattr(observe, "_states", prefetch)
    patch.setattr(
        node_facts,
        "read_claim",
        lambda store, job, claim: early.pop((job, claim.number), None) or read_claim(store, job, claim),
    )


def a_stop_ends_at_once(patch: Patch) -> None:
    def stop(look: JobDecision) -> None:
        look.append(Ended(outcome="stopped", rule="stop"), "stopped")

    patch.setattr(decide, "_stop", stop)


def nobody_is_given_time_to_save(patch: Patch) -> None:
    real = JobDecision.__init__

    def init(
        self: JobDecision,
        job: JobSnapshot,
        settings: GovernorSettings,
        now: datetime,
        blind: bool,
        capacity: CapacityQueue,
    ) -> None:
        real(self, job, GovernorSettings(leave_s=-55.0), now, blind, capacity)

    patch.setattr(JobDecision, "__init__", init)


def nothing_is_swept(patch: Patch) -> None:
    patch.setattr(unowned_machines, "find_unowned", lambda job, now: [])


def a_job_is_forgotten_at_its_end(patch: Patch) -> None:
    patch.setattr(ended_jobs, "unnamed_machines_left", lambda job, now: None)
    patch.setattr(JobSnapshot, "is_gone", lambda self, instance: True)


def a_loss_ends_the_job(patch: Patch) -> None:
    patch.setattr(
        attempt_verdict,
        "_without_loops",
        lambda case, found: found if found.outcome != "lost" else attempt_verdict.replace(found, restart=False),
    )


def launches_are_not_repeatable(patch: Patch) -> None:
    """Without tokens and without names: the same claim on two machines."""
    real = SimProvider.launch

    def launch(self: SimProvider, requests: Any) -> Any:
        self._world.cloud.tokens.clear()
        return real(self, requests)

    patch.setattr(SimProvider, "launch", launch)
    names_do_not_matter(patch)


def nobody_is_held(patch: Patch) -> None:
    patch.setattr(unowned_machines, "is_held", lambda state, spec, instance, now: False)


def nothing_may_end_by_itself(patch: Patch) -> None:
    patch.setattr(unowned_machines, "_ends_itself_until", lambda job, instance, now: None)


def a_hold_never_ends(patch: Patch) -> None:
    patch.setattr(unowned_machines, "is_held", lambda state, spec, instance, now: True)


def nobody_looks_for_tombstones(patch: Patch) -> None:
    patch.setattr(Applier, "_was_removed", lambda self, job: False)


def a_record_is_put_over_the_one_before(patch: Patch) -> None:
    """One key for each job: a write that lands late brings back what was."""
    numbered = keys.index
    patch.setattr(keys, "index", lambda job, seq: numbered(job, 0))


def removed_jobs_are_read_like_others(patch: Patch) -> None:
    patch.setattr(job_log, "is_removed", lambda store, job: False)
    patch.setattr(job_log, "removed_jobs", lambda store: frozenset())
    patch.setattr(job_index, "is_removed", lambda store, job: False)
    patch.setattr(job_index, "removed_jobs", lambda store: frozenset())


def a_removal_is_not_in_the_log(patch: Patch) -> None:
    patch.setattr(delete, "_append_removal", lambda store, job, by: None)


MUTANTS: dict[Callable[[Patch], None], str] = {
    older_claims_do_not_matter: "two attempts train",
    absence_is_gone: "closed, and",
    stopping_is_gone: "still trains",
    one_exit_closes_a_gang: "still trains",
    names_do_not_matter: "does not name it",
    launches_are_not_repeatable: "",
    a_newer_claim_ends_the_older: "told that its claim is closed",
    a_broken_gang_goes_on: "does not come to rest",
    facts_are_read_before_the_machines: "succeeded",
    a_stop_ends_at_once: "still trains",
    nobody_is_given_time_to_save: "is cut",
    nothing_is_swept: "does not come to rest",
    a_job_is_forgotten_at_its_end: "",
    a_loss_ends_the_job: "the job failed",
    nobody_is_held: "ended before its time",
    nothing_may_end_by_itself: "could end by itself",
    a_hold_never_ends: "does not come to rest",
    nobody_looks_for_tombstones: "which was removed",
    a_record_is_put_over_the_one_before: "the index tells",
    removed_jobs_are_read_like_others: "",
    a_removal_is_not_in_the_log: "counts as removed",
}

# The first seed that notices, of those that few do. It is tried first; if its story has changed, all others follow.
NOTICED_BY: dict[Callable[[Patch], None], int] = {
    older_claims_do_not_matter: 62,
    stopping_is_gone: 168,
    a_newer_claim_ends_the_older: 35,
    a_broken_gang_goes_on: 102,
    facts_are_read_before_the_machines: 47,
    nobody_looks_for_tombstones: 211,
    a_removal_is_not_in_the_log: 853,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_rule_that_is_left_out_is_missed(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    seen: list[str] = []
    for seed in (NOTICED_BY.get(mutant, 0), *range(MOST_SEEDS)):
        violation = sim.simulate(seed).violation
        if violation is not None:
            # A missing rule may break more than one promise; one of them is the one that it is there for.
            if MUTANTS[mutant] in violation:
                return
            seen.append(f"seed {seed}: {violation}")
    pytest.fail(f"{MOST_SEEDS} seeds do not miss it; {seen}")
