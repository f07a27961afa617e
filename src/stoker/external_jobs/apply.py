"""Do what was decided about a training job of others: first it is written down, then it is done."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from stoker.external_jobs import chain_log, clone_request
from stoker.external_jobs.aws_account import Described, ForeignAccount
from stoker.external_jobs.clone_chain import Cloned, Cloning, FamilyEvent, FamilyRecord, GaveUp, Heard, Unheard
from stoker.external_jobs.gpu_alarms import WantedAlarm
from stoker.external_jobs.snapshot import Clone, ForeignPlan, MakeAlarms, Note, RemoveAlarms, Sight, Stop
from stoker.model.errors import InvalidRequest, ProviderError, QuotaExceeded, Transient
from stoker.store.base import Store


class ForeignApplier:
    """Applies plans for one training job. Anybody may finish what another began."""

    def __init__(
        self,
        store: Store,
        account: ForeignAccount,
        by: str,
        policy: str,
        token: Callable[[], str],
        tell: Callable[[str], None],
    ) -> None:
        self.store = store
        self.account = account
        self.by = by
        self.policy = policy
        self.token = token
        self.tell = tell
        # Alarms that were made here, by their names.
        self.made: dict[str, WantedAlarm] = {}
        # And removed; and what went wrong with either, by the alarm.
        self.removed: set[str] = set()
        self.troubles: dict[str, str] = {}
        self._seq = 0

    def apply(self, plan: ForeignPlan, sight: Sight, found: Described) -> bool:
        """Do it, in order. False: a rival wrote something meanwhile, and it has to be decided anew.

        Raises ProviderError where AWS refuses or does not answer; the rest is left to the next look then.
        """
        self._seq = sight.family.seq
        return all(self._one(action, sight, found) for action in plan.actions)

    def _one(self, action: object, sight: Sight, found: Described) -> bool:
        job = sight.job.name
        match action:
            case Note():
                return self._written(sight, action.event, action.reason)
            case Stop():
                written = job in sight.family.stops or self._written(sight, action.event, action.reason)
                return written and self._stop(action, sight)
            case Clone():
                written = job in sight.family.clones or self._written(sight, action.event, action.reason)
                return written and self._clone(action, sight, found)
            case MakeAlarms():
                for wanted in action.alarms:
                    # Before it is asked for: a reply may be lost.
                    self.made[wanted.name] = wanted
                    self._alarm(wanted.name, partial(self.account.make_alarm, wanted))
            case RemoveAlarms():
                self._alarm(action.names[0], partial(self.account.remove_alarms, action.names))
                self.removed |= set(action.names)
        return True

    def _alarm(self, name: str, call: Callable[[], None]) -> None:
        """One that cannot be set keeps nobody from the others, nor the job out of lists."""
        try:
            call()
        except ProviderError as error:
            self.troubles[name] = str(error)

    def _stop(self, action: Stop, sight: Sight) -> bool:
        job = sight.job.name
        try:
            answer = self._asked_to_stop(job)
        except ProviderError as error:
            if action.event.after and job not in sight.family.unheard:
                self._written(sight, Unheard(job), f"SageMaker did not take the request: {error}")
            raise
        if answer == "refused" and action.event.after and job not in sight.family.unheard:
            # It is over, or somebody else is stopping it: that is none of our doing.
            return self._written(sight, Unheard(job), "SageMaker refused the request: it is over, or being stopped")
        if answer != "taken":
            return True
        self.tell(f"{job}: asked to stop: {action.reason}")
        return not action.event.after or self._written(sight, Heard(job), "SageMaker has taken the request")

    def _asked_to_stop(self, job: str) -> Literal["taken", "refused", "unclear"]:
        try:
            return "taken" if self.account.stop(job) else "refused"
        except Transient:
            # At once, so that whoever stopped it was us, should the reply alone be lost: then this one may be refused.
            return "taken" if self.account.stop(job) else "unclear"

    def _clone(self, action: Clone, sight: Sight, found: Described) -> bool:
        event, job = action.event, sight.job.name
        try:
            made = self._created(event, sight, found)
        except InvalidRequest as error:
            return self._written(sight, GaveUp(job, "refused"), f"SageMaker refuses its clone: {error}")
        if not made and not self._is_clone(event.name, job):
            told = f"another training job is called {event.name}, as its clone would be"
            return self._written(sight, GaveUp(job, "name-taken"), told)
        self.tell(f"{job}: cloned as {event.name}: {action.reason}")
        return self._written(sight, Cloned(job, event.name), action.reason)

    def _created(self, event: Cloning, sight: Sight, found: Described) -> bool:
        """Ask for it as it is meant; where that cannot be had, as near to it as can be."""
        request = partial(
            clone_request.request,
            found.description,
            found.tags,
            name=event.name,
            origin=sight.family.origin,
            number=event.number,
        )
        try:
            return self._asked(request(spot=event.spot))
        except QuotaExceeded as error:
            if event.spot or not sight.job.spot:
                raise
            # Better on spot than not at all.
            self.tell(f"{sight.job.name}: goes on with spot: {error}")
            return self._asked(request(spot=True))

    def _asked(self, request: dict[str, Any]) -> bool:
        try:
            return self.account.create(request)
        except InvalidRequest as error:
            if not clone_request.MAY_NOT_MEASURE.search(str(error)):
                raise
            # SageMaker's own algorithms tell theirs, and take none.
            return self.account.create(clone_request.without_metrics(request))

    def _is_clone(self, name: str, of: str) -> bool:
        """Whether the job of that name is the clone that was meant, made by an earlier try or by a rival."""
        there = self.account.describe(name)
        told = {} if there is None else {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in there.tags}
        return there is None or clone_request.lineage(told).of == of

    def _written(self, sight: Sight, event: FamilyEvent, reason: str) -> bool:
        record = FamilyRecord(self.token(), self.by, reason, event, self.policy)
        mine = chain_log.append(self.store, sight.job.region, sight.family.origin, self._seq + 1, record)
        if mine:
            self._seq += 1
        return mine
