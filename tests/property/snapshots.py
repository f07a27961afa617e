"""Hypothesis strategies for everything a governor may see, also the absurd."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from hypothesis import strategies as st

from stoker.core.market import MarketHistory, MarketObservation
from stoker.core.snapshot import JobSnapshot
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import (
    Claimed,
    Closed,
    Draining,
    Ended,
    Entry,
    Event,
    Launched,
    NodeRef,
    Opaque,
    ResumeAsked,
    StopAsked,
    Submitted,
    Suspected,
    Warned,
)
from stoker.model.node_facts import CheckpointRef, Exit, Heartbeat, NodeFacts, NoticeFact
from stoker.model.observed import Known, Stamped, Unknown
from stoker.model.offerings import Instance
from stoker.model.spec import Limits
from tests.support.sim_data import CAPABILITIES, ON_DEMAND, SPOT_A, SPOT_B, at, instance_id, make_spec

# Long after everything that happened in the snapshots, or in the middle of it.
MOMENTS = st.sampled_from([0.0, 30.0, 200.0, 400.0, 1000.0, 5000.0, 100_000.0])
ETAGS = st.sampled_from(["", "e1", "e2"])
# Facts are written by other people's code: any number that the codec lets through.
NUMBERS = st.sampled_from([0.0, 1.0, 59.0, 300.0, -5.0, 1e18, 1e300, -1e300, float("inf"), float("-inf"), float("nan")])
STEPS = st.sampled_from([None, 0, 7, 10**30, -1])
KEYS = st.sampled_from([None, "00000002/000001-s1", "00000005/000001-s2", "00000000/000001-given"])
OUTCOMES = st.sampled_from(["succeeded", "interrupted", "failed", "infrastructure"])
WHYS = st.sampled_from(["finished", "notice", "peer", "stop", "drain", "limit", "waited", "agent", "setup"])
CLOSES = st.sampled_from(
    ["succeeded", "reclaimed", "lost", "infrastructure", "failed", "stopped", "limit", "dry", "refused", "abandoned"]
)
OFFERS = st.sampled_from([SPOT_A, SPOT_B, ON_DEMAND])


def known_or_not(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(part.map(Known), part.map(Known), part.map(Known), st.just(Unknown("nobody answered")))


@st.composite
def closes(draw: st.DrawFn, claim: int) -> Closed:
    return Closed(
        claim=claim,
        outcome=draw(CLOSES),
        rule="any",
        restart=draw(st.booleans()),
        counted=draw(st.booleans()),
        trained_s=draw(NUMBERS),
        step=draw(STEPS),
        restored_from=draw(KEYS),
        progressed=draw(st.booleans()),
        at_startup=draw(st.booleans()),
    )


@st.composite
def events(draw: st.DrawFn, state: JobState, nodes: int) -> Event:
    """Something that may stand next in this log: what governors and people write, in any order they may come."""
    choices: list[str] = ["stop", "warned"]
    if state.ended is not None:
        choices = ["resume", "resume", "stop"]
    elif state.stop is None and len(state.open_claims) < 2:
        choices += ["claimed"] * 4
    if state.ended is None and not state.open_claims:
        choices += ["ended"]
    unlaunched = [claim for claim in state.open_claims if claim.launched is None]
    launched = [claim for claim in state.open_claims if claim.launched is not None]
    choices += ["launched"] * 6 if unlaunched else []
    choices += ["closed", "closed", "ended-by", "draining", "suspected"] if launched else []
    match draw(st.sampled_from(choices)):
        case "stop":
            return StopAsked(by="jane")
        case "resume":
            return ResumeAsked(by="jane")
        case "warned":
            return Warned(code="any")
        case "claimed":
            return Claimed(offering=draw(OFFERS), nodes=nodes)
        case "ended":
            return Ended(outcome="failed", rule="max_wait")
        case "launched":
            claim = draw(st.sampled_from(unlaunched))
            count = draw(st.integers(0, nodes)) if draw(st.booleans()) else nodes
            return Launched(claim.number, tuple(NodeRef(r, instance_id(claim.number, r)) for r in range(count)))
        case "closed":
            return draw(closes(draw(st.sampled_from(state.open_claims)).number))
        case "ended-by":
            claim = launched[0]
            rule = draw(st.sampled_from(["any", "user-error"]))
            return Ended(outcome="failed", rule=rule, claim=claim.number, closing=draw(closes(claim.number)))
        case "draining":
            claim = draw(st.sampled_from(launched))
            return Draining(claim=claim.number, outcome=draw(st.sampled_from(["lost", "limit"])), rule="any")
        case _:
            claim = draw(st.sampled_from(launched))
            return Suspected(claim=claim.number, rank=draw(st.integers(0, nodes - 1)), etag=draw(ETAGS))


def end_of(draw: st.DrawFn, state: JobState, nodes: int) -> Event:
    """What may stand next in this log and brings its job nearer to its end, or ends it."""
    launched = [claim for claim in state.open_claims if claim.launched is not None]
    if not state.open_claims:
        return Ended(outcome=draw(st.sampled_from(["failed", "stopped"])), rule="max_wait")
    if not launched:
        number = draw(st.sampled_from(state.open_claims)).number
        return Launched(number, tuple(NodeRef(r, instance_id(number, r)) for r in range(nodes)))
    rule, claim = draw(st.sampled_from(["any", "user-error"])), draw(st.sampled_from(launched))
    return Ended(outcome="failed", rule=rule, claim=claim.number, closing=draw(closes(claim.number)))


@st.composite
def states(draw: st.DrawFn, nodes: int, job: str = "job-1", last: Literal["any", "stop", "end"] = "any") -> JobState:
    """`last`: a job that was asked to stop or has ended; one that has ended, by a protocol that is known."""
    moment = 0.0
    state = fold(job, [Entry(1, at(0), "submitted", Submitted(spec_digest="0" * 64, submitter="jane"))])
    assert state is not None
    for _ in range(draw(st.integers(0, 12))):
        moment += draw(st.sampled_from([1.0, 10.0, 100.0]))
        entry = Entry(state.seq + 1, at(moment), "because", draw(events(state, nodes)))
        state = fold(job, [entry], state)
        assert state is not None
    while last != "any" and state.ended is None and (last == "end" or state.stop is None):
        moment += draw(st.sampled_from([1.0, 10.0, 100.0]))
        event = end_of(draw, state, nodes) if last == "end" else StopAsked(by="jane")
        state = fold(job, [Entry(state.seq + 1, at(moment), "because", event)], state)
        assert state is not None
    if last != "end" and draw(st.integers(0, 30)) == 30:
        newer = Entry(state.seq + 1, at(moment), "?", Opaque(name="new"), min_version=99)
        state = fold(job, [newer], state)
        assert state is not None
    return state


@st.composite
def beats(draw: st.DrawFn) -> Stamped[Heartbeat] | None:
    if draw(st.booleans()) and draw(st.booleans()):
        return None
    key = draw(KEYS)
    beat = Heartbeat(
        beat=1,
        phase=draw(st.sampled_from(["booting", "waiting", "training", "saving", "flushing"])),
        at=at(0),
        interval_s=draw(NUMBERS),
        trained_s=draw(NUMBERS),
        step=draw(STEPS),
        restored_from=draw(KEYS),
        checkpoint=CheckpointRef(key, "s") if key else None,
    )
    return Stamped(beat, at(draw(MOMENTS)), draw(ETAGS.filter(bool)))


@st.composite
def notices(draw: st.DrawFn) -> Stamped[NoticeFact] | None:
    if draw(st.booleans()):
        return None
    fact = NoticeFact(hard=draw(st.booleans()), source="sim", at=at(0), grace_s=draw(NUMBERS))
    return Stamped(fact, at(draw(MOMENTS)), "n")


@st.composite
def exits(draw: st.DrawFn) -> Stamped[Exit] | None:
    if draw(st.booleans()):
        return None
    key = draw(KEYS)
    fact = Exit(
        outcome=draw(OUTCOMES),
        why=draw(WHYS),
        at=at(draw(MOMENTS)),
        code=draw(st.sampled_from([None, 0, 1, 137])),
        signal=draw(st.sampled_from([None, 9])),
        trained_s=draw(NUMBERS),
        step=draw(STEPS),
        restored_from=draw(KEYS),
        older_checkpoints=draw(st.integers(0, 2)),
        checkpoint=CheckpointRef(key, "s") if key else None,
        tail=draw(st.sampled_from([(), ("NCCL error",), ("ValueError",)])),
        evidence=draw(st.sampled_from([(), ("oom",)])),
    )
    return Stamped(fact, at(draw(MOMENTS)), "x")


@st.composite
def node_facts(draw: st.DrawFn, claim: int, rank: int) -> NodeFacts:
    return NodeFacts(
        rank=rank,
        instance=instance_id(claim, rank),
        heartbeat=draw(known_or_not(beats())),
        notice=draw(known_or_not(notices())),
        exit=draw(known_or_not(exits())),
    )


@st.composite
def listings(draw: st.DrawFn, state: JobState, nodes: int) -> tuple[Instance, ...]:
    """The job's machines in any order: named ones, unnamed ones, ones of claims that the log does not know."""
    found: list[Instance] = []
    for claim in (*(claim.number for claim in state.claims), state.seq + 1, 999):
        for rank in range(nodes):
            for twin in ("", "-twin"):
                if draw(st.integers(0, 3 if twin else 1)):
                    continue
                condition = draw(st.sampled_from(["pending", "running", "running", "stopping", "gone"]))
                born = at(draw(MOMENTS))
                found.append(Instance(instance_id(claim, rank) + twin, "sim", state.job, claim, rank, condition, born))
    return tuple(draw(st.permutations(found)))


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    bound = st.one_of(st.none(), st.none(), st.sampled_from([10.0, 500.0, 1e18, 1e300]))
    return Limits(max_runtime_s=draw(bound), max_cost=draw(bound), max_wait_s=draw(bound))


@st.composite
def markets(draw: st.DrawFn) -> MarketHistory:
    hours = st.integers(0, 30).map(lambda hour: at(3600.0 * hour))
    fates: Any = st.sampled_from(["reclaimed", "dry", "served"])
    minutes = st.sampled_from([0, 60, 999_999_999])
    return MarketHistory.of(
        draw(st.lists(st.builds(MarketObservation, OFFERS.map(lambda o: o.key), hours, fates, minutes), max_size=4))
    )


@st.composite
def snapshots(draw: st.DrawFn, job: str = "job-1", *, last: Literal["any", "stop", "end"] = "any") -> JobSnapshot:
    """`last`: see `states`. The machines of a job that has to have ended are known."""
    nodes = draw(st.sampled_from([1, 1, 2, 3]))
    state = draw(states(nodes, job, last))
    named = [node.instance for claim in state.claims for node in claim.launched or ()]
    conditions = st.sampled_from(["pending", "running", "stopping", "gone", "gone"])
    told = {name: draw(conditions) for name in named if draw(st.integers(0, 4))}
    facts = {
        claim.number: tuple(draw(node_facts(claim.number, node.rank)) for node in claim.launched or ())
        for claim in state.open_claims
    }
    offers = known_or_not(st.sampled_from([(), (SPOT_A,), (SPOT_A, SPOT_B, ON_DEMAND)]))
    spec = make_spec(
        nodes,
        spot=draw(st.sampled_from(["never", "prefer", "only"])),
        limits=draw(limits()),
        user_errors=draw(st.integers(0, 2)),
    )
    held_s = draw(st.sampled_from([0.0, 0.0, 100.0, 2000.0, 1e300]))
    wait_s = draw(st.sampled_from([None, None, 0.0, 100.0, 1e300]))
    return JobSnapshot(
        state=state,
        spec=replace(spec, retry=replace(spec.retry, hold_on_failure_s=held_s, spot_wait_s=wait_s)),
        capabilities=CAPABILITIES,
        facts=facts,
        instances=Known(draw(listings(state, nodes))) if last == "end" else draw(known_or_not(listings(state, nodes))),
        states=draw(known_or_not(st.just(told))),
        offerings=draw(st.one_of(offers, offers, st.none())),
        market=draw(markets()),
        markers=draw(st.sampled_from([(), (1,), (1, state.seq)])),
    )


@st.composite
def moments(draw: st.DrawFn, job: JobSnapshot) -> Any:
    """Now: never before the newest entry of the log."""
    return job.state.updated_at + timedelta(seconds=draw(MOMENTS))
