"""Do what was decided about a training job of others: first it is written down, then it is done."""

from __future__ import annotations

from collections.abc import Callable

from stoker.core.foreign import clone
from stoker.core.foreign.family import Cloned, FamilyEvent, FamilyRecord, GaveUp
from stoker.core.foreign.sight import Clone, ForeignPlan, MakeAlarms, Note, RemoveAlarms, Sight, Stop
from stoker.errors import InvalidRequest
from stoker.governor.foreign import families
from stoker.governor.foreign.account import Described, ForeignAccount
from stoker.store import Store


class ForeignApplier:
    """Applies plans for one training job. Anybody may finish what another began."""

    def __init__(
        self,
        store: Store,
        account: ForeignAccount,
        by: str,
        policy: str,
        topic: str | None,
        token: Callable[[], str],
        tell: Callable[[str], None],
    ) -> None:
        self.store = store
        self.account = account
        self.by = by
        self.policy = policy
        self.topic = topic
        self.token = token
        self.tell = tell
        # Alarms that were made here: their names and hosts.
        self.made: set[tuple[str, str]] = set()
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
                if job not in sight.family.stops and not self._written(sight, action.event, action.reason):
                    return False
                if self.account.stop(job):
                    self.tell(f"{job}: asked to stop: {action.reason}")
            case Clone():
                if job not in sight.family.clones and not self._written(sight, action.event, action.reason):
                    return False
                return self._clone(action, sight, found)
            case MakeAlarms():
                for wanted in action.alarms:
                    # Before it is asked for: a reply may be lost.
                    self.made.add((wanted.name, wanted.host))
                    self.account.make_alarm(wanted, self.topic)
            case RemoveAlarms():
                self.account.remove_alarms(action.names)
                self.made = {made for made in self.made if made[0] not in action.names}
        return True

    def _clone(self, action: Clone, sight: Sight, found: Described) -> bool:
        event, job = action.event, sight.job.name
        request = clone.request(
            found.description,
            found.tags,
            name=event.name,
            origin=sight.family.origin,
            number=event.number,
            spot=event.spot,
        )
        try:
            made = self.account.create(request)
        except InvalidRequest as error:
            return self._written(sight, GaveUp(job, "refused"), f"SageMaker refuses its clone: {error}")
        if not made and not self._is_clone(event.name, job):
            told = f"another training job is called {event.name}, as its clone would be"
            return self._written(sight, GaveUp(job, "name-taken"), told)
        self.tell(f"{job}: cloned as {event.name}: {action.reason}")
        return self._written(sight, Cloned(job, event.name), action.reason)

    def _is_clone(self, name: str, of: str) -> bool:
        """Whether the job of that name is the clone that was meant, made by an earlier try or by a rival."""
        there = self.account.describe(name)
        return there is None or any(tag.get("Key") == clone.CLONE_OF and tag.get("Value") == of for tag in there.tags)

    def _written(self, sight: Sight, event: FamilyEvent, reason: str) -> bool:
        record = FamilyRecord(self.token(), self.by, reason, event, self.policy)
        mine = families.append(self.store, sight.job.region, sight.family.origin, self._seq + 1, record)
        if mine:
            self._seq += 1
        return mine
