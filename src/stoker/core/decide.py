"""The governor's decision: pure, from what was observed to what to do. No clock, no I/O, no randomness.

At most one entry a job is appended for each look at it (a claim is followed by its launch). After an append the job is
observed and decided on again, so every decision rests on the newest log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stoker.core import auditing, budgets, cases, gate, governance, hold, limits, orphans, retiring, retry, watching
from stoker.core.costs import span_s
from stoker.core.placement import Chosen, Dry, Impossible, place, waiting_since, wants_claim
from stoker.core.policy import Policy
from stoker.core.silence import mass_silence, silent_etag
from stoker.core.snapshot import Action, Append, JobSnapshot, Launch, Plan, Snapshot, Terminate, Unmark
from stoker.core.spans import span_text
from stoker.errors import STUMBLES, in_words
from stoker.fold import Claim
from stoker.model import (
    PROTOCOL_VERSION,
    AttemptOutcome,
    Claimed,
    Closed,
    Draining,
    Ended,
    Event,
    Known,
    Offering,
    Outcome,
    Suspected,
    Unknown,
    Warned,
)

# Nobody sleeps longer than a day without another look.
_FARTHEST_WAKE_S = 86400.0
# What a rule finds fault with so long after the last word about it is another matter: it begins with a word again.
_WORD_COUNTS = timedelta(minutes=10)
# A price that nobody knows may be known when it is asked for again.
_PRICES_CHANGE_S = 600.0


def decide(snapshot: Snapshot, policy: Policy, now: datetime) -> Plan:
    """What to do about everything that was observed. The order of the listings does not matter."""
    # Who looks at a few jobs only cannot tell whether silence is theirs or everybody's: a whole pass judges it.
    blind = snapshot.partial or mass_silence(snapshot, policy, now)
    actions: list[Action] = []
    wakes: list[datetime] = []
    waiting: dict[str, str] = {}
    problems: dict[str, str] = {}
    for job in sorted(snapshot.jobs, key=lambda job: job.state.job):
        try:
            plan = decide_job(job, policy, now, blind=blind)
        except STUMBLES as error:
            # Whatever is wrong with one job, the others are governed.
            problems[job.state.job] = in_words(error)
            continue
        actions += plan.actions
        waiting |= plan.waiting
        if plan.wake_at is not None:
            wakes.append(plan.wake_at)
    actions += orphans.strays(snapshot, now)
    return Plan(actions=tuple(actions), wake_at=min(wakes, default=None), waiting=waiting, problems=problems)


def decide_job(job: JobSnapshot, policy: Policy, now: datetime, *, blind: bool = False) -> Plan:
    """What to do about one job. `blind`: silence proves nothing (so many are silent, or too few were looked at)."""
    # Who is blind cannot tell a machine that its cloud has not heard of from one that nobody hears.
    decision = _Decision(job if blind else job.settled(now), policy, now, blind)
    decision.run()
    return Plan(
        actions=tuple(decision.actions),
        wake_at=min(decision.wakes, default=None),
        waiting={job.state.job: decision.waiting} if decision.waiting else {},
    )


@dataclass(frozen=True)
class _Word:
    """What was said last about something, when (None: nothing yet), and what the next word of it would be called."""

    code: str
    at: datetime | None
    next: str


class _Decision:
    """One look at one job. Methods that return bool say whether an entry was decided on: then nothing else is."""

    def __init__(self, job: JobSnapshot, policy: Policy, now: datetime, blind: bool) -> None:
        self.job = job
        self.state = job.state
        self.policy = policy
        self.now = now
        self.blind = blind
        used = limits.used_before(job.state, job.spec, now)
        self.subject = governance.Subject(job.spec, now.date(), job.state.job, used)
        self.bounds = governance.bounded(policy.house, self.subject)
        self.actions: list[Action] = []
        self.wakes: list[datetime] = []
        self.waiting = ""

    def run(self) -> None:
        if self.state.min_version > PROTOCOL_VERSION:
            self.waiting = "a newer Stoker governs this job; update this one"
            return
        self.actions += orphans.sweep(self._bounded_job, self.now)
        if self.state.ended is not None:
            self._retire()
        elif self._close_what_is_over():
            pass
        elif self.state.stop is not None:
            self._stop()
        elif self._enforce_limits() or self._tell_of_limits():
            pass
        elif not any(self._tend(claim) for claim in self.state.open_claims) and not self._tell_of_budgets():
            self._claim_next()

    # ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _retire(self) -> None:
        """Forget an ended job once its machines are positively gone."""
        found = retiring.retire(self._bounded_job, self.policy, self.now)
        self.waiting = found.waiting
        if found.wake_at is not None:
            self.wakes.append(found.wake_at)
        if found.markers:
            self.actions.append(Unmark(self.state.job, found.markers, "ended, and every machine is gone"))

    def _over(self, claim: Claim) -> bool:
        """Whether every rank has exited or is gone. Both are facts that cannot reverse."""
        return claim.launched is not None and all(
            self.job.exit_of(claim, rank) is not None or self.job.rank_gone(claim, rank) for rank in range(claim.nodes)
        )

    def _close_what_is_over(self) -> bool:
        """Close the oldest attempt that is over; with the job, if its verdict is the job's end."""
        for claim in self.state.open_claims:
            if not self._over(claim) or not cases.facts_complete(self.job, claim):
                continue
            diagnoses = governance.that_count(self.policy.house, self.subject, "failure")
            by = self.bounds.named("resumes") if "resumes" in self.bounds.by_rule else ""
            case = cases.case_of(self._bounded_job, claim, self.policy, diagnoses, by)
            verdict = retry.verdict(case)
            if self._tell(auditing.of_verdict(self._bounded_job, claim, self.policy, self._bounded_subject, verdict)):
                return True
            if verdict.outcome == "failed" and not verdict.restart and self._cannot_read_rules():
                continue  # One of them may know better.
            closed = retry.closing(case, verdict)
            if verdict.restart or verdict.outcome == "stopped":
                return self._append(closed, verdict.reason)
            if any(older.number < claim.number for older in self.state.open_claims):
                # An older attempt may still be saving: the end of the job waits for it, and is then judged anew.
                continue
            if self._released_another(claim):
                # The exits that are judged here have let the next attempt start already. It is the job now.
                return self._append(replace(closed, restart=True), verdict.reason)
            if verdict.rule in hold.HELD_RULES and self.job.spec.retry.hold_on_failure_s > 0:
                closed = replace(closed, hold_s=hold.allowed_s(self.state, claim, self.bounds.spec, self.now))
            outcome: Outcome = "succeeded" if verdict.outcome == "succeeded" else "failed"
            ended = Ended(
                outcome=outcome,
                rule=verdict.rule,
                claim=claim.number,
                exit_code=0 if outcome == "succeeded" else closed.exit_code,
                closing=closed,
            )
            return self._append(ended, verdict.reason)
        return False

    def _released_another(self, claim: Claim) -> bool:
        """Whether a younger attempt may be training by now, let go by this one's exits alone."""
        exits = tuple(self.job.exit_of(claim, rank) for rank in range(claim.nodes))
        return gate.left_for_good(exits) and any(
            other.number > claim.number and other.launched for other in self.state.open_claims
        )

    def _stop(self) -> None:
        """A person asked for the end: let what trains save, drop what never came, then end."""
        stop = self.state.stop
        assert stop is not None
        for claim in self.state.open_claims:
            if claim.launched is None:
                # A launch that comes late finds its claim closed: its agents never train, and the sweep ends them.
                self._append(Closed(claim=claim.number, outcome="stopped", rule="stop"), f"stopped by {stop.by}")
                return
        if not self.state.open_claims:
            last = self.state.last_claim
            number = last.number if last and last.attempt is not None else None
            self._append(Ended(outcome="stopped", rule="stop", claim=number), stop.reason or f"stopped by {stop.by}")
            return
        self.waiting = "stopping: waiting for the last save"
        for claim in self.state.open_claims:
            if self._never_spoke(claim):
                # Whatever it does from here on, it reads the log before it trains: there is nothing to save.
                for rank in range(claim.nodes):
                    self._end_rank(claim, rank, "it was asked to stop before its agents came up")
                continue
            self._end_after_grace(claim, stop.at, "it was asked to stop and did not leave in time")

    def _never_spoke(self, claim: Claim) -> bool:
        """Whether no rank's agent is known to have said anything, ever. What could not be read is no silence."""
        told = self.job.facts.get(claim.number, ())
        return len(told) == claim.nodes and all(
            facts.heartbeat == Known(None) and facts.exit == Known(None) for facts in told
        )

    # ── Bounds ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _enforce_limits(self) -> bool:
        found = self._reached(self.bounds, self._save_s)
        if found is None:
            return False
        if not self.state.open_claims:
            return self._append(Ended(outcome="failed", rule=found.rule, claim=self._last_attempt()), found.reason)
        for claim in self.state.open_claims:
            if claim.drain is None and claim.launched is not None:
                return self._append(Draining(claim=claim.number, outcome="limit", rule=found.rule), found.reason)
            if claim.launched is None:
                return self._append(Closed(claim=claim.number, outcome="limit", rule=found.rule), found.reason)
        return False

    def _tell_of_limits(self) -> bool:
        """Tell, once for each rule which only warns or is only watched, that its bound is reached."""
        for rule, bounds in auditing.watched(self.policy.house, self._bounded_subject, "max_runtime_s", "max_cost"):
            # Who warns ends nothing, so nothing is set aside for a last save.
            found = self._reached(bounds, 0.0 if rule.action == "warn" else self._save_s) if bounds.by_rule else None
            if found is not None and found.rule not in self.state.warned and found.rule.startswith(governance.PREFIX):
                watched = "; audit: nothing is done" if rule.audit else ""
                return self._append(Warned(code=found.rule), f"{found.reason}{watched}")
        return False

    def _reached(self, bounds: governance.Bounded, save_s: float) -> limits.Reached | None:
        found = limits.reached(self.job, bounds, self.now, save_s)
        if isinstance(found, limits.Reached):
            return found
        if found.next_s is not None:
            self._wake_in(found.next_s)
        return None

    # ── Claims that live ──────────────────────────────────────────────────────────────────────────────────────────────

    def _tend(self, claim: Claim) -> bool:
        if claim.launched is None:
            return self._finish_launch(claim)
        if self._over(claim):
            return False  # Its close waits for an older attempt, or for facts that could not be read.
        if claim.drain is not None:
            self.waiting = f"asked to save and leave: {claim.drain.reason}"
            self._end_after_grace(claim, claim.drain.at, "it was asked to save and leave, and did not in time")
            return False
        return (
            self._drain_broken_gang(claim)
            or self._mind_silence(claim)
            or self._mind_conduct(claim)
            or self._warn_unsafe(claim)
        )

    def _finish_launch(self, claim: Claim) -> bool:
        """Anyone may finish anyone's claim; the token keeps it from being done twice, while the token lives."""
        if (self.now - claim.at).total_seconds() >= self.job.capabilities.token_lifetime_s:
            closed = Closed(claim=claim.number, outcome="abandoned", rule="token-expired", restart=True)
            return self._append(closed, "too late to launch it safely")
        kept_back = self._left_behind(claim)
        if kept_back is not None:
            closed = Closed(claim=claim.number, outcome="abandoned", rule=kept_back.rule, restart=True)
            return self._append(closed, kept_back.reason)
        self.actions.append(Launch(self.state.job, claim.number, claim.reason))
        return False

    def _left_behind(self, claim: Claim) -> budgets.Held | None:
        """The budget that was spent since the claim was made, where nobody has finished it: that would be a new launch.

        Whoever is launching it at this moment gives back what comes too late. What is not known closes nothing.
        """
        if (self.now - claim.at).total_seconds() < self.policy.unfinished_s or not isinstance(self.job.books, Known):
            return None
        found = budgets.judge(self.policy.house, self.subject, self.job.books, self.now)
        return next((each for each in found if isinstance(each, budgets.Held)), None)

    def _drain_broken_gang(self, claim: Claim) -> bool:
        """One rank gone ends all its ranks, saving first if they train."""
        if claim.nodes == 1:
            return False
        for rank in range(claim.nodes):
            left = self.job.exit_of(claim, rank)
            if left is None and self.job.exit_unread(claim, rank):
                continue  # It may have finished.
            if left is None and self.job.rank_gone(claim, rank):
                reason = f"rank {rank} is gone; the others save and the whole resumes"
                return self._append(Draining(claim=claim.number, outcome="lost", rule="gang"), reason)
            if left is not None and left.outcome != "succeeded" and self.job.unnoticed(claim):
                reason = f"rank {rank} left ({left.why}); the others save"
                return self._append(Draining(claim=claim.number, outcome="infrastructure", rule="gang"), reason)
        return False

    def _mind_silence(self, claim: Claim) -> bool:
        """Silence takes two steps: write down what the heartbeat looked like; end the machine if it still looks so."""
        limit = timedelta(seconds=self.job.capabilities.silence_s)
        for rank in range(claim.nodes):
            etag = silent_etag(self.job, claim, rank, self.now)
            if etag is None:
                continue
            if self.blind and etag:  # One that was never heard has nothing to lose.
                self.waiting = (
                    "nodes are silent, but not known to be alone in that: it may be our blindness; nothing is touched"
                )
                continue
            suspicion = claim.suspicions.get(str(rank))
            if suspicion is None or suspicion.etag != etag:
                reason = f"rank {rank} has not been heard of for {span_text(limit.total_seconds())}"
                return self._append(Suspected(claim=claim.number, rank=rank, etag=etag), reason)
            if self.now - suspicion.at >= limit:
                self._end_rank(claim, rank, "its agent fell silent, and stayed silent")
            else:
                self.wakes.append(suspicion.at + limit)
        return False

    def _mind_conduct(self, claim: Claim) -> bool:
        """A job that stands still, wastes its machines or leads nowhere: a word first, then what the rule says."""
        for found in watching.findings(self.job, claim, self.policy.house, self.subject, self.now):
            only_told = found.then == "warn" or not found.counts
            word = self._word_of(claim, found.rule, audit=not found.counts)
            if word.at is None or (not only_told and self.now - word.at > _WORD_COUNTS):
                shown = f"; `stoker logs {self.state.job} --evidence` shows what it does" if found.evidence else ""
                return self._append(Warned(code=word.next, evidence=found.evidence), found.reason + shown)
            if only_told:
                continue
            if not (self._has_evidence(claim, word.code) if found.evidence else self._heard_since(claim, word.at)):
                continue
            outcome: AttemptOutcome = "limit" if found.then == "stop" else "infrastructure"
            return self._append(Draining(claim=claim.number, outcome=outcome, rule=found.rule), found.reason)
        return False

    def _word_of(self, claim: Claim, rule: str, *, audit: bool) -> _Word:
        """The newest word about this of this attempt. What a rule said while it was only watched is another."""
        code, number = f"{rule}:{'audit:' if audit else ''}{claim.number}", 1
        while (following := f"{rule}:{number + 1}:{claim.number}") in self.state.warned and not audit:
            code, number = following, number + 1
        at = self.state.warned_at.get(code)
        return _Word(code, at, code if at is None else following)

    def _heard_since(self, claim: Claim, at: datetime) -> bool:
        """Whether what a rule finds fault with rests on words that are newer than this: one odd number ends nothing."""
        beats = [self.job.heartbeat_of(claim, rank) for rank in range(claim.nodes)]
        return all(beat.modified > at for beat in beats if beat is not None)

    def _has_evidence(self, claim: Claim, code: str) -> bool:
        """Whether every rank has collected what it could, or had its time for that."""
        deadline = self.state.warned_at[code] + timedelta(seconds=self.policy.evidence_s)
        beats = [self.job.heartbeat_of(claim, rank) for rank in range(claim.nodes)]
        if all(beat is not None and code in beat.value.evidence for beat in beats) or self.now >= deadline:
            return True
        self.wakes.append(deadline)
        return False

    def _warn_unsafe(self, claim: Claim) -> bool:
        """A spot job that commits no checkpoint would lose everything at the next reclaim: say so, once an attempt."""
        code = f"no-checkpoint:{claim.number}"
        beat = self.job.heartbeat_of(claim, 0)
        if not claim.offering.spot or code in self.state.warned or beat is None:
            return False
        if beat.value.trained_s < self.policy.checkpoint_warning_s or beat.value.checkpoint is not None:
            return False
        reason = (
            f"no checkpoint for {span_text(self.policy.checkpoint_warning_s)} on a spot machine: "
            f"a reclaim would lose everything; the folder watched is {self.job.spec.checkpoints.dir}"
        )
        return self._append(Warned(code=code), reason)

    # ── The next claim ────────────────────────────────────────────────────────────────────────────────────────────────

    def _claim_next(self) -> None:
        reason = wants_claim(self.job)
        if reason is None:
            return
        if self._cannot_read_rules():
            return
        alone = not self.state.open_claims
        if alone and (self._waited_too_long() or self._audit_wait()):
            return
        match self.job.offerings:
            case None:
                return
            case Unknown(error=error):
                self.waiting = f"the provider's offerings are unknown: {error}"
                return
            case Known(value=offerings):
                pass
        if self._heed_rules(offerings) or self._kept_back():
            return
        may = governance.allowed(self.policy.house, self.subject, offerings)
        often = governance.taken_too_often(self.policy.house, self.subject, may, self.job.market, self.now)
        shunned = {offering.key: str(finding) for offering, finding in often if finding.refuses}
        job, whose = self._bounded_job, self.bounds.named("spot_wait")
        most, used = self.bounds.named("max_cost"), self.bounds.used_of("max_cost")
        by = self.bounds.named("on_demand_after") if "on_demand_after" in self.bounds.by_rule else ""
        found = place(
            job, may, self.policy, self.now, bound=whose, cost_bound=most, used=used, given_up_by=by, shunned=shunned
        )
        match found:
            case Chosen(offering=offering, reason=why):
                told = [finding for one, finding in often if one == offering]
                audited = auditing.of_place(job, may, self.policy, self._bounded_subject, self.now, offering, shunned)
                if self._tell((*told, *audited)):
                    return
                seq = self.state.seq + 1
                noticed = None if alone else self.state.open_claims[0].number
                event = Claimed(offering=offering, nodes=self.job.spec.nodes, successor_of=noticed)
                self._append(event, f"{reason}; {why}")
                self.actions.append(Launch(self.state.job, seq, reason))
            case Dry(until=until, reason=why):
                self.waiting = why
                self.wakes.append(until)
            case Impossible(reason=why, bound=True) if alone:
                ended = Ended(outcome="failed", rule=self.bounds.rule("max_cost"), claim=self._last_attempt())
                self._append(ended, why)
            case Impossible(reason=why, unpriced=unpriced):
                self.waiting = why
                if unpriced and self.state.attempts:
                    # What nobody knows today never ends what has been paid for already.
                    self._wake_in(_PRICES_CHANGE_S)
                elif alone:
                    self._append(Ended(outcome="failed", rule="no-offering", claim=self._last_attempt()), why)

    def _cannot_read_rules(self) -> bool:
        if self.policy.unread:
            self.waiting = f"the rules of the house cannot be read: {self.policy.unread}"
        return bool(self.policy.unread)

    def _heed_rules(self, offerings: tuple[Offering, ...]) -> bool:
        """Refuse what the house refuses, whoever submitted it, and tell what it warns of, once."""
        fresh = not any(claim.attempt is not None for claim in self.state.since_opened())
        found = governance.broken(self.policy.house, self.subject, offerings)
        for finding in found:
            if finding.refuses and not self.state.open_claims and (fresh or finding.rule.about_machines):
                ended = Ended(outcome="failed", rule=finding.code, claim=self._last_attempt())
                return self._append(ended, str(finding))
        return fresh and self._tell(found)

    def _tell(self, found: Iterable[governance.Finding]) -> bool:
        """Once for each rule."""
        for finding in found:
            if finding.code not in self.state.warned:
                return self._append(Warned(code=finding.code), str(finding))
        return False

    def _tell_of_budgets(self) -> bool:
        """Tell what this job is to tell of budgets that are nearly spent, on behalf of all of their jobs."""
        told = budgets.heralded(self.policy.house, self.state.job, self.job.spec.tags, self.job.books, self.now)
        return any(self._warn(word) for word in told)

    def _kept_back(self) -> bool:
        """Whether a budget keeps the next claim back: it waits, or was never to begin."""
        found = budgets.judge(self.policy.house, self.subject, self.job.books, self.now)
        if any(isinstance(each, budgets.Word) and self._warn(each) for each in found):
            return True
        held = [each for each in found if isinstance(each, budgets.Held)]
        fresh = not any(claim.attempt is not None for claim in self.state.since_opened())
        for each in held:
            if each.refuses and fresh and not self.state.open_claims:
                return self._append(Ended(outcome="failed", rule=each.rule, claim=self._last_attempt()), each.reason)
        for each in held[:1]:
            self.waiting = each.waits or each.reason
        self.wakes += [each.until for each in held if each.until is not None]
        return bool(held)

    def _warn(self, word: budgets.Word) -> bool:
        return word.code not in self.state.warned and self._append(Warned(code=word.code), word.reason)

    def _waited_too_long(self) -> bool:
        longest = self.bounds.spec.limits.max_wait_s
        if longest is None:
            return False
        left = longest - self._waited_s
        if left > 0:
            self._wake_in(left)
            return False
        reason = f"{self.bounds.named('max_wait')} ({span_text(longest)} without a machine) is reached"
        ended = Ended(outcome="failed", rule=self.bounds.rule("max_wait"), claim=self._last_attempt())
        return self._append(ended, reason)

    def _audit_wait(self) -> bool:
        """Tell, once for each rule which is only watched, that it would have ended the waiting."""
        for _, bounds in auditing.watched(self.policy.house, self._bounded_subject, "max_wait_s"):
            most = {"max_wait": bounds.spec.limits.max_wait_s, "spot_wait": bounds.spec.retry.spot_wait_s}
            for field, what in (("max_wait", "is reached"), ("spot_wait", "is over: on-demand will do")):
                longest, code = most[field], bounds.rule(field)
                if field not in bounds.by_rule or longest is None or code in self.state.warned:
                    continue
                if self._waited_s >= longest:
                    told = f"{bounds.named(field)} ({span_text(longest)} without a machine) {what}"
                    return self._append(Warned(code=code), f"{told}; audit: nothing is done")
        return False

    # ── Small steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _append(self, event: Event, reason: str) -> bool:
        self.actions.append(Append(self.state.job, self.state.seq + 1, event, reason))
        return True

    def _wake_in(self, seconds: float) -> None:
        # Bounds are people's numbers: some reach past the end of the calendar.
        self.wakes.append(self.now + timedelta(seconds=min(seconds, _FARTHEST_WAKE_S)))

    @property
    def _bounded_job(self) -> JobSnapshot:
        return replace(self.job, spec=self.bounds.spec)

    @property
    def _bounded_subject(self) -> governance.Subject:
        return replace(self.subject, spec=self.bounds.spec)

    @property
    def _waited_s(self) -> float:
        """How long the job has been without machines. Of use only where it has none."""
        return (self.now - waiting_since(self.state)).total_seconds()

    @property
    def _save_s(self) -> float:
        """How long ranks may take to save and leave, once they were asked to."""
        return span_s(self.job.spec.checkpoints.grace_s) + self.policy.leave_s

    def _end_after_grace(self, claim: Claim, asked_at: datetime, reason: str) -> None:
        deadline = asked_at + timedelta(seconds=self._save_s)
        for rank in range(claim.nodes):
            # Under a hard notice all ranks save until its deadline; the cloud keeps it, nobody else cuts that short.
            notice = self.job.stamped_notice_of(claim, rank)
            if notice is not None and notice.value.hard:
                grace_s = min(span_s(notice.value.grace_s), self.policy.longest_notice_s)
                deadline = max(deadline, notice.modified + timedelta(seconds=grace_s))
        if self.now < deadline:
            self.wakes.append(deadline)
            return
        for rank in range(claim.nodes):
            # One whose exit could not be read may have left, or be making its last words durable.
            if self.job.exit_of(claim, rank) is None and not self.job.exit_unread(claim, rank):
                self._end_rank(claim, rank, reason)

    def _end_rank(self, claim: Claim, rank: int, reason: str) -> None:
        instance = claim.instance(rank)
        if instance is not None and not self.job.is_gone(instance):
            offering = claim.offering
            action = Terminate(self.state.job, instance, offering.provider, reason, offering.region)
            if action not in self.actions:
                self.actions.append(action)

    def _last_attempt(self) -> int | None:
        attempts = self.state.attempts
        return attempts[-1].number if attempts else None
