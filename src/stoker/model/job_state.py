"""The state of a job: a pure fold over the contiguous prefix of its log.

Times are the store's own (an entry's Last-Modified). The same entries always give the same state, so a state may be
cached and continued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from stoker.model.log_entries import (
    AttemptOutcome,
    Claimed,
    Closed,
    Draining,
    Ended,
    Entry,
    Launched,
    NodeRef,
    Opaque,
    Outcome,
    RemovalAsked,
    ResumeAsked,
    StopAsked,
    Submitted,
    Suspected,
    Warned,
)
from stoker.model.offerings import Offering


@dataclass(frozen=True)
class Suspicion:
    """The first step against a silent node: the ETag of its heartbeat, and when that was logged."""

    etag: str
    at: datetime


@dataclass(frozen=True)
class Drain:
    """The claim's ranks were asked to save and exit."""

    at: datetime
    outcome: AttemptOutcome
    rule: str
    reason: str


@dataclass(frozen=True)
class Claim:
    """One claim and all that was decided about it."""

    number: int
    at: datetime
    offering: Offering
    nodes: int
    reason: str
    successor_of: int | None = None
    # For people: 1, 2, … among the claims that got machines.
    attempt: int | None = None
    launched: tuple[NodeRef, ...] | None = None
    launched_at: datetime | None = None
    suspicions: dict[str, Suspicion] = field(default_factory=dict)
    drain: Drain | None = None
    closed: Closed | None = None
    closed_at: datetime | None = None
    closed_reason: str = ""
    # If it ended the job and the job was resumed: the time of the resume, or of an earlier stop that ended the hold.
    released_at: datetime | None = None

    @property
    def open(self) -> bool:
        return self.closed is None

    def instance(self, rank: int) -> str | None:
        """The machine of a rank, or None when `launched` names none."""
        return next((node.instance for node in self.launched or () if node.rank == rank), None)


@dataclass(frozen=True)
class Stop:
    """A stop that a person requested."""

    at: datetime
    by: str
    reason: str


@dataclass(frozen=True)
class ChosenCheckpoint:
    """The checkpoint that a person resumed from. Of the others, only those of claims after entry `seq` may be
    restored."""

    key: str
    seq: int


@dataclass(frozen=True)
class End:
    """The job's end, and where in the log it stands."""

    seq: int
    at: datetime
    outcome: Outcome
    rule: str
    reason: str
    claim: int | None = None
    exit_code: int | None = None


@dataclass(frozen=True)
class JobState:
    """A job by its log, up to and including entry `seq`."""

    job: str
    seq: int
    submitted_at: datetime
    updated_at: datetime
    submitter: str
    spec_digest: str
    code_digest: str | None = None
    claims: tuple[Claim, ...] = ()
    stop: Stop | None = None
    ended: End | None = None
    # When its removal began: from then on it cannot be resumed.
    removal_at: datetime | None = None
    # Time and entry of the last submission or `resume`. Counters and limits start from here.
    opened_at: datetime | None = None
    opened_seq: int = 1
    # Stays until another is chosen: a resume that names none does not change it.
    chosen_checkpoint: ChosenCheckpoint | None = None
    warned: tuple[str, ...] = ()
    # Times of the warnings, by code.
    warned_at: dict[str, datetime] = field(default_factory=dict)
    # Codes of the warnings for which agents collect evidence.
    evidence_codes: tuple[str, ...] = ()
    # The highest version that any entry requires of a governor.
    min_version: int = 1

    @property
    def open_claims(self) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.claims if claim.open)

    @property
    def queued(self) -> bool:
        """True while the job has no machine and is to get one."""
        return self.ended is None and self.stop is None and not self.open_claims

    @property
    def last_claim(self) -> Claim | None:
        return self.claims[-1] if self.claims else None

    @property
    def attempts(self) -> tuple[Claim, ...]:
        """The claims that got machines, oldest first."""
        return tuple(claim for claim in self.claims if claim.attempt is not None)

    def claim(self, number: int) -> Claim | None:
        return next((claim for claim in self.claims if claim.number == number), None)

    def since_opened(self) -> tuple[Claim, ...]:
        """The claims made since the job was last opened."""
        return tuple(claim for claim in self.claims if claim.number > self.opened_seq)


def fold(job: str, entries: Iterable[Entry], state: JobState | None = None) -> JobState | None:
    """Apply `entries` to `state`, which they follow without a gap. None until the job is submitted."""
    for entry in entries:
        state = _first(job, entry) if state is None else _next(state, entry)
        if state is None:
            return None
    return state


def _first(job: str, entry: Entry) -> JobState | None:
    event = entry.event
    if entry.seq != 1 or not isinstance(event, Submitted):
        return None
    return JobState(
        job=job,
        seq=1,
        submitted_at=entry.at,
        updated_at=entry.at,
        submitter=event.submitter,
        spec_digest=event.spec_digest,
        code_digest=event.code_digest,
        opened_at=entry.at,
        min_version=entry.min_version,
    )


def _next(state: JobState, entry: Entry) -> JobState:
    assert entry.seq == state.seq + 1, "entries must follow one another"
    state = replace(state, seq=entry.seq, updated_at=entry.at, min_version=max(state.min_version, entry.min_version))
    match entry.event:
        case Claimed(offering=offering, nodes=count, successor_of=noticed):
            claim = Claim(entry.seq, entry.at, offering, count, entry.reason, noticed)
            return replace(state, claims=(*state.claims, claim))
        case Launched(claim=number, nodes=nodes):
            return _launched(state, entry, number, nodes)
        case Suspected(claim=number, rank=rank, etag=etag):
            new = {str(rank): Suspicion(etag=etag, at=entry.at)}
            return _change(state, number, lambda claim: replace(claim, suspicions=claim.suspicions | new))
        case Draining(claim=number, outcome=outcome, rule=rule):
            drain = Drain(at=entry.at, outcome=outcome, rule=rule, reason=entry.reason)
            return _change(state, number, lambda claim: replace(claim, drain=claim.drain or drain))
        case Closed() as event:
            return _close(state, entry, event)
        case StopAsked(by=by):
            return state if state.stop else replace(state, stop=Stop(at=entry.at, by=by, reason=entry.reason))
        case ResumeAsked(checkpoint=chosen):
            return _resumed(state, entry, chosen)
        case RemovalAsked():
            return replace(state, removal_at=state.removal_at or entry.at) if state.ended else state
        case Warned(code=code, evidence=evidence):
            return _warned(state, entry, code, evidence)
        case Ended() as event:
            return _ended(state, entry, event)
        case Submitted() | Opaque():
            # A second `submitted` cannot happen; an opaque entry has raised min_version, so this version does not
            # decide.
            return state


def _change(state: JobState, number: int, change: Callable[[Claim], Claim]) -> JobState:
    return replace(state, claims=tuple(change(claim) if claim.number == number else claim for claim in state.claims))


def _launched(state: JobState, entry: Entry, number: int, nodes: tuple[NodeRef, ...]) -> JobState:
    attempt = 1 + len(state.attempts)

    def change(claim: Claim) -> Claim:
        # Only the first `launched` counts. After the close it is ignored, and its machines are terminated.
        if claim.launched is not None or claim.closed is not None:
            return claim
        return replace(claim, launched=nodes, launched_at=entry.at, attempt=attempt)

    return _change(state, number, change)


def _close(state: JobState, entry: Entry, event: Closed) -> JobState:
    def change(claim: Claim) -> Claim:
        if claim.closed is not None:
            return claim
        return replace(claim, closed=event, closed_at=entry.at, closed_reason=entry.reason)

    return _change(state, event.claim, change)


def _warned(state: JobState, entry: Entry, code: str, evidence: bool) -> JobState:
    if code in state.warned:
        return state
    evidence_codes = (*state.evidence_codes, code) if evidence else state.evidence_codes
    warned_at = {**state.warned_at, code: entry.at}
    return replace(state, warned=(*state.warned, code), warned_at=warned_at, evidence_codes=evidence_codes)


def _ended(state: JobState, entry: Entry, event: Ended) -> JobState:
    if state.ended is not None:
        return state
    if event.closing is not None:
        state = _close(state, entry, event.closing)
    for claim in state.open_claims:
        # An attempt that still waits at the end of the job never trains.
        leftover = Closed(claim=claim.number, outcome="abandoned", rule="job-ended")
        state = _close(state, replace(entry, reason="the job ended"), leftover)
    end = End(
        seq=entry.seq,
        at=entry.at,
        outcome=event.outcome,
        rule=event.rule,
        reason=entry.reason,
        claim=event.claim,
        exit_code=event.exit_code,
    )
    return replace(state, ended=end)


def _resumed(state: JobState, entry: Entry, chosen: str | None) -> JobState:
    if state.ended is None or state.removal_at is not None:
        return state
    released_at = state.stop.at if state.stop is not None else entry.at
    if state.ended.claim is not None:
        state = _change(state, state.ended.claim, lambda claim: replace(claim, released_at=released_at))
    if chosen is not None:
        state = replace(state, chosen_checkpoint=ChosenCheckpoint(key=chosen, seq=entry.seq))
    return replace(
        state,
        ended=None,
        stop=None,
        opened_at=entry.at,
        opened_seq=entry.seq,
        warned=(),
        warned_at={},
        evidence_codes=(),
    )
