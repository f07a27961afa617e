"""The summary of a job that `ps`, `show`, `compare` and the dashboard read. Pure, from state, spec and facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from stoker.core.costs import claim_cost, job_cost, valid_span_s
from stoker.core.hold import hold_of
from stoker.core.job_warnings import job_warnings
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import NodeRef, Outcome, Phase, Waste
from stoker.model.node_facts import CheckpointRef, Exit, Heartbeat, NodeFacts, SavedOutputs, SaveTimes
from stoker.model.observed import Stamped
from stoker.model.path_patterns import as_written
from stoker.model.spec import Scalar, Spec
from stoker.model.submission import Code, Submission

# A held machine with an older heartbeat has been terminated: agents write every ten seconds even to remote stores.
_HEARD_S = 60.0
# How many omitted output files are named.
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
    # Its name in the cloud's console, and the links to the machine and its log there. Set only if they were looked up.
    name: str | None = None
    link: str | None = None
    log_link: str | None = None
    # The query for the cloud's own log of the machine, which works after its end too, and the link that shows it.
    logs_query: str | None = None
    logs_link: str | None = None


@dataclass(frozen=True)
class HeldMachines:
    """Machines of a failed attempt that are held and paid for. `price` is $/h for all of them."""

    until: datetime
    instances: tuple[str, ...]
    price: float | None = None


@dataclass(frozen=True)
class AttemptSummary:
    """One attempt; `n` is its number for people."""

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
    # Times of the notice and the save, if there was a notice.
    noticed_at: datetime | None = None
    save: SaveTimes | None = None
    # Its newest durable checkpoint: the next attempt continues from it, whatever step was reached since.
    checkpoint: CheckpointRef | None = None
    # Recent files outside the checkpoint folder that look like saves, if it has no durable checkpoint.
    saves_elsewhere: tuple[str, ...] = ()
    # The checkpoint folder had files, committed or not.
    wrote_checkpoint_files: bool = False
    # The exact image of its container.
    image: str | None = None
    # Requested ahead: see `Offering.queued`.
    queued: bool = False
    # End of the training by the agent's clock, to show the gap between attempts.
    left_at: datetime | None = None
    # Wasted time; None if not reported.
    waste: Waste | None = None
    # End of the hold of each machine that was held.
    held_until: tuple[datetime, ...] = ()
    # Outputs saved and omitted by its nodes; None if none has reported yet.
    outputs: SavedOutputs | None = None


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
    # Seconds of training that a reclaim now would lose, because no durable checkpoint has them.
    at_risk_s: float | None = None
    warnings: tuple[str, ...] = ()
    origin: str | None = None
    held: HeldMachines | None = None
    # As written in the job file.
    checkpoint_dir: str = "checkpoints"
    # Time of the newest heartbeat by the store's clock, or of the observation if there is none: the age of its step and
    # metrics. None for an ended job.
    heard_at: datetime | None = None
    # Outputs saved and omitted by all attempts. A file of several attempts counts once for each.
    outputs: SavedOutputs | None = None

    @property
    def priced(self) -> bool:
        """True if any of its machines had a price. Without one, $0.00 would wrongly say that it was free."""
        return bool(self.cost) or any(attempt.price_source for attempt in self.attempts)


def summarize(
    state: JobState,
    submission: Submission,
    facts: dict[int, tuple[NodeFacts, ...]],
    now: datetime,
    waiting: str = "",
) -> Summary:
    """Summarize a job. Claims without `facts` are summarized from the log alone."""
    spec = submission.spec
    held_h = {claim.number: _held_h(claim, facts.get(claim.number, ()), now) for claim in state.attempts}
    attempts = tuple(
        _attempt(claim, facts.get(claim.number, ()), now, held_h[claim.number]) for claim in state.attempts
    )
    cost = job_cost(state, now, held_h=held_h)
    beats = [beat for claim in state.attempts for beat in _heartbeats(facts.get(claim.number, ()))]
    exits = [left for claim in state.attempts for left in _exits(facts.get(claim.number, ()))]
    reports: list[Heartbeat | Exit] = [*beats, *exits]
    checkpoint = max((one.checkpoint for one in reports if one.checkpoint), key=lambda ref: ref.key, default=None)
    stamped = _stamped(facts.get(state.claims[-1].number, ())) if state.claims else []
    current = [beat.value for beat in stamped]
    phase = phase_of(state, facts)
    elsewhere = {attempt.claim: attempt.saves_elsewhere for attempt in attempts}
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
        # The step that the metrics belong to: an attempt that resumed may be behind the one before.
        step=next((attempt.step for attempt in reversed(attempts) if attempt.step is not None), None),
        cost=cost.spent,
        on_demand_cost=cost.on_demand,
        saved_share=cost.saved_share,
        trained_s=sum(attempt.trained_s for attempt in attempts),
        ended_at=state.ended.at if state.ended else None,
        tags=spec.tags,
        params=spec.params,
        code=submission.code,
        at_risk_s=_at_risk_s(phase, stamped, now),
        warnings=job_warnings(state, current, checkpoint, elsewhere, as_written(spec.checkpoints.dir)),
        origin=submission.origin,
        checkpoint_dir=as_written(spec.checkpoints.dir),
        held=_held(state, spec, facts, now),
        heard_at=_heard_at(state, facts, now),
        # Omitted files of the last attempt are named first.
        outputs=_add_outputs([attempt.outputs for attempt in reversed(attempts)]),
    )


def _last_metrics(state: JobState, facts: dict[int, tuple[NodeFacts, ...]]) -> dict[str, float]:
    """The last value of each metric."""
    metrics: dict[str, float] = {}
    for claim in state.attempts:
        nodes = facts.get(claim.number, ())[::-1]
        # An exit is written last and takes precedence; of several ranks the lowest does.
        reports: list[Heartbeat | Exit] = [*_heartbeats(nodes), *_exits(nodes)]
        for one in reports:
            metrics |= one.metrics
    return metrics


def phase_of(state: JobState, facts: dict[int, tuple[NodeFacts, ...]]) -> Phase:
    """The phase of the job. Without facts an attempt with machines counts as launching."""
    if state.ended is not None:
        return state.ended.outcome
    if state.stop is not None:
        return "stopping"
    if state.queued:
        return "queued"
    for claim in state.open_claims:
        beats = _heartbeats(facts.get(claim.number, ()))
        if any(beat.phase in ("training", "saving", "flushing") for beat in beats):
            return "running"
    return "launching"


def _attempt(claim: Claim, facts: tuple[NodeFacts, ...], now: datetime, held_h: float) -> AttemptSummary:
    beats, exits = _heartbeats(facts), _exits(facts)
    closed = claim.closed
    notices = [fact.known_notice for fact in facts]
    hard = [notice.value for notice in notices if notice is not None and notice.value.hard]
    saves = [left.save for left in exits if left.save]
    assert claim.attempt is not None and claim.launched_at is not None
    reports: list[Exit | Heartbeat] = [*exits, *beats]
    restored = [one.restored_from for one in reports if one.restored_from]
    trained = [one.trained_s for one in reports]
    firsts = [one.first_step for one in reports if one.first_step is not None]
    steps = [one.step for one in reports if one.step is not None]
    return AttemptSummary(
        n=claim.attempt,
        claim=claim.number,
        provider=claim.offering.provider,
        machine=claim.offering.machine,
        zone=claim.offering.zone,
        spot=claim.offering.spot,
        queued=claim.offering.queued,
        started_at=claim.launched_at,
        training_since=min((beat.training_since for beat in beats if beat.training_since), default=None)
        or min((left.started_at for left in exits if left.started_at), default=None),
        ended_at=claim.closed_at,
        outcome=closed.outcome if closed else None,
        rule=closed.rule if closed else None,
        reason=claim.closed_reason or None,
        restored_from=closed.restored_from if closed and closed.restored_from else next(iter(restored), None),
        restored_step=next((one.restored_step for one in reports if one.restored_step is not None), None),
        exit_code=closed.exit_code if closed else None,
        trained_s=closed.trained_s if closed else max(trained, default=0.0),
        step=max(steps, default=closed.step if closed else None),
        first_step=min(firsts, default=None),
        price=claim.offering.price,
        price_source=claim.offering.price_source,
        cost=claim_cost(claim, now, held_h).spent,
        noticed_at=min((notice.at for notice in hard), default=None),
        save=_merge_save_times(saves),
        saves_elsewhere=next((one.saves_elsewhere for one in reports if one.saves_elsewhere), ()),
        wrote_checkpoint_files=any(beat.checkpoint_files > 0 for beat in beats),
        checkpoint=max((one.checkpoint for one in reports if one.checkpoint), key=lambda ref: ref.key, default=None),
        image=next((beat.image for beat in beats if beat.image), None),
        left_at=max((left.at for left in exits), default=None),
        waste=(closed.waste if closed else None) or next((one.waste for one in reports if one.waste), None),
        held_until=held_until(claim, facts, now),
        outputs=_add_outputs([left.outputs for left in exits]),
        nodes=tuple(summarize_node(node, facts, now) for node in claim.launched or ()),
    )


def _merge_save_times(saves: list[SaveTimes]) -> SaveTimes | None:
    """The lowest rank's times, with the commits of all ranks."""
    commits = [save.commits for save in saves if save.commits is not None]
    return replace(saves[0], commits=sum(commits) if commits else None) if saves else None


def _add_outputs(reported: Sequence[SavedOutputs | None]) -> SavedOutputs | None:
    known = [one for one in reported if one is not None]
    if not known:
        return None
    return SavedOutputs(
        files=sum(one.files for one in known),
        size=sum(one.size for one in known),
        left_out=sum(one.left_out for one in known),
        left_out_size=sum(one.left_out_size for one in known),
        named=tuple(named for one in known for named in one.named)[:_LEFT_OUT],
        links=tuple(link for one in known for link in one.links)[:_LEFT_OUT],
        unfinished=sum(one.unfinished for one in known),
    )


def summarize_node(node: NodeRef, facts: tuple[NodeFacts, ...], now: datetime) -> NodeSummary:
    """Summarize one machine of an attempt from its facts."""
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


def _held(state: JobState, spec: Spec, facts: dict[int, tuple[NodeFacts, ...]], now: datetime) -> HeldMachines | None:
    """The machines that are held now and have a recent heartbeat."""
    hold = hold_of(state, spec)
    claim = state.claim(hold.claim) if hold is not None else None
    if hold is None or claim is None or now >= hold.until:
        return None
    held = [
        fact.instance
        for fact in facts.get(hold.claim, ())
        if any(left.outcome == "failed" for left in _exits((fact,))) and _heard_lately(fact, now)
    ]
    price = claim.offering.price
    return HeldMachines(hold.until, tuple(held), None if price is None else price * len(held)) if held else None


def _held_h(claim: Claim, facts: tuple[NodeFacts, ...], now: datetime) -> float:
    """Machine-hours of the hold after the claim was closed. Both times are the store's."""
    if claim.closed_at is None:
        return 0.0
    return sum((until - claim.closed_at).total_seconds() for until in held_until(claim, facts, now)) / 3600


def held_until(claim: Claim, facts: tuple[NodeFacts, ...], now: datetime) -> tuple[datetime, ...]:
    """End of the hold of each machine that was held after the claim was closed."""
    found = []
    for fact in facts:
        beat = fact.known_heartbeat
        if claim.closed_at is not None and beat is not None and beat.value.phase == "held":
            end = now if _heard_lately(fact, now) else beat.modified
            if end > claim.closed_at:
                found.append(end)
    return tuple(found)


def _heard_at(state: JobState, facts: dict[int, tuple[NodeFacts, ...]], now: datetime) -> datetime | None:
    beats = [fact.known_heartbeat for claim in state.open_claims for fact in facts.get(claim.number, ())]
    heard = [beat.modified for beat in beats if beat is not None]
    return max(heard, default=now) if state.ended is None else None


def _heard_lately(fact: NodeFacts, now: datetime) -> bool:
    beat = fact.known_heartbeat
    return beat is not None and (now - beat.modified).total_seconds() < _HEARD_S


def _heartbeats(facts: tuple[NodeFacts, ...]) -> list[Heartbeat]:
    return [beat.value for beat in _stamped(facts)]


def _stamped(facts: tuple[NodeFacts, ...]) -> list[Stamped[Heartbeat]]:
    return [beat for fact in facts if (beat := fact.known_heartbeat) is not None]


def _exits(facts: tuple[NodeFacts, ...]) -> list[Exit]:
    return [left for fact in facts if (left := fact.known_exit) is not None]


def _at_risk_s(phase: Phase, beats: list[Stamped[Heartbeat]], now: datetime) -> float | None:
    """Seconds of training that a reclaim now would lose: what the node reported, and the time since its heartbeat. The
    heartbeat's time and `now` are both by the store's clock."""
    training = [beat for beat in beats if beat.value.training_since is not None]
    if phase != "running" or not training:
        return None
    beat = training[0].value
    reported_s = beat.waste.lost_s if beat.waste is not None else None
    lost_s = beat.trained_s if reported_s is None else min(reported_s, beat.trained_s)
    return valid_span_s(lost_s) + max(0.0, (now - training[0].modified).total_seconds())
