"""A pure world in which everything that a plan asks for happens at once, and everybody answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.snapshot import Action, Append, JobSnapshot, Launch, Terminate, Unmark
from stoker.model.job_state import fold
from stoker.model.log_entries import Entry, Event, Launched, NodeRef
from stoker.model.node_facts import Exit, NodeFacts
from stoker.model.observed import Known, Stamped
from stoker.model.offerings import Instance
from tests.support.sim_data import OFFERINGS, instance_id


def revealed(job: JobSnapshot) -> JobSnapshot:
    """The same job with everything that was unknown answered: nothing there."""
    states = dict(job.states.value) if isinstance(job.states, Known) else {}
    for claim in job.state.claims:
        for node in claim.launched or ():
            states.setdefault(node.instance, "running" if claim.open else "gone")
    facts = {
        claim.number: tuple(
            NodeFacts(
                fact.rank,
                fact.instance,
                fact.heartbeat if isinstance(fact.heartbeat, Known) else Known(None),
                fact.notice if isinstance(fact.notice, Known) else Known(None),
                fact.exit if isinstance(fact.exit, Known) else Known(None),
            )
            for fact in job.facts.get(claim.number, ())
        )
        for claim in job.state.open_claims
    }
    return replace(
        job,
        states=Known(states),
        facts=facts,
        instances=job.instances if isinstance(job.instances, Known) else Known(()),
        offerings=Known(OFFERINGS),
    )


def step(job: JobSnapshot, actions: tuple[Action, ...], now: datetime) -> JobSnapshot:
    """The world after these actions."""
    for action in actions:
        match action:
            case Append(event=event, reason=reason):
                job = _append(job, event, now, reason)
            case Launch(claim=number):
                claim = job.state.claim(number)
                if claim is not None and claim.open and claim.launched is None:
                    refs = tuple(NodeRef(rank, instance_id(number, rank)) for rank in range(claim.nodes))
                    job = _append(job, Launched(number, refs), now, "launched")
                    job = _with_states(job, dict.fromkeys([ref.instance for ref in refs], "running"))
            case Terminate(instance=instance):
                job = _with_states(job, {instance: "gone"})
            case Unmark(markers=markers):
                job = replace(job, markers=tuple(marker for marker in job.markers if marker not in markers))
    return job


def rest(job: JobSnapshot, now: datetime, most: int) -> tuple[JobSnapshot, list[Action]]:
    """Decide and act, the clock standing still, until nothing is left to do. Fails after `most` looks."""
    done: list[Action] = []
    for _ in range(most):
        plan = decide_job(job, DEFAULT, now)
        if not plan.actions:
            return job, done
        done += plan.actions
        job = step(job, plan.actions, now)
    raise AssertionError(f"not at rest after {most} looks: {done[-3:]}")


def everyone_leaves(job: JobSnapshot, now: datetime, left: Exit) -> JobSnapshot:
    """Every machine of an open claim that still runs writes this exit, and is gone."""
    facts = dict(job.facts)
    gone: dict[str, str] = {}
    for claim in job.state.open_claims:
        told = {fact.rank: fact for fact in facts.get(claim.number, ())}
        for node in claim.launched or ():
            before = told.get(node.rank) or NodeFacts(node.rank, node.instance, Known(None), Known(None), Known(None))
            spoken = isinstance(before.exit, Known) and before.exit.value is not None
            told[node.rank] = before if spoken else replace(before, exit=Known(Stamped(left, now, "x")))
            gone[node.instance] = "gone"
        facts[claim.number] = tuple(told.values())
    return _with_states(replace(job, facts=facts), gone)


def later(now: datetime, wake_at: datetime | None) -> datetime:
    """The next moment worth looking at."""
    return max(now + timedelta(seconds=1), min(wake_at, now + timedelta(days=400)) if wake_at else now)


def _append(job: JobSnapshot, event: Event, now: datetime, reason: str) -> JobSnapshot:
    state = fold(job.state.job, [Entry(job.state.seq + 1, now, reason, event)], job.state)
    assert state is not None
    facts = {
        claim.number: job.facts.get(claim.number)
        or tuple(
            NodeFacts(node.rank, node.instance, Known(None), Known(None), Known(None)) for node in claim.launched or ()
        )
        for claim in state.open_claims
    }
    return replace(job, state=state, facts=facts)


def _with_states(job: JobSnapshot, changes: dict[str, str]) -> JobSnapshot:
    states = dict(job.states.value) if isinstance(job.states, Known) else {}
    states.update(changes)  # type: ignore[arg-type]
    instances = job.instances
    if isinstance(instances, Known):
        instances = Known(tuple(_changed(instance, changes) for instance in instances.value))
    return replace(job, states=Known(states), instances=instances)


def _changed(instance: Instance, changes: dict[str, str]) -> Instance:
    return replace(instance, state=changes.get(instance.id, instance.state))  # type: ignore[arg-type]
