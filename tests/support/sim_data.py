"""Small makers of the data that decisions rest on, for tests and the simulation."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone

from stoker.core.snapshot import JobSnapshot
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Entry, Event, NodeRef, Submitted
from stoker.model.node_facts import Exit, ExitOutcome, ExitWhy, Heartbeat, NodeFacts, NoticeFact
from stoker.model.observed import Known, Observed, Stamped
from stoker.model.offerings import Capabilities, Instance, InstanceState, Offering
from stoker.model.resources import Resources, Spot
from stoker.model.spec import Limits, Retry, Spec
from stoker.model.usage_series import pack

JOB = "job-1"
EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)

# Short, so that a simulated day is not needed: every bound of the protocol is passed within the hour.
CAPABILITIES = Capabilities(
    paid=True, token_lifetime_s=3600.0, newborn_s=60.0, boot_timeout_s=180.0, silence_s=60.0, interrupts=True
)

SPOT_A = Offering("sim", "m1", "a", spot=True, price=1.0, on_demand_price=3.0)
SPOT_B = Offering("sim", "m1", "b", spot=True, price=1.1, on_demand_price=3.0)
ON_DEMAND = Offering("sim", "m1", "a", spot=False, price=3.0, on_demand_price=3.0)
OFFERINGS = (SPOT_A, SPOT_B, ON_DEMAND)
_ALL_OFFERED: Observed[tuple[Offering, ...]] = Known(OFFERINGS)


def at(seconds: float) -> datetime:
    """A moment, in seconds after the beginning of all tests."""
    return EPOCH + timedelta(seconds=seconds)


def make_spec(nodes: int = 1, *, spot: Spot = "prefer", limits: Limits | None = None, user_errors: int = 0) -> Spec:
    return Spec(
        name="sim",
        run="train",
        nodes=nodes,
        resources=Resources(provider="sim", spot=spot),
        limits=limits or Limits(),
        retry=Retry(user_errors=user_errors),
    )


def entries(events: Iterable[Event | tuple[Event, float]], start: int = 1) -> list[Entry]:
    """Log entries, ten seconds apart unless an event brings its own time."""
    found: list[Entry] = []
    moment = 10.0 * (start - 1)
    for seq, item in enumerate(events, start=start):
        event, moment = item if isinstance(item, tuple) else (item, moment)
        found.append(Entry(seq=seq, at=at(moment), reason=f"{event.kind} at {seq}", event=event))
        moment += 10.0
    return found


def make_state(*events: Event | tuple[Event, float], job: str = JOB) -> JobState:
    """The state after `submitted` and these events. The first event has number 2."""
    state = fold(job, entries([Submitted(spec_digest="0" * 64, submitter="jane"), *events]))
    assert state is not None
    return state


def nodes(claim: int, count: int = 1) -> tuple[NodeRef, ...]:
    """The machines of a claim, named after it."""
    return tuple(NodeRef(rank, instance_id(claim, rank)) for rank in range(count))


def instance_id(claim: int, rank: int = 0) -> str:
    return f"i-{claim}-{rank}"


def make_instance(claim: int, rank: int = 0, state: InstanceState = "running", *, created_s: float = 0.0) -> Instance:
    return Instance(instance_id(claim, rank), "sim", JOB, claim, rank, state, at(created_s))


def make_exit(outcome: ExitOutcome, why: ExitWhy = "finished", *, at_s: float = 0.0, **rest: object) -> Exit:
    return Exit(outcome=outcome, why=why, at=at(at_s), **rest)  # type: ignore[arg-type]


# The shares of an hour and a half in which processors, disks and network did nothing, or worked.
NO_WORK = (pack(60.0, [[0.0] * 90]),)
AT_WORK = (pack(60.0, [[1.0] * 90]),)


def make_beat(at_s: float, phase: str = "training", etag: str = "e1", **rest: object) -> Stamped[Heartbeat]:
    beat = Heartbeat(beat=1, phase=phase, at=at(at_s), interval_s=10.0, **rest)  # type: ignore[arg-type]
    return Stamped(beat, at(at_s), etag)


def make_facts(
    claim: int,
    rank: int = 0,
    *,
    beat: Stamped[Heartbeat] | None = None,
    notice: NoticeFact | None = None,
    left: Exit | None = None,
) -> NodeFacts:
    return NodeFacts(
        rank=rank,
        instance=instance_id(claim, rank),
        heartbeat=Known(beat),
        notice=Known(Stamped(notice, notice.at, "n") if notice else None),
        exit=Known(Stamped(left, left.at, "x") if left else None),
    )


def hard_notice(at_s: float, grace_s: float = 120.0) -> NoticeFact:
    return NoticeFact(hard=True, source="sim", at=at(at_s), grace_s=grace_s)


def make_snapshot(
    state: JobState,
    *facts: NodeFacts,
    spec: Spec | None = None,
    instances: Observed[tuple[Instance, ...]] | None = None,
    states: Observed[dict[str, InstanceState]] | dict[str, InstanceState] | None = None,
    offerings: Observed[tuple[Offering, ...]] | None = _ALL_OFFERED,
    markers: tuple[int, ...] = (1,),
) -> JobSnapshot:
    """A job of which everything is known. Facts are told apart by the claim in their instance's name."""
    by_claim: dict[int, tuple[NodeFacts, ...]] = {
        claim.number: tuple(fact for fact in facts if fact.instance.startswith(f"i-{claim.number}-"))
        or tuple(make_facts(claim.number, node.rank) for node in claim.launched or ())
        for claim in state.open_claims
    }
    widest = max((claim.nodes for claim in state.claims), default=1)
    return JobSnapshot(
        state=state,
        spec=spec or make_spec(widest),
        capabilities=CAPABILITIES,
        facts=by_claim,
        instances=instances if instances is not None else Known(()),
        states=Known(states) if isinstance(states, dict) else (states or Known({})),
        offerings=offerings,
        markers=markers,
    )
