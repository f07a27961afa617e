"""Requests that land late, and jobs that are removed, in the simulation.

A write or a delete whose reply was lost may still be under way: it lands seconds or minutes later, also when the
process that sent it is long dead. One that was answered may land a second time, if a client below it tried twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker.maintenance.delete import remove_job
from stoker.model import keys
from stoker.model.errors import StoreUnavailable, UserError
from stoker.testing.memory_store import Fault, Landing
from tests.support.sim_scenario import SimJob

if TYPE_CHECKING:
    from tests.support.sim import World

_WRITES = ("put", "create", "delete")
_DELAYS_S = (2.0, 10.0, 60.0, 60.0, 300.0, 900.0)
# How soon a person removes a job that has ended, and looks again while its machines are not known to be gone.
_REMOVE_WITHIN_S = 200.0
_ASK_AGAIN_S = 20.0


class LateRequests:
    """Decides which requests land late. A source of its own, so that other seeds tell the stories they told before."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = random.Random(f"late requests {world.scenario.seed}")
        # Those that have yet to land.
        self.pending = 0

    def fault(self, operation: str, key: str) -> Fault | None:
        late, again = self.world.scenario.late, self.world.scenario.again
        if operation not in _WRITES or self.world.quiet or not (late or again):
            return None
        chance = self.random.random()
        # An agent writes its exit until it is answered; what the cloud does meanwhile is another story.
        if chance < late and not key.endswith("/exit"):
            return Fault(later=self._land(f"{operation} {key}"), error=StoreUnavailable("the reply was lost"))
        if chance < late + again:
            return Fault(again=self._land(f"{operation} {key} once more"))
        return None

    def _land(self, what: str) -> Landing:
        def land(write: Callable[[], object]) -> None:
            self.pending += 1

            def now() -> None:
                self.pending -= 1
                self.world.note(f"lands late: {what}")
                write()

            self.world.after(self.random.choice(_DELAYS_S) * self.random.random(), now)

        return land


class Remover:
    """The person who removes jobs that have ended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = random.Random(f"removals {world.scenario.seed}")
        self.store = world.store.client(self._faults)

    def ended(self, job: SimJob) -> None:
        if self.world.scenario.removes:
            self.world.after(self.random.uniform(0.0, _REMOVE_WITHIN_S), lambda: self._remove(job))

    def _remove(self, job: SimJob) -> None:
        """As `client.remove`: a job that has ended, and that no governor looks at any more."""
        state, world = job.state, self.world
        if world.quiet or state is None or (state.ended is None and job.removed_at_s is None):
            return
        if job.removed_at_s is None and list(world.store.list(f"{keys.ACTIVE}{job.name}/")):
            world.after(_ASK_AGAIN_S, lambda: self._remove(job))
            return
        try:
            remove_job(self.store, job.name)
            world.note(f"{job.name} is removed")
        except UserError as error:
            world.note(f"not removed: {error}")
        except StoreUnavailable:
            world.note(f"the removal of {job.name} is cut short")
            if self.random.random() < 0.5:
                world.after(_ASK_AGAIN_S, lambda: self._remove(job))
            else:
                # The person thinks better of it.
                world.after(self.random.uniform(0.0, _ASK_AGAIN_S), lambda: world.resume(job))
        self.notice(job)

    def notice(self, job: SimJob) -> None:
        """The tombstone may land late, too."""
        if job.removed_at_s is None and self.world.store.holds(keys.removed(job.name)):
            job.removed_at_s = self.world.now_s
            if job.state is not None and job.state.ended is None:
                self.world.checks.fail(f"{job.name} goes on, and counts as removed")

    def _faults(self, operation: str, key: str) -> Fault | None:
        if not self.world.quiet and self.random.random() < self.world.scenario.late:
            return Fault(error=StoreUnavailable("no answer"))
        return self.world.late.fault(operation, key)
