"""Notify people of what a pass saw and did. A side channel: no failure in it ends a pass or harms a job."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from stoker.core.snapshot import JobSnapshot, Plan, Unmark
from stoker.governor.budget_tracker import BudgetTracker
from stoker.governor.observe import Memory
from stoker.model.errors import StoreUnavailable, describe_error
from stoker.model.policy import Policy
from stoker.notifications.dispatcher import SINGLE_PASS_WAIT_S, NotificationDispatcher
from stoker.notifications.events import Notification, budget_notification
from stoker.notifications.job_events import JobWithSpec
from stoker.notifications.outbox import MAX_WAITING
from stoker.store.store_clock import StoreClock

# A job's end is recorded for notification before the job is unmarked. A store in which nothing can be recorded for this
# long delays no job any longer.
RECORD_WITHIN_S = 600.0


class PassNotifier:
    """Records and sends the notifications of one governor's passes."""

    def __init__(self, dispatcher: NotificationDispatcher, memory: Memory, budget_tracker: BudgetTracker) -> None:
        self.dispatcher = dispatcher
        self._memory = memory
        self._budget_tracker = budget_tracker
        # How long a pass waits for messages to be sent.
        self.patience_s = SINGLE_PASS_WAIT_S
        # Removals of orphans by this governor that are not recorded yet: no later pass could find them.
        self._removed: list[Notification] = []

    @property
    def unsent(self) -> bool:
        """Return whether something is still to be sent, by any governor."""
        return self.dispatcher.unsent or bool(self._removed)

    def record_endings(self, plan: Plan, newest: dict[str, JobSnapshot], clock: StoreClock) -> Plan:
        """Record the ends of jobs that the plan unmarks: no pass reads a job without a marker again.

        Returns the plan; where the store does not answer, without unmarking jobs that ended lately.
        """
        ending = {action.job for action in plan.actions if isinstance(action, Unmark)}
        if not ending:
            return plan
        try:
            self.dispatcher.record(self._with_specs({job: newest[job] for job in ending}), clock.now())
        except StoreUnavailable:
            held = {job for job in ending if _ended_lately(newest[job], clock.now())}
            rest = (action for action in plan.actions if not (isinstance(action, Unmark) and action.job in held))
            return replace(plan, actions=tuple(rest))
        except Exception:  # noqa: BLE001 - `notify` meets the same error and reports it; no job waits for it
            pass
        return plan

    def notify(
        self,
        newest: dict[str, JobSnapshot],
        removed: list[Notification],
        active: set[str] | None,
        policy: Policy,
        clock: StoreClock,
    ) -> dict[str, str]:
        """Record and send the events of a pass, after everything else in it. Returns problems.

        `removed`: orphans that the pass removed. `active`: all active jobs, where the pass knows them.
        """
        try:
            self._removed = [*self._removed, *removed][-MAX_WAITING:]
            unreported = self._budget_tracker.unreported(policy)
            more = [*self._removed, *(budget_notification(each, clock.now()) for each in unreported)]
            self.dispatcher.record(self._with_specs(newest), clock.now(), more=more, active=active)
            # After the record: removals that could not be recorded are recorded by the next pass.
            self._removed = []
            for each in unreported:
                self._budget_tracker.record_reported(each.mark)
            return self.dispatcher.send(clock.now, self.patience_s)
        except Exception as error:  # noqa: BLE001 - a side channel: no bug in it may end a pass
            return {"notify": describe_error(error)}

    def finish(self, clock: StoreClock | None) -> None:
        """Send what can still be sent before the governor ends."""
        try:
            if clock is not None:
                self.dispatcher.finish(clock.now)
        except Exception:  # noqa: BLE001 - a side channel; another governor sends the rest
            pass

    def _with_specs(self, jobs: dict[str, JobSnapshot]) -> dict[str, JobWithSpec]:
        """The newest states: those in memory are newer than the snapshots. A job that was unmarked in this pass is no
        longer in memory, and its end is recorded already."""
        return {
            job: JobWithSpec(self._memory.states[job], snapshot.spec)
            for job, snapshot in jobs.items()
            if job in self._memory.states
        }


def _ended_lately(job: JobSnapshot, now: datetime) -> bool:
    ended = job.state.ended
    return ended is not None and (now - ended.at).total_seconds() < RECORD_WITHIN_S
