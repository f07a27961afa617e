"""End the machines of an attempt that still owns them: at once, or after its time to save is over. Pure.

Machines that no attempt owns any more are found by `core/unowned_machines.py`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from stoker.core.costs import valid_span_s
from stoker.core.job_decision import JobDecision
from stoker.core.snapshot import Terminate
from stoker.model.job_state import Claim


def end_after_grace(decision: JobDecision, claim: Claim, asked_at: datetime, reason: str) -> None:
    """End every rank that has not left by the time a save may take."""
    deadline = asked_at + timedelta(seconds=decision.save_s)
    for rank in range(claim.nodes):
        # Under a hard notice all ranks may save until the cloud's own deadline, even if that is later.
        notice = decision.job.notice_of(claim, rank)
        if notice is not None and notice.value.hard:
            grace_s = min(valid_span_s(notice.value.grace_s), decision.settings.longest_notice_s)
            deadline = max(deadline, notice.modified + timedelta(seconds=grace_s))
    if decision.now < deadline:
        decision.wakes.append(deadline)
        return
    for rank in range(claim.nodes):
        # A rank whose exit could not be read may have left, or may still be uploading its last log lines.
        if decision.job.exit_of(claim, rank) is None and not decision.job.exit_unread(claim, rank):
            end_rank(decision, claim, rank, reason)


def end_rank(decision: JobDecision, claim: Claim, rank: int, reason: str) -> None:
    """End the machine of one rank, unless it is positively gone."""
    instance = claim.instance(rank)
    if instance is not None and not decision.job.is_gone(instance):
        offering = claim.offering
        action = Terminate(decision.state.job, instance, offering.provider, reason, offering.region)
        if action not in decision.actions:
            decision.actions.append(action)
