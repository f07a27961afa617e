"""One look at one job: what is known of it, and what was decided on so far. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from stoker.core import budgets, policy_rules
from stoker.core.costs import span_s
from stoker.core.governor_settings import Policy
from stoker.core.place_capacity import Rooms
from stoker.core.prior_usage import used_before
from stoker.core.snapshot import Action, Append, JobSnapshot, Terminate
from stoker.model.job_state import Claim
from stoker.model.log_entries import Event, Warned

# Nobody sleeps longer than a day without another look.
_FARTHEST_WAKE_S = 86400.0


class Look:
    """Functions that take one and answer bool say whether an entry was decided on: then nothing else is."""

    def __init__(self, job: JobSnapshot, policy: Policy, now: datetime, blind: bool, rooms: Rooms) -> None:
        self.job = job
        self.state = job.state
        self.policy = policy
        self.now = now
        self.blind = blind
        self.rooms = rooms
        used = used_before(job.state, job.spec, now)
        self.subject = policy_rules.Subject(job.spec, now.date(), job.state.job, used)
        self.bounds = policy_rules.bounded(policy.house, self.subject)
        self.actions: list[Action] = []
        self.wakes: list[datetime] = []
        self.waiting = ""

    def over(self, claim: Claim) -> bool:
        """Whether every rank has exited or is gone. Both are facts that cannot reverse."""
        return claim.launched is not None and all(
            self.job.exit_of(claim, rank) is not None or self.job.rank_gone(claim, rank) for rank in range(claim.nodes)
        )

    def cannot_read_rules(self) -> bool:
        if self.policy.unread:
            self.waiting = f"the policy cannot be read: {self.policy.unread}"
        return bool(self.policy.unread)

    def tell(self, found: Iterable[policy_rules.Finding]) -> bool:
        """Once for each rule."""
        for finding in found:
            if finding.code not in self.state.warned:
                return self.append(Warned(code=finding.code), str(finding))
        return False

    def warn(self, word: budgets.Word) -> bool:
        return word.code not in self.state.warned and self.append(Warned(code=word.code), word.reason)

    def append(self, event: Event, reason: str) -> bool:
        """Decide on an entry. After it, nothing else is."""
        self.actions.append(Append(self.state.job, self.state.seq + 1, event, reason))
        return True

    def wake_in(self, seconds: float) -> None:
        # Bounds are people's numbers: some reach past the end of the calendar.
        self.wakes.append(self.now + timedelta(seconds=min(seconds, _FARTHEST_WAKE_S)))

    @property
    def bounded_job(self) -> JobSnapshot:
        return replace(self.job, spec=self.bounds.spec)

    @property
    def bounded_subject(self) -> policy_rules.Subject:
        return replace(self.subject, spec=self.bounds.spec)

    @property
    def save_s(self) -> float:
        """How long ranks may take to save and leave, once they were asked to."""
        return span_s(self.job.spec.checkpoints.grace_s) + self.policy.leave_s

    def end_after_grace(self, claim: Claim, asked_at: datetime, reason: str) -> None:
        deadline = asked_at + timedelta(seconds=self.save_s)
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
                self.end_rank(claim, rank, reason)

    def end_rank(self, claim: Claim, rank: int, reason: str) -> None:
        instance = claim.instance(rank)
        if instance is not None and not self.job.is_gone(instance):
            offering = claim.offering
            action = Terminate(self.state.job, instance, offering.provider, reason, offering.region)
            if action not in self.actions:
                self.actions.append(action)

    def last_attempt(self) -> int | None:
        attempts = self.state.attempts
        return attempts[-1].number if attempts else None
