"""One decision about one job: its inputs, and the actions planned so far. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from stoker.core import budget_verdict, policy_rules
from stoker.core.costs import valid_span_s
from stoker.core.governor_settings import GovernorSettings
from stoker.core.place_capacity import CapacityQueue
from stoker.core.prior_usage import used_before
from stoker.core.snapshot import Action, Append, JobSnapshot
from stoker.model.job_state import Claim
from stoker.model.log_entries import Event, Warned

# The governor decides on a waiting job again after a day at the latest.
_FARTHEST_WAKE_S = 86400.0


class JobDecision:
    """The state of one decision about one job: what was observed, and what is planned so far.

    Rules are functions that take it. One that returns a bool returns True after it planned a log entry; nothing is
    planned after that."""

    def __init__(
        self,
        job: JobSnapshot,
        settings: GovernorSettings,
        now: datetime,
        silence_inconclusive: bool,
        capacity: CapacityQueue,
    ) -> None:
        self.job = job
        self.state = job.state
        self.settings = settings
        self.now = now
        self.silence_inconclusive = silence_inconclusive
        self.capacity = capacity
        used = used_before(job.state, job.spec, now)
        self.subject = policy_rules.Subject(job.spec, now.date(), job.state.job, used)
        self.bounds = policy_rules.effective_limits(settings.policy, self.subject)
        self.actions: list[Action] = []
        self.wakes: list[datetime] = []
        self.waiting = ""

    def is_over(self, claim: Claim) -> bool:
        """Return whether every rank has exited or is gone. Neither fact can reverse."""
        return claim.launched is not None and all(
            self.job.exit_of(claim, rank) is not None or self.job.rank_gone(claim, rank) for rank in range(claim.nodes)
        )

    def policy_is_unreadable(self) -> bool:
        """Return whether the policy could not be read, and record that the job waits for it."""
        if self.settings.policy_error:
            self.waiting = f"the policy cannot be read: {self.settings.policy_error}"
        return bool(self.settings.policy_error)

    def warn_of_findings(self, found: Iterable[policy_rules.RuleFinding]) -> bool:
        """Warn of the first finding whose rule was not warned of yet."""
        for finding in found:
            if finding.code not in self.state.warned:
                return self.append(Warned(code=finding.code), str(finding))
        return False

    def warn(self, warning: budget_verdict.BudgetWarning) -> bool:
        return warning.code not in self.state.warned and self.append(Warned(code=warning.code), warning.reason)

    def append(self, event: Event, reason: str) -> bool:
        """Plan a log entry. Nothing else is planned after it."""
        self.actions.append(Append(self.state.job, self.state.seq + 1, event, reason))
        return True

    def wake_in(self, seconds: float) -> None:
        # Limits are written by people: some reach past the last date that Python can represent.
        self.wakes.append(self.now + timedelta(seconds=min(seconds, _FARTHEST_WAKE_S)))

    @property
    def bounded_job(self) -> JobSnapshot:
        return replace(self.job, spec=self.bounds.spec)

    @property
    def save_s(self) -> float:
        """How long ranks may take to save and leave after a request."""
        return valid_span_s(self.job.spec.checkpoints.grace_s) + self.settings.leave_s

    def last_attempt(self) -> int | None:
        attempts = self.state.attempts
        return attempts[-1].number if attempts else None
