"""A job in short: what `ps`, `show`, `compare` and the dashboard read. Pure, from state, spec and facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from stoker.core.costs import claim_cost, job_cost
from stoker.core.hold import hold_of
from stoker.core.saved_work import is_about_training, kept_part, lost_everything
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import NodeRef, Outcome, Phase, Waste
from stoker.model.node_facts import CheckpointRef, Exit, Heartbeat, KeptOutputs, NodeFacts, NoticeFact, SaveTimes
from stoker.model.observed import Known
from stoker.model.path_patterns import as_written
from stoker.model.spec import Code, Scalar, Spec, Submission

# A machine whose heartbeat is older was ended since: agents of far stores beat every ten seconds.
_HEARD_S = 60.0
# How many files that were left out of the outputs are named.
_LEFT_OUT = 20


@dataclass(frozen=True)
class NodeSummary:
    """One machine of an attempt."""

    rank: int
    instance: str
    phase: str | None = None
    step: int | None = None
    exit_code: int | None = None
    warnings: tuple[str, ...] = ()
    # What the cloud's console calls it, where people look at it in a browser, and at its log there. Only where somebody
    # looked the job up.
    name: str | None = None
    link: str | None = None
    log_link: str | None = None
    # What finds the cloud's own log of the machine, also when it is gone, and where a browser shows what it finds.
    logs_query: str | None = None
    logs_link: str | None = None


@dataclass(frozen=True)
class Held:
    """Machines of a failed attempt that are kept for a look, and paid for. `price` is $/h for all of them."""

    until: datetime
    instances: tuple[str, ...]
    price: float | None = None


@dataclass(frozen=True)
class AttemptSummary:
    """One attempt, as people count them."""

    n: int
    claim: int
    provider: str
    machine: str
    zone: str
    spot: bool
    started_at: datetime
    nodes: tuple[NodeSummary, ...]
    training_since: datetime | None = None
    ended_at: datetime | None = None
    outcome: str | None = None
    rule: str | None = None
    reason: str | None = None
    restored_from: str | None = None
    restored_step: int | None = None
    exit_code: int | None = None
    trained_s: float = 0.0
    step: int | None = None
    first_step: int | None = None
    price: float | None = None
    price_source: str = ""
    cost: float | None = None
    # How the notice went, where there was one.
    noticed_at: datetime | None = None
    save: SaveTimes | None = None
    # The newest that this attempt made durable: the next one goes on from it, whatever step was reached since.
    checkpoint: CheckpointRef | None = None
    # Recent files outside of the checkpoint folder that look like saves, where it made nothing durable.
    saves_elsewhere: tuple[str, ...] = ()
    # Whether there were files in the checkpoint folder, committed or not.
    wrote_checkpoint_files: bool = False
    # The very image of its container.
    image: str | None = None
    # The agent's clock at the end of the training: for the gap that people see.
    left_at: datetime | None = None
    # What of its time led nowhere; None where nobody told.
    waste: Waste | None = None
    # Until when each of its machines was held for a look after its end, of those that were.
    held_until: tuple[datetime, ...] = ()
    # What its nodes left in the store as outputs, and what not; None where none has told yet.
    outputs: KeptOutputs | None = None


@dataclass(frozen=True)
class Summary:
    """One job."""

    id: str
    name: str
    phase: Phase
    submitted_at: datetime
    updated_at: datetime
    submitter: str
    provider: str
    nodes: int
    outcome: Outcome | None = None
    reason: str = ""
    rule: str | None = None
    attempts: tuple[AttemptSummary, ...] = ()
    interruptions: int = 0
    last_checkpoint: CheckpointRef | None = None
    exit_code: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    cost: float | None = None
    on_demand_cost: float | None = None
    saved_share: float | None = None
    trained_s: float = 0.0
    ended_at: datetime | None = None
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, Scalar] = field(default_factory=dict)
    code: Code | None = None
    # What a reclaim at this moment would cost: seconds of training that are not in a durable checkpoint.
    at_risk_s: float | None = None
    warnings: tuple[str, ...] = ()
    origin: str | None = None
    held: Held | None = None
    # As the job file names it.
    checkpoint_dir: str = "checkpoints"
    # When its nodes were last heard of, by the store's clock, or the job was looked at where none has spoken: so old
    # are its step, its metrics and what it does. None for what has ended.
    heard_at: datetime | None = None
    # What all its attempts left in the store as outputs, and what not. A file of several attempts counts for each.
    outputs: KeptOutputs | None = None

    @property
    def priced(self) -> bool:
        """Whether any of its machines had a price. Without one, a sum of $0.00 would claim that it was free."""
        return bool(self.cost) or any(attempt.price_source for attempt in self.attempts)


def summarize(
    state: JobState,
    submission: Submission,
    facts: dict[int, tuple[NodeFacts, ...]],
    now: datetime,
    waiting: str = "",
) -> Summary:
    """The job in short. `facts` may lack claims; what is not there is left open."""
    spec = submission.spec
    held_h = {claim.number: _held_h(claim, facts.get(claim.number, ()), now) for claim in state.attempts}
    attempts = tuple(
        _attempt(claim, facts.get(claim.number, ()), now, held_h[claim.number]) for claim in state.attempts
    )
    cost = job_cost(state, now, held_h=held_h)
    beats = [beat for claim in state.attempts for beat in _heartbeats(facts.get(claim.number, ()))]
    exits = [left for claim in state.attempts for left in _exits(facts.get(claim.number, ()))]
    said: list[Heartbeat | Exit] = [*beats, *exits]
    checkpoint = max((one.checkpoint for one in said if one.checkpoint), key=lambda ref: ref.key, default=None)
    current = _heartbeats(facts.get(state.claims[-1].number, ())) if state.claims else []
    phase = phase_of(state, facts)
    return Summary(
        id=state.job,
        name=spec.name,
        phase=phase,
        submitted_at=state.submitted_at,
        updated_at=state.updated_at,
        submitter=state.submitter,
        provider=spec.resources.provider,
        nodes=spec.nodes,
        outcome=state.ended.outcome if state.ended else None,
        reason=state.ended.reason if state.ended else waiting,
        rule=state.ended.rule if state.ended else None,
        attempts=attempts,
        interruptions=sum(1 for claim in state.claims if claim.closed and claim.closed.outcome == "reclaimed"),
        last_checkpoint=checkpoint,
        exit_code=state.ended.exit_code if state.ended else None,
        metrics=_last_metrics(state, facts),
        step=max((one.step for one in said if one.step is not None), default=None),
        cost=cost.spent,
        on_demand_cost=cost.on_demand,
        saved_share=cost.saved_share,
        trained_s=sum(attempt.trained_s for attempt in attempts),
        ended_at=state.ended.at if state.ended else None,
        tags=spec.tags,
        params=spec.params,
        code=submission.code,
        at_risk_s=_at_risk_s(phase, current, now),
        warnings=_warnings(state, current, checkpoint),
        origin=submission.origin,
        checkpoint_dir=as_written(spec.checkpoints.dir),
        held=_held(state, spec, facts, now),
        heard_at=_heard_at(state, facts, now),
        # What the last attempt left out is named first.
        outputs=_add_outputs([attempt.outputs for attempt in reversed(attempts)]),
    )


def _warnings(state: JobState, current: list[Heartbeat], checkpoint: CheckpointRef | None) -> tuple[str, ...]:
    """What the nodes of the last attempt warn of; and that the attempt before it left nothing to go on from."""
    told = list(dict.fromkeys(text for beat in current for text in beat.warnings))
    if state.ended is not None:
        return tuple(text for text in told if not is_about_training(text))
    before = next((claim for claim in reversed(state.attempts) if claim.closed), None)
    said = checkpoint is not None or any(is_about_training(text) for text in told)
    if before is not None and lost_everything(before.closed_reason) and not said:
        told.append(f"attempt {before.attempt}: {kept_part(before.closed_reason)}")
    return tuple(told)


def _last_metrics(state: JobState, facts: dict[int, tuple[NodeFacts, ...]]) -> dict[str, float]:
    """The last value of each metric."""
    metrics: dict[str, float] = {}
    for claim in state.attempts:
        nodes = facts.get(claim.number, ())[::-1]
        # An exit is written last and knows best; of several ranks the lowest counts.
        told: list[Heartbeat | Exit] = [*_heartbeats(nodes), *_exits(nodes)]
        for one in told:
            metrics |= one.metrics
    return metrics


def phase_of(state: JobState, facts: dict[int, tuple[NodeFacts, ...]]) -> Phase:
    """Where the job is. Without facts an attempt with machines counts as launching."""
    if state.ended is not None:
        return state.ended.outcome
    if state.stop is not None or not state.open_claims:
        return "stopping" if state.stop is not None else "queued"
    for claim in state.open_claims:
        beats = _heartbeats(facts.get(claim.number, ()))
        if any(beat.phase in ("training", "saving", "flushing") for beat in beats):
            return "running"
    return "launching"


def _attempt(claim: Claim, facts: tuple[NodeFacts, ...], now: datetime, held_h: float) -> AttemptSummary:
    beats, exits = _heartbeats(facts), _exits(facts)
    closed = claim.closed
    notices = [fact.notice.value for fact in facts if isinstance(fact.notice, Known) and fact.notice.value]
    hard: list[NoticeFact] = [notice.value for notice in notices if notice.value.hard]
    saves = [left.save for left in exits if left.save]
    assert claim.attempt is not None and claim.launched_at is not None
    said: list[Exit | Heartbeat] = [*exits, *beats]
    restored = [one.restored_from for one in said if one.restored_from]
    trained = [one.trained_s for one in said]
    firsts = [one.first_step for one in said if one.first_step is not None]
    steps = [one.step for one in said if one.step is not None]
    return AttemptSummary(
        n=claim.attempt,
        claim=claim.number,
        provider=claim.offering.provider,
        machine=claim.offering.machine,
        zone=claim.offering.zone,
        spot=claim.offering.spot,
        started_at=claim.launched_at,
        training_since=min((beat.training_since for beat in beats if beat.training_since), default=None)
        or min((left.started_at for left in exits if left.started_at), default=None),
        ended_at=claim.closed_at,
        outcome=closed.outcome if closed else None,
        rule=closed.rule if closed else None,
        reason=claim.closed_reason or None,
        restored_from=closed.restored_from if closed and closed.restored_from else next(iter(restored), None),
        restored_step=next((one.restored_step for one in said if one.restored_step is not None), None),
        exit_code=closed.exit_code if closed else None,
        trained_s=closed.trained_s if closed else max(trained, default=0.0),
        step=max(steps, default=closed.step if closed else None),
        first_step=min(firsts, default=None),
        price=claim.offering.price,
        price_source=claim.offering.price_source,
        cost=claim_cost(claim, now, held_h).spent,
        noticed_at=min((notice.at for notice in hard), default=None),
        save=_joined(saves),
        saves_elsewhere=next((one.saves_elsewhere for one in said if one.saves_elsewhere), ()),
        wrote_checkpoint_files=any(beat.checkpoint_files > 0 for beat in beats),
        checkpoint=max((one.checkpoint for one in said if one.checkpoint), key=lambda ref: ref.key, default=None),
        image=next((beat.image for beat in beats if beat.image), None),
        left_at=max((left.at for left in exits), default=None),
        waste=closed.waste if closed else next((one.waste for one in said if one.waste), None),
        held_until=held_until(claim, facts, now),
        outputs=_add_outputs([left.outputs for left in exits]),
        nodes=tuple(node_of(node, facts, now) for node in claim.launched or ()),
    )


def _joined(saves: list[SaveTimes]) -> SaveTimes | None:
    """The lowest rank's times, with what all ranks committed."""
    commits = [save.commits for save in saves if save.commits is not None]
    return replace(saves[0], commits=sum(commits) if commits else None) if saves else None


def _add_outputs(told: Sequence[KeptOutputs | None]) -> KeptOutputs | None:
    known = [one for one in told if one is not None]
    if not known:
        return None
    return KeptOutputs(
        files=sum(one.files for one in known),
        size=sum(one.size for one in known),
        left_out=sum(one.left_out for one in known),
        left_out_size=sum(one.left_out_size for one in known),
        named=tuple(named for one in known for named in one.named)[:_LEFT_OUT],
    )


def node_of(node: NodeRef, facts: tuple[NodeFacts, ...], now: datetime) -> NodeSummary:
    """One machine of an attempt in short, as far as its facts tell."""
    mine = tuple(fact for fact in facts if fact.instance == node.instance)
    beat = next(iter(_heartbeats(mine)), None)
    left = next(iter(_exits(mine)), None)
    held = beat is not None and beat.phase == "held" and any(_heard_lately(fact, now) for fact in mine)
    return NodeSummary(
        rank=node.rank,
        instance=node.instance,
        phase=("held" if held else "exited") if left else (beat.phase if beat else None),
        step=left.step if left else (beat.step if beat else None),
        exit_code=left.code if left else None,
        warnings=beat.warnings if beat and not left else (),
    )


def _held(state: JobState, spec: Spec, facts: dict[int, tuple[NodeFacts, ...]], now: datetime) -> Held | None:
    """The machines that are kept at this moment, as far as they are heard of."""
    hold = hold_of(state, spec)
    claim = state.claim(hold.claim) if hold is not None else None
    if hold is None or claim is None or now >= hold.until:
        return None
    kept = [
        fact.instance
        for fact in facts.get(hold.claim, ())
        if any(left.outcome == "failed" for left in _exits((fact,))) and _heard_lately(fact, now)
    ]
    price = claim.offering.price
    return Held(hold.until, tuple(kept), None if price is None else price * len(kept)) if kept else None


def _held_h(claim: Claim, facts: tuple[NodeFacts, ...], now: datetime) -> float:
    """Hours that machines were held after the claim was closed. Both moments are the store's."""
    if claim.closed_at is None:
        return 0.0
    return sum((until - claim.closed_at).total_seconds() for until in held_until(claim, facts, now)) / 3600


def held_until(claim: Claim, facts: tuple[NodeFacts, ...], now: datetime) -> tuple[datetime, ...]:
    """Until when each machine was held after the claim was closed, of those that were."""
    found = []
    for fact in facts:
        beat = fact.heartbeat.value if isinstance(fact.heartbeat, Known) else None
        if claim.closed_at is not None and beat is not None and beat.value.phase == "held":
            end = now if _heard_lately(fact, now) else beat.modified
            if end > claim.closed_at:
                found.append(end)
    return tuple(found)


def _heard_at(state: JobState, facts: dict[int, tuple[NodeFacts, ...]], now: datetime) -> datetime | None:
    beats = [fact.heartbeat for claim in state.open_claims for fact in facts.get(claim.number, ())]
    heard = [beat.value.modified for beat in beats if isinstance(beat, Known) and beat.value]
    return max(heard, default=now) if state.ended is None else None


def _heard_lately(fact: NodeFacts, now: datetime) -> bool:
    beat = fact.heartbeat.value if isinstance(fact.heartbeat, Known) else None
    return beat is not None and (now - beat.modified).total_seconds() < _HEARD_S


def _heartbeats(facts: tuple[NodeFacts, ...]) -> list[Heartbeat]:
    return [fact.heartbeat.value.value for fact in facts if isinstance(fact.heartbeat, Known) and fact.heartbeat.value]


def _exits(facts: tuple[NodeFacts, ...]) -> list[Exit]:
    return [fact.exit.value.value for fact in facts if isinstance(fact.exit, Known) and fact.exit.value]


def _at_risk_s(phase: Phase, beats: list[Heartbeat], now: datetime) -> float | None:
    """Training that a reclaim now would lose. The commit's time and `now` are both the store's side of the clock."""
    training = [beat for beat in beats if beat.training_since is not None]
    if phase != "running" or not training:
        return None
    beat = training[0]
    trained = beat.trained_s + max(0.0, (now - beat.at).total_seconds())
    if beat.checkpoint is None or beat.checkpoint.committed_at is None:
        return trained
    return min(trained, max(0.0, (now - beat.checkpoint.committed_at).total_seconds()))
