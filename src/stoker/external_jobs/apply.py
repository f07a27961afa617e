"""Carry out what was decided about an external training job: each intent is written to the log before it is acted
on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from stoker.external_jobs import chain_log, clone_request
from stoker.external_jobs.aws_account import SageMakerAccount, TrainingJobDescription
from stoker.external_jobs.clone_chain import (
    ChainEvent,
    ChainRecord,
    Cloned,
    Cloning,
    GaveUp,
    StopAccepted,
    StopUnanswered,
)
from stoker.external_jobs.gpu_alarms import WantedAlarm
from stoker.external_jobs.snapshot import (
    CloneJob,
    CreateAlarms,
    ExternalJobPlan,
    ExternalJobSnapshot,
    RecordEvent,
    RemoveAlarms,
    StopJob,
)
from stoker.model.errors import InvalidRequest, ProviderError, QuotaExceeded, Transient
from stoker.store.base import Store


class ExternalJobApplier:
    """Applies plans for one training job. Any governor may finish what another began."""

    def __init__(
        self,
        store: Store,
        account: SageMakerAccount,
        by: str,
        policy: str,
        token: Callable[[], str],
        log: Callable[[str], None],
    ) -> None:
        self.store = store
        self.account = account
        self.by = by
        self.policy = policy
        self.token = token
        self.log = log
        # Alarms that were created here, by name; alarms that were removed; and problems with either, by alarm.
        self.made: dict[str, WantedAlarm] = {}
        self.removed: set[str] = set()
        self.alarm_problems: dict[str, str] = {}
        self._seq = 0

    def apply(self, plan: ExternalJobPlan, snapshot: ExternalJobSnapshot, description: TrainingJobDescription) -> bool:
        """Carry out the actions in order. False: another governor wrote to the log meanwhile, so decide again.

        Raises ProviderError where AWS refuses or does not answer; the rest is then left to the next pass.
        """
        self._seq = snapshot.chain.seq
        return all(self._act(action, snapshot, description) for action in plan.actions)

    def _act(self, action: object, snapshot: ExternalJobSnapshot, description: TrainingJobDescription) -> bool:
        job = snapshot.job.name
        match action:
            case RecordEvent():
                return self._record(snapshot, action.event, action.reason)
            case StopJob():
                written = job in snapshot.chain.stops or self._record(snapshot, action.event, action.reason)
                return written and self._stop(action, snapshot)
            case CloneJob():
                written = job in snapshot.chain.clones or self._record(snapshot, action.event, action.reason)
                return written and self._clone(action, snapshot, description)
            case CreateAlarms():
                for wanted in action.alarms:
                    # Before the request, since its reply may be lost.
                    self.made[wanted.name] = wanted
                    self._try_alarm(wanted.name, partial(self.account.make_alarm, wanted))
            case RemoveAlarms():
                self._try_alarm(action.names[0], partial(self.account.remove_alarms, action.names))
                self.removed |= set(action.names)
        return True

    def _try_alarm(self, name: str, call: Callable[[], None]) -> None:
        """Call CloudWatch. A failure of one alarm stops neither the others nor the job's index row."""
        try:
            call()
        except ProviderError as error:
            self.alarm_problems[name] = str(error)

    def _stop(self, action: StopJob, snapshot: ExternalJobSnapshot) -> bool:
        job = snapshot.job.name
        try:
            answer = self._request_stop(job)
        except ProviderError as error:
            if action.event.after and job not in snapshot.chain.unanswered_stops:
                self._record(snapshot, StopUnanswered(job), f"SageMaker did not take the request: {error}")
            raise
        if answer == "refused" and action.event.after and job not in snapshot.chain.unanswered_stops:
            # The job is over, or its owner is stopping it: this stop did not end it.
            return self._record(
                snapshot, StopUnanswered(job), "SageMaker refused the request: it is over, or being stopped"
            )
        if answer != "taken":
            return True
        self.log(f"{job}: asked to stop: {action.reason}")
        return not action.event.after or self._record(snapshot, StopAccepted(job), "SageMaker has taken the request")

    def _request_stop(self, job: str) -> Literal["taken", "refused", "unclear"]:
        try:
            return "taken" if self.account.stop(job) else "refused"
        except Transient:
            # Repeated at once. If only the first reply was lost, this request may be refused although the first one
            # stopped the job: then the answer is unclear.
            return "taken" if self.account.stop(job) else "unclear"

    def _clone(self, action: CloneJob, snapshot: ExternalJobSnapshot, description: TrainingJobDescription) -> bool:
        event, job = action.event, snapshot.job.name
        try:
            made = self._create(event, snapshot, description)
        except InvalidRequest as error:
            return self._record(snapshot, GaveUp(job, "refused"), f"SageMaker refuses its clone: {error}")
        if not made and not self._is_clone(event.name, job):
            reason = f"another training job is called {event.name}, as its clone would be"
            return self._record(snapshot, GaveUp(job, "name-taken"), reason)
        self.log(f"{job}: cloned as {event.name}: {action.reason}")
        return self._record(snapshot, Cloned(job, event.name), action.reason)

    def _create(self, event: Cloning, snapshot: ExternalJobSnapshot, description: TrainingJobDescription) -> bool:
        """Create the clone as intended; where the quota does not allow that, with spot instead. False: the name is
        taken."""
        request = partial(
            clone_request.build_request,
            description.description,
            description.tags,
            name=event.name,
            origin=snapshot.chain.origin,
            number=event.number,
        )
        try:
            return self._create_training_job(request(spot=event.spot))
        except QuotaExceeded as error:
            if event.spot or not snapshot.job.spot:
                raise
            # A clone on spot is better than none.
            self.log(f"{snapshot.job.name}: goes on with spot: {error}")
            return self._create_training_job(request(spot=True))

    def _create_training_job(self, request: dict[str, Any]) -> bool:
        try:
            return self.account.create(request)
        except InvalidRequest as error:
            if not clone_request.METRICS_REFUSED.search(str(error)):
                raise
            # SageMaker's own algorithms report metric definitions in a description, and refuse them in a request.
            return self.account.create(clone_request.without_metrics(request))

    def _is_clone(self, name: str, of: str) -> bool:
        """Return whether the job of that name is the intended clone, created by an earlier try or another governor."""
        existing = self.account.describe(name)
        tags = {} if existing is None else {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in existing.tags}
        return existing is None or clone_request.parse_lineage(tags).of == of

    def _record(self, snapshot: ExternalJobSnapshot, event: ChainEvent, reason: str) -> bool:
        record = ChainRecord(self.token(), self.by, reason, event, self.policy)
        mine = chain_log.append(self.store, snapshot.job.region, snapshot.chain.origin, self._seq + 1, record)
        if mine:
            self._seq += 1
        return mine
