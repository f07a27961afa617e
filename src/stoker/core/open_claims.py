"""What a claim that lives needs: to be launched, to be whole, to be heard, and to behave. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.core import budgets, health_rules
from stoker.core.budget_reservations import ask_for
from stoker.core.costs import span_s
from stoker.core.heartbeat_timeout import silent_etag
from stoker.core.job_decision import Look
from stoker.core.saved_work import nothing_saved_yet
from stoker.core.snapshot import Launch
from stoker.model.durations import span_text
from stoker.model.job_state import Claim
from stoker.model.log_entries import AttemptOutcome, Closed, Draining, Suspected, Warned
from stoker.model.observed import Known
from stoker.model.path_patterns import as_written

# What a rule finds fault with so long after the last word about it, and what began since, is another matter: it begins
# with a word again.
_WORD_COUNTS = timedelta(minutes=10)
_LONGEST_S = 1e8
# Ends of attempts that others follow, and that are no fault of the script.
_UNSAVED: frozenset[AttemptOutcome] = frozenset({"reclaimed", "lost", "infrastructure", "abandoned"})


@dataclass(frozen=True)
class _Word:
    """What was said last about something, when (None: nothing yet), what the next word of it would be called, and which
    of them it is."""

    code: str
    at: datetime | None
    next: str
    number: int


def tend(look: Look, claim: Claim) -> bool:
    """Do what an open claim needs next, of which the first is done."""
    if claim.launched is None:
        return _finish_launch(look, claim)
    if look.over(claim):
        return False  # Its close waits for an older attempt, or for facts that could not be read.
    if claim.drain is not None:
        look.waiting = f"asked to save and leave: {claim.drain.reason}"
        look.end_after_grace(claim, claim.drain.at, "it was asked to save and leave, and did not in time")
        return False
    return (
        _drain_broken_gang(look, claim)
        or _mind_silence(look, claim)
        or _mind_conduct(look, claim)
        or _warn_unsafe(look, claim)
    )


def _finish_launch(look: Look, claim: Claim) -> bool:
    """Anyone may finish anyone's claim; the token keeps it from being done twice, while the token lives."""
    if (look.now - claim.at).total_seconds() >= look.job.capabilities.token_lifetime_s:
        closed = Closed(claim=claim.number, outcome="abandoned", rule="token-expired", restart=True)
        return look.append(closed, "it was not launched in time, and a launch now might be a second one")
    kept_back = _left_behind(look, claim)
    if kept_back is not None:
        closed = Closed(claim=claim.number, outcome="abandoned", rule=kept_back.rule, restart=True)
        return look.append(closed, kept_back.reason)
    look.actions.append(Launch(look.state.job, claim.number, claim.reason))
    return False


def _left_behind(look: Look, claim: Claim) -> budgets.Held | None:
    """The budget that has too little left for a claim that no governor has finished: that would be a new launch.

    A governor that is launching it at this moment gives back what comes too late. What is not known closes nothing.
    """
    if (look.now - claim.at).total_seconds() < look.policy.unfinished_s or not isinstance(look.job.books, Known):
        return None
    ask = ask_for(look.bounds, look.state, claim.offering, look.now, claim)
    found = budgets.judge(look.policy.house, look.subject, look.job.books, look.now, ask)
    return next((each for each in found if isinstance(each, budgets.Held)), None)


def _drain_broken_gang(look: Look, claim: Claim) -> bool:
    """One rank gone ends all its ranks, saving first if they train."""
    if claim.nodes == 1:
        return False
    for rank in range(claim.nodes):
        left = look.job.exit_of(claim, rank)
        if left is None and look.job.exit_unread(claim, rank):
            continue  # It may have finished.
        if left is None and look.job.rank_gone(claim, rank):
            reason = f"node {rank} is gone: the other nodes save, and the job resumes with all of them"
            return look.append(Draining(claim=claim.number, outcome="lost", rule="gang"), reason)
        if left is not None and left.outcome != "succeeded" and look.job.unnoticed(claim):
            reason = f"node {rank} left ({left.why}): the other nodes save"
            return look.append(Draining(claim=claim.number, outcome="infrastructure", rule="gang"), reason)
    return False


def _mind_silence(look: Look, claim: Claim) -> bool:
    """Silence takes two steps: write down what the heartbeat looked like; end the machine if it still looks so."""
    for rank in range(claim.nodes):
        etag = silent_etag(look.job, claim, rank, look.now)
        if etag is None:
            continue
        beat = look.job.heartbeat_of(claim, rank)
        limit = timedelta(seconds=look.job.silence_s(beat.value if beat is not None else None))
        if look.blind and etag:  # One that was never heard has nothing to lose.
            look.waiting = (
                "nodes are silent, and the silence may be this governor's own trouble with the store: nothing is ended"
            )
            continue
        suspicion = claim.suspicions.get(str(rank))
        if suspicion is None or suspicion.etag != etag:
            reason = f"node {rank} has sent no heartbeat for {span_text(limit.total_seconds())}"
            return look.append(Suspected(claim=claim.number, rank=rank, etag=etag), reason)
        if look.now - suspicion.at >= limit:
            look.end_rank(claim, rank, "its machine fell silent, and stayed silent")
        else:
            look.wakes.append(suspicion.at + limit)
    return False


def _mind_conduct(look: Look, claim: Claim) -> bool:
    """A job that stands still, wastes its machines or leads nowhere: a word first, then what the rule says."""
    for found in health_rules.findings(look.job, claim, look.policy.house, look.subject, look.now):
        only_told = found.then == "warn" or not found.counts
        word = _word_of(look, claim, found.rule, audit=not found.counts)
        if word.at is None or not (only_told or _is_about(look, word, found)):
            return look.append(Warned(code=word.next, evidence=found.evidence), found.reason + _after(look, found))
        if only_told:
            continue
        due = word.at + timedelta(seconds=found.warn_before_s)
        if look.now < due:
            look.wakes.append(due)
            continue
        if not (_has_evidence(look, claim, word.code) if found.evidence else _heard_since(look, claim, word.at)):
            continue
        outcome: AttemptOutcome = "limit" if found.then == "stop" else "infrastructure"
        return look.append(Draining(claim=claim.number, outcome=outcome, rule=found.rule), found.reason)
    return False


def _after(look: Look, found: health_rules.Sighting) -> str:
    """What follows the reason of a warning: when it is acted on, and where to look."""
    acts = found.counts and found.then != "warn" and found.warn_before_s > 0
    due = f"; unless that changes, it is asked to leave in {span_text(found.warn_before_s)}" if acts else ""
    shown = f"; `stoker logs {look.state.job} --evidence` shows what it does" if found.evidence else ""
    return due + shown


def _word_of(look: Look, claim: Claim, rule: str, *, audit: bool) -> _Word:
    """The newest word about this of this attempt. What a rule said while it was only watched is another."""
    code, number = f"{rule}:{'audit:' if audit else ''}{claim.number}", 1
    while (following := f"{rule}:{number + 1}:{claim.number}") in look.state.warned and not audit:
        code, number = following, number + 1
    at = look.state.warned_at.get(code)
    return _Word(code, at, code if at is None else following, number)


def _is_about(look: Look, word: _Word, found: health_rules.Sighting) -> bool:
    """Whether the last word was about the same matter: said lately, or since it began. What has no beginning that
    anybody knows, such as a number, was said twice by then: whoever governs may look now and then only."""
    assert word.at is not None
    lasts = timedelta(seconds=min(max(0.0, found.lasts_s), _LONGEST_S))
    # A warning that is to come in time is about this standstill, and not about one before it.
    least = timedelta(0) if found.warn_before_s > 0 else _WORD_COUNTS
    return look.now - word.at <= max(least, lasts) or (not found.evidence and word.number > 1)


def _heard_since(look: Look, claim: Claim, at: datetime) -> bool:
    """Whether what a rule finds fault with rests on words that are newer than this: one odd number ends nothing. Who
    has left says nothing more."""
    there = [rank for rank in range(claim.nodes) if look.job.exit_of(claim, rank) is None]
    beats = [look.job.heartbeat_of(claim, rank) for rank in there]
    return all(beat.modified > at for beat in beats if beat is not None)


def _has_evidence(look: Look, claim: Claim, code: str) -> bool:
    """Whether every rank has collected what it could, or had its time for that."""
    deadline = look.state.warned_at[code] + timedelta(seconds=look.policy.evidence_s)
    beats = [look.job.heartbeat_of(claim, rank) for rank in range(claim.nodes)]
    if all(beat is not None and code in beat.value.evidence for beat in beats) or look.now >= deadline:
        return True
    look.wakes.append(deadline)
    return False


def _warn_unsafe(look: Look, claim: Claim) -> bool:
    """A job that commits no checkpoint would lose its work at the next reclaim: say so, once an attempt."""
    code = f"no-checkpoint:{claim.number}"
    found = look.job.heartbeat_of(claim, 0)
    if code in look.state.warned or found is None or found.value.checkpoint is not None:
        return False
    beat, folder = found.value, as_written(look.job.spec.checkpoints.dir)
    # Two heartbeats more: the agent looks for saves elsewhere first.
    empty = beat.restored_from is None and beat.checkpoint_files == 0
    overdue = beat.trained_s >= look.policy.empty_folder_s + 2 * span_s(beat.interval_s)
    if empty and overdue:
        return look.append(Warned(code=code), nothing_saved_yet(folder, beat.trained_s, beat.saves_elsewhere))
    if not claim.offering.spot or beat.trained_s < look.policy.checkpoint_warning_s:
        return False
    lost = "everything" if beat.restored_from is None else "what was trained since its start"
    reason = (
        f"no checkpoint for {span_text(look.policy.checkpoint_warning_s)} on a spot machine: "
        f"a reclaim would lose {lost}; the folder watched is {folder}"
    )
    return look.append(Warned(code=code), reason)


def warn_unsaved(look: Look) -> bool:
    """Warn after an attempt that ended by no fault of the script and left no checkpoint, unless that was warned of
    before: the next attempt starts from the beginning."""
    claim = next((claim for claim in reversed(look.state.attempts) if claim.closed), None)
    closed = claim.closed if claim is not None else None
    if claim is None or closed is None or closed.outcome not in _UNSAVED or closed.trained_s <= 0.0:
        return False
    code = f"no-checkpoint:{closed.claim}"
    if closed.checkpoint is not None or closed.restored_from is not None or code in look.state.warned:
        return False
    reason = f"attempt {claim.attempt}: {claim.closed_reason}; the next attempt starts from the beginning"
    return look.append(Warned(code=code), reason)
