"""What must hold at every moment, and what must be true in the end."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from stoker.core import market
from stoker.core.hold import hold_of
from stoker.maintenance.delete import finish_removals
from stoker.model import keys
from stoker.model.job_state import Claim
from stoker.store import job_log
from stoker.store.find_job import all_jobs
from stoker.store.job_index import job_of, list_index, read_summary
from tests.support.sim_cloud import Machine
from tests.support.sim_data import at
from tests.support.sim_scenario import SimJob

if TYPE_CHECKING:
    from tests.support.sim import Caller, World
    from tests.support.sim_agent import Agent

# A node that could be reached for so long has been heard, and has heard: nobody may take it for silent.
HEARD_S = 200.0
# What the bounds allow on top, beside the longest time without a pass: the save, a pass, a machine that takes its time
# to go; and for each attempt that was lost without an exit, what it trained between its last heartbeat and its end.
SLACK_S = 300.0
# An agent that is held looks at the time this often, and a little more.
HELD_SLACK_S = 15.0


class Violation(BaseException):
    """An invariant does not hold. Not an Exception: the governor must not catch it at the edge of one job."""


class Checks:
    """The invariants. Each method is called when what it is named after happens."""

    def __init__(self, world: World) -> None:
        self.world = world

    def fail(self, what: str) -> None:
        raise Violation(what)

    # ── Training ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def started(self, agent: Agent) -> None:
        machine, job = agent.machine, agent.job
        self.world.sync()
        claim = self._claim(machine)
        if claim is None or all(node.instance != machine.id for node in claim.launched or ()):
            self.fail(f"{machine.id} trains, and the log does not name it")
        assert claim is not None and job.state is not None
        if not claim.open or job.state.ended is not None:
            self.fail(f"{machine.id} trains after its claim was closed or the job ended")
        for other in self.world.training(job):
            if other.machine.claim != machine.claim:
                self.fail(f"two attempts train: {other.machine.id} and {machine.id}")
            if other is not agent and other.machine.rank == machine.rank:
                self.fail(f"a rank trains twice: {other.machine.id} and {machine.id}")
        for number, ranks in job.succeeded.items():
            done = job.state.claim(number)
            if (
                done is not None
                and number > job.state.opened_seq
                and len(ranks) == done.nodes
                and number != claim.number
            ):
                self.fail(f"{machine.id} trains although claim {number} has succeeded")

    def restored(self, agent: Agent, key: str | None) -> None:
        """No committed checkpoint is lost: the newest that nobody gave up on is what is restored."""
        from tests.support.sim_agent import poisoned_in

        job = agent.job
        job.restored_by = max(job.restored_by, agent.machine.claim)
        given_up = poisoned_in(job.state), poisoned_in(agent.state)
        left = [step for name, step in job.durable if not any(poisoned.covers(name) for poisoned in given_up)]
        if left and job.step_of(key) < left[-1]:
            self.fail(f"{agent.machine.id} restores {key}, but step {left[-1]} is durable")

    def committed(self, agent: Agent, key: str, step: int) -> None:
        job = agent.job
        if job.restored_by > agent.machine.claim:
            self.fail(f"{agent.machine.id} commits {key} after claim {job.restored_by} has restored")
        job.durable.append((key, step))
        if job.poison_from is not None and step >= job.poison_from and not job.poisoned:
            job.poisoned.add(key)

    def exited(self, agent: Agent) -> None:
        if agent.left is not None and agent.left.outcome == "succeeded":
            agent.job.succeeded.setdefault(agent.machine.claim, set()).add(agent.machine.rank)

    def told_closed(self, agent: Agent) -> None:
        self.fail(f"{agent.machine.id} is told that its claim is closed while its training runs")

    def logged(self, job: SimJob) -> None:
        """After every new entry: what is closed or ended does not train."""
        assert job.state is not None
        if job.state.ended is not None:
            self.world.remover.ended(job)
        for agent in self.world.training(job):
            claim = self._claim(agent.machine)
            if job.state.ended is not None:
                self.fail(f"the job has ended, and {agent.machine.id} still trains")
            if claim is None or not claim.open:
                self.fail(f"claim {agent.machine.claim} is closed, and {agent.machine.id} still trains")

    def bought(self, caller: Caller, name: str) -> None:
        """No machine is bought for a removed job by a governor that could know: it looks between its append and this.

        One that looked before the tombstone was there may be too late to be stopped; it gives back what it bought.
        """
        removed_at_s, looked_s = self.world.jobs[name].removed_at_s, caller.looked_s.get(name)
        if removed_at_s is not None and (looked_s is None or looked_s > removed_at_s):
            self.fail(f"{caller.name} buys a machine for {name}, which was removed")

    # ── Machines ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def terminated(self, machine: Machine) -> None:
        """Somebody asks the cloud to end this machine."""
        world, agent = self.world, machine.agent
        if machine.job == "foreign":
            self.fail("a machine without this store's tag is touched")
        if machine.job == "ghost" and world.now_s - machine.created_s < world.scenario.capabilities.newborn_s:
            self.fail(f"{machine.id} is ended as an orphan while newborn")
        if agent is not None and agent.alive and agent.held_s:
            self._held(agent)
        if agent is not None and machine.state == "running" and agent.left is not None:
            self._ends_itself(agent)
        if agent is None or not agent.alive or not agent.training:
            return
        world.sync()
        cut_off_s = max(agent.partitioned_until_s, world.outage_until_s)
        if cut_off_s and world.now_s - cut_off_s < HEARD_S:
            return
        if agent.leaving is not None and world.now_s < agent.leaving.deadline_s:
            self.fail(
                f"the save of {machine.id} is cut ({agent.leaving.deadline_s - world.now_s:.0f} s before its end)"
            )
        claim = self._claim(machine)
        state = agent.job.state
        if claim is not None and claim.open and claim.drain is None and state is not None and state.stop is None:
            self.fail(f"{machine.id} trains, is heard, was asked nothing, and is terminated")

    def _held(self, agent: Agent) -> None:
        """A machine that is held is ended by a governor only when its time is over, or somebody asked."""
        self.world.sync()
        state = agent.job.state
        hold = hold_of(state, agent.job.spec) if state is not None else None
        if hold is not None and hold.claim == agent.machine.claim and at(self.world.now_s) < hold.until:
            self.fail(f"{agent.machine.id} is held, and ended before its time")

    def _ends_itself(self, agent: Agent) -> None:
        """A machine whose attempt has ended by itself has its moment to end by itself, too."""
        self.world.sync()
        claim, may_s = self._claim(agent.machine), self.world.scenario.capabilities.self_end_s
        if claim is None or claim.closed is None or claim.closed_at is None or agent.machine.claim != claim.number:
            return
        of_itself = claim.closed.outcome in ("succeeded", "failed") and agent.machine.rank in claim.closed.exited
        if of_itself and at(self.world.now_s) < claim.closed_at + timedelta(seconds=may_s):
            self.fail(f"{agent.machine.id} has left, and is ended before it could end by itself")

    def let_go(self, agent: Agent) -> None:
        """Nobody stays longer than asked: once for the verdict, which may never come, and once after it."""
        stayed_s, held_s = self.world.now_s - agent.held_s, agent.job.spec.retry.hold_on_failure_s
        if stayed_s > 2 * held_s + HELD_SLACK_S:
            self.fail(f"{agent.machine.id} was held for {stayed_s:.0f} s of {held_s:g} s")

    # ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def at_rest(self) -> bool:
        world = self.world
        ended = all(job.state is not None and job.state.ended is not None for job in world.jobs.values())
        alive = any(m.alive for m in world.cloud.machines.values() if m.job in world.jobs)
        return ended and not alive and not list(world.store.list(keys.ACTIVE))

    def at_the_end(self) -> None:
        self._market()
        for job in self.world.jobs.values():
            self._outcome(job)
            self._log(job)
            self._bounds(job)
            assert job.state is not None and job.state.ended is not None
            if job.removed_at_s is not None:
                self._removed(job)
                continue
            summary = read_summary(self.world.store, job.name)
            if summary is None or summary.phase != job.state.ended.outcome:
                self.fail(f"the index tells {summary and summary.phase}, the log {job.state.ended.outcome}")

    def _removed(self, job: SimJob) -> None:
        """Nothing of a removed job comes back, whatever landed late; and the next removal takes away what is left."""
        store = self.world.store
        shown = {job_of(meta) for meta in list_index(store)} | set(all_jobs(store))
        if job.name in shown or job_log.read(store, job.name) is not None or read_summary(store, job.name) is not None:
            self.fail(f"{job.name} was removed, and is there again")
        finish_removals(store)
        left = [meta.key for meta in store.list("") if f"/{job.name}/" in meta.key]
        left = [key for key in left if not key.startswith((keys.SPENT, keys.MARKET, keys.OUTBOX))]
        if left:
            self.fail(f"{job.name} was removed, and {left} is left")

    def _outcome(self, job: SimJob) -> None:
        assert job.state is not None and job.state.ended is not None
        ended, limits, scenario = job.state.ended, job.spec.limits, self.world.scenario
        whole = {
            number
            for number, ranks in job.succeeded.items()
            if number > job.state.opened_seq and len(ranks) == job.spec.nodes
        }
        if whole and ended.outcome != "succeeded":
            self.fail(f"claim {min(whole)} succeeded, and the job {ended.outcome} ({ended.rule})")
        if ended.outcome == "succeeded" and ended.claim not in whole:
            self.fail("the job succeeded without an attempt of which every rank finished")
        if ended.outcome == "stopped" and job.state.stop is None:
            self.fail("the job stopped although nobody asked")
        if ended.outcome == "failed":
            allowed = {
                "user-error": job.fails_at is not None or job.poison_from is not None,
                "max_runtime": limits.max_runtime_s is not None,
                "max_cost": limits.max_cost is not None,
                "max_wait": limits.max_wait_s is not None,
                "no-offering": scenario.rates["quota"] > 0,
            }
            if not allowed.get(ended.rule, "made no progress" in ended.reason):
                self.fail(f"the job failed ({ended.rule}: {ended.reason})")

    def _log(self, job: SimJob) -> None:
        assert job.state is not None
        if job.removed_at_s is not None:
            return
        key_list = [meta.key for meta in self.world.store.list(keys.log_prefix(job.name))]
        if key_list != [keys.log_entry(job.name, seq) for seq in range(1, job.state.seq + 1)]:
            self.fail("the log has a gap")
        counted = sum(1 for c in job.state.since_opened() if c.closed and c.closed.counted)
        if counted > job.spec.retry.user_errors + 1:
            self.fail(f"{counted} user errors, and {job.spec.retry.user_errors} restarts were allowed")

    def _market(self) -> None:
        """Every claim that saw something of the market has told it, once, whoever closed it and whatever failed."""
        closed = [(job.name, claim) for job in self.world.jobs.values() if job.state for claim in job.state.claims]
        wanted = {key for name, claim in closed if (key := market.observation_key(name, claim)) is not None}
        told = {meta.key for meta in self.world.store.list(keys.MARKET)}
        # A governor that stood still while the job was removed may have seen something since, which harms nobody.
        removed = any(job.removed_at_s is not None for job in self.world.jobs.values())
        if wanted - told or (told - wanted and not removed):
            self.fail(f"the market was told {sorted(told - wanted)}, and not {sorted(wanted - told)}")

    def _bounds(self, job: SimJob) -> None:
        """Only since the job was last opened, and not when the store was out: then nobody can count."""
        assert job.state is not None
        if self.world.outage_until_s:
            return
        since = job.state.since_opened()
        trained_s = cost = 0.0
        for claim in since:
            machines = [m for m in self.world.cloud.machines.values() if m.job == job.name and m.claim == claim.number]
            trained_s += max((m.agent.trained_s for m in machines if m.agent), default=0.0)
            cost += sum(m.price * (m.changed_s - m.created_s) / 3600 for m in machines)
        slack_s = (SLACK_S + self.world.ungoverned_s) * (1 + len(since))
        limits = job.spec.limits
        if limits.max_runtime_s is not None and trained_s > limits.max_runtime_s + slack_s:
            self.fail(f"trained {trained_s:.0f} s of {limits.max_runtime_s:g} s")
        if limits.max_cost is not None and cost > limits.max_cost + 3.0 * job.spec.nodes * slack_s / 3600:
            self.fail(f"cost {cost:.2f} of {limits.max_cost:g}")

    def _claim(self, machine: Machine) -> Claim | None:
        state = self.world.jobs[machine.job].state if machine.job in self.world.jobs else None
        return state.claim(machine.claim) if state else None
