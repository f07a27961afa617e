"""A modelled agent: it boots, waits at the real gate, trains, saves and leaves; it writes the real facts.

Only the training and the machine are made up. What it may do comes from `stoker.core.gate`, what it reads through
`stoker.store.job_log` and `stoker.store.node_facts`, what it writes through `stoker.model.codec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from stoker.agent.hold import hold_limit, may_hold
from stoker.core import gate
from stoker.core.governor_settings import DEFAULT
from stoker.core.poisoned_checkpoints import NONE_POISONED, PoisonedCheckpoints, poisoned_checkpoints
from stoker.model import codec, keys
from stoker.model.errors import StoreError
from stoker.model.gang_messages import Ack, Rendezvous
from stoker.model.job_state import Claim, JobState
from stoker.model.node_facts import AgentPhase, CheckpointRef, Exit, ExitOutcome, ExitWhy, Heartbeat, NoticeFact
from stoker.model.observed import Known
from stoker.store import job_log, node_facts
from stoker.testing.memory_store import MemoryStore
from tests.support.sim_cloud import Machine
from tests.support.sim_data import at

if TYPE_CHECKING:
    from tests.support.sim import World

# As the real agent's `node.FLUSH_LIMIT_S`.
FLUSH_LIMIT_S = 1800.0
TICK_S = 10.0


@dataclass
class Leaving:
    """Why the training is being ended, and until when it may save."""

    why: ExitWhy
    deadline_s: float
    outcome: ExitOutcome = "interrupted"


class Agent:
    """One boot of one agent. `training` says whether the training runs, whatever the agent knows."""

    def __init__(self, world: World, machine: Machine, boot: int = 0) -> None:
        self.world = world
        self.machine = machine
        self.boot = boot
        self.job = world.jobs[machine.job]
        self.store: MemoryStore = world.agent_store(self)
        self.skew = timedelta(seconds=world.random.uniform(-60.0, 60.0) if world.scenario.skewed else 0.0)
        self.node = keys.node(machine.job, machine.claim, machine.rank, keys.boot(machine.id, boot))
        self.state: JobState | None = None
        self.phase: AgentPhase = "booting"
        self.born_s = world.now_s
        self.dead = False
        self.training = False
        self.partitioned_until_s = 0.0
        self.heard_since_s = world.now_s
        self.started_s: float | None = None
        self.trained_s = 0.0
        self.looked_s = 0.0
        self.step = 0.0
        self.first_step = 0
        self.commits = 0
        self.restored: str | None = None
        self.older = 0
        self.checkpoint: CheckpointRef | None = None
        self.notice: NoticeFact | None = None
        self.notice_told = False
        self.leaving: Leaving | None = None
        self.saved_at_s = 0.0
        self.flush_until_s: float | None = None
        self.left: Exit | None = None
        self.rendezvous: Rendezvous | None = None
        self.ready = False
        self.limit_s: float | None = None
        self.held_s = 0.0
        self.judged_s: float | None = None
        self.beats = 0

    # ── What happens to it ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def alive(self) -> bool:
        return self.machine.alive and not self.dead

    @property
    def reachable(self) -> bool:
        return self.world.now_s >= self.partitioned_until_s and self.world.now_s >= self.world.outage_until_s

    def lose_machine(self) -> None:
        self._stop_training()
        self.dead = True

    def die(self) -> None:
        """kill -9 of the agent. Its training dies a moment later; then the machine restarts it, or powers off."""
        self.dead = True
        world = self.world
        world.note(f"the agent of {self.machine.id} dies")
        world.after(world.random.uniform(0.0, 5.0), self._stop_training)
        # One that has said its last word is not started again to say it twice.
        if world.random.random() < 0.6 and self.left is None:
            world.after(world.random.uniform(5.0, 20.0), self._restart)
        else:
            world.after(world.random.uniform(5.0, 90.0), lambda: world.cloud.power_off(self.machine))

    def _restart(self) -> None:
        if self.machine.alive:
            again = Agent(self.world, self.machine, self.boot + 1)
            self.machine.agent = again
            again.flush_only(self)

    def flush_only(self, before: Agent) -> None:
        """A restarted agent never trains: it tells what is there, and goes."""
        assert not before.training
        self.trained_s, self.step, self.restored = before.trained_s, before.step, before.restored
        self.commits, self.checkpoint, self.started_s = before.commits, before.checkpoint, before.started_s
        self.phase = "flushing"
        self.leaving = Leaving("agent", self.world.now_s + FLUSH_LIMIT_S, "infrastructure")
        self.tick()

    def give_notice(self, grace_s: float, *, hard: bool) -> None:
        if self.alive and self.notice is None:
            self.world.note(f"{self.machine.id}: {'hard' if hard else 'soft'} notice, {grace_s:g} s")
            self.notice = NoticeFact(hard=hard, source="sim", at=self._wall(), grace_s=grace_s)
            self.world.after(0.0, self._tick_once)

    # ── Its life ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self.phase = "waiting"
        self.tick()

    def tick(self) -> None:
        """Look at everything once, and come back."""
        if not self.alive or self.machine.agent is not self:
            return
        self._tick_once()
        if self.alive and self.left is None:
            self.world.after(TICK_S * self.world.random.uniform(0.7, 1.3), self.tick)

    def _tick_once(self) -> None:
        if not self.alive or self.left is not None or self.machine.agent is not self:
            return
        if not self.beats and not self._try(self._beat):
            return  # An exit without a heartbeat before it would not be found.
        self._try(self._read_log)
        self._tell_notice()
        if self.leaving is not None:
            self._save_on()
        elif self.training:
            self._train_on()
        elif self.phase in ("waiting", "restoring"):
            self._wait_on()
        if self.alive and self.left is None:
            self._try(self._beat)

    def _wait_on(self) -> None:
        left = gate.should_leave(self.state, self.machine.claim, self.machine.id)
        if left is not None:
            return self._leave("interrupted", left.why)
        if self.notice is not None and self.notice.hard:
            return self._leave("interrupted", "notice")
        if self.world.now_s - self.born_s > DEFAULT.wait_limit_s:
            return self._leave("interrupted", "waited")
        if self._peer_left() is not None:
            return self._leave("interrupted", "peer")
        if not self.ready:
            self.ready = self._try(self._ask_gate) and self.phase == "restoring"
        if self.ready:
            self._try(self._agree)
        return None

    def _ask_gate(self) -> None:
        exits = lambda claim: node_facts.read_exits(self.store, self.machine.job, claim)  # noqa: E731
        hold_limit = gate.may_train(self.state, self.machine.claim, self.machine.id, exits)
        if isinstance(hold_limit, gate.Go):
            self.phase = "restoring"

    def _agree(self) -> None:
        """Rank 0 proposes when all are ready; the others follow its word."""
        claim = self._claim()
        if claim is None or self.started_s is not None:
            return
        if self.machine.rank == 0:
            if all(self._peer_ready(claim, rank) for rank in range(1, claim.nodes)):
                key = self.rendezvous.checkpoint if self.rendezvous else self.job.newest(self.store, self.state)
                self.rendezvous = Rendezvous(1, ("",) * claim.nodes, 1, checkpoint=key, go=True)
                self._beat()
                self._start_from(key)
        else:
            told = self._peer_beat(claim, 0)
            if told is not None and told.rendezvous is not None and told.rendezvous.go:
                self._start_from(told.rendezvous.checkpoint)

    def _start_from(self, key: str | None) -> None:
        self.world.checks.restored(self, key)
        self.restored, self.older = key, self.job.older_than(self.store, self.state, key)
        self.step = float(self.job.step_of(key))
        self.first_step = int(self.step)
        self.started_s = self.world.now_s
        self.world.after(self.world.random.uniform(0.0, 4.0), self._start_training)

    def _start_training(self) -> None:
        if not self.alive or self.left is not None or self.leaving is not None:
            return
        self.training, self.phase = True, "training"
        self.looked_s = self.world.now_s
        self.limit_s = self._own_limit_s()
        self.world.note(f"{self.machine.id} trains from step {self.step:g}")
        self.world.checks.started(self)
        if self.job.is_poisoned(self.restored):
            self.world.after(self.world.random.uniform(1.0, 5.0), lambda: self._end_by_itself("failed"))

    def _train_on(self) -> None:
        self._progress()
        left = gate.should_leave(self.state, self.machine.claim, self.machine.id)
        peer_grace_s = self._peer_left()
        if left is not None and left.why == "closed":
            self.world.checks.told_closed(self)
            self._stop_training()
            return self._leave("interrupted", "closed")
        if self.notice is not None and self.notice.hard:
            return self._save("notice", self.notice.grace_s)
        if left is not None:
            return self._save(left.why, self.job.spec.checkpoints.grace_s)
        if peer_grace_s is not None:
            return self._save("peer", peer_grace_s)
        if self.limit_s is not None and self.trained_s >= self.limit_s:
            return self._save("limit", self.job.spec.checkpoints.grace_s)
        if self.job.fails_at is not None and self.step >= self.job.fails_at:
            return self._end_by_itself("failed")
        if self.step >= self.job.work:
            return self._end_by_itself("succeeded")
        if self.step - self.job.step_of(self.checkpoint.key if self.checkpoint else self.restored) >= self.job.every:
            self._try(self._commit)
        return None

    def _progress(self) -> None:
        """Steps since the last look. A gang of which a rank is missing waits for it, and makes none."""
        span_s = self.world.now_s - self.looked_s
        self.looked_s = self.world.now_s
        self.trained_s += span_s
        # A script that cannot load what it restored makes no step, and fails.
        if self.world.gang_trains(self.machine) and not self.job.is_poisoned(self.restored):
            self.step = min(float(self.job.work), self.step + span_s * self.job.pace)

    def _end_by_itself(self, outcome: ExitOutcome) -> None:
        if not self.alive or not self.training or self.leaving is not None:
            return
        self._progress()
        self._stop_training()
        self.leaving = Leaving("finished", self.world.now_s + FLUSH_LIMIT_S, outcome)
        self._save_on()

    # ── Leaving ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _save(self, why: ExitWhy, grace_s: float) -> None:
        # Mostly in time; with a short grace sometimes not.
        longest_s = max(6.0, 0.9 * grace_s)
        needs_s = self.world.random.choice((self.world.random.uniform(1.0, longest_s), longest_s))
        self.leaving = Leaving(why, self.world.now_s + grace_s)
        self.saved_at_s = self.world.now_s + needs_s
        self.phase = "saving"
        self.world.note(f"{self.machine.id} saves ({why}), needs {needs_s:.0f} s of {grace_s:g} s")
        self.world.after(needs_s, self._tick_once)
        self.world.after(max(0.0, grace_s - 1.0), self._tick_once)

    def _save_on(self) -> None:
        """While the training saves; then make it durable and say so. It ends by its deadline in any case."""
        leaving = self.leaving
        if leaving is None or not self.alive or self.left is not None:
            return
        late = self.world.now_s >= leaving.deadline_s - 1.0
        if self.training:
            left = gate.should_leave(self.state, self.machine.claim, self.machine.id)
            if left is not None and left.why == "closed":
                self.world.checks.told_closed(self)
            if self.world.now_s < self.saved_at_s and not late:
                return
            self._progress()
            if self.world.now_s >= self.saved_at_s and not self._try(self._commit) and not late:
                return
            self._stop_training()
        elif leaving.outcome == "succeeded" and not self._try(self._commit) and not late:
            return
        self.phase = "flushing"
        self._leave(leaving.outcome, leaving.why)

    def _leave(self, outcome: ExitOutcome, why: ExitWhy) -> None:
        """Write the exit; each tick again until it is there, or an agent would give up. Then give the machine back."""
        assert not self.training
        if self.flush_until_s is None:
            self.flush_until_s = self.world.now_s + FLUSH_LIMIT_S
        failed = outcome == "failed"
        left = Exit(
            outcome=outcome,
            why=why,
            at=self._wall(),
            started=self.started_s is not None,
            code=1 if failed else 0,
            trained_s=self.trained_s,
            step=int(self.step) if self.started_s is not None else None,
            first_step=self.first_step,
            restored_from=self.restored,
            older_checkpoints=self.older,
            checkpoint=self.checkpoint,
            commits=self.commits,
            tail=("ValueError: no",) if failed else (),
        )
        self.leaving = self.leaving or Leaving(why, self.flush_until_s, outcome)
        if not self._try(lambda: self.store.put(keys.exit_(self.node), codec.dumps(left))):
            if self.world.now_s < self.flush_until_s:
                return
        else:
            self.left = left
            self.world.note(f"{self.machine.id} exits: {outcome}, {why}, step {int(self.step)}")
            self.world.checks.exited(self)
        self.world.kick()
        if self.left is not None and may_hold(left, self.job.spec):
            self.held_s, self.phase = self.world.now_s, "held"
            self.world.note(f"{self.machine.id} stays for a look")
            self._stay()
            return
        self._go()

    def _stay(self) -> None:
        """As long as the real agent would."""
        if not self.alive or self.machine.agent is not self:
            return
        self._try(self._read_log)
        stay = hold_limit(self.job.spec, self.machine.claim, self.state)
        if stay.judged and self.judged_s is None:
            self.judged_s = self.world.now_s
        left_s = (self.judged_s or self.held_s) + stay.longest_s - self.world.now_s
        if left_s <= 0:
            self.world.note(f"{self.machine.id} leaves: {stay.message}")
            self.world.checks.let_go(self)
            self._go()
            return
        self._try(self._beat)
        self.world.after(min(left_s, TICK_S), self._stay)

    def _go(self) -> None:
        self.dead = True
        # Some machines do not power off when told to; the governor ends those.
        if self.world.random.random() < 0.9:
            self.world.after(self.world.random.uniform(0.0, 10.0), lambda: self.world.cloud.power_off(self.machine))

    def _stop_training(self) -> None:
        if self.training:
            self.trained_s += self.world.now_s - self.looked_s
            self.looked_s = self.world.now_s
            self.training = False

    # ── Facts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _try(self, action: object) -> bool:
        assert callable(action)
        try:
            action()
        except StoreError:
            return False
        return True

    def _read_log(self) -> None:
        self.state = job_log.read(self.store, self.machine.job, self.state)

    def _beat(self) -> None:
        self.beats += 1
        beat = Heartbeat(
            beat=self.beats,
            phase=self.phase,
            at=self._wall(),
            interval_s=TICK_S,
            trained_s=self.trained_s,
            step=int(self.step) if self.started_s is not None else None,
            restored_from=self.restored,
            checkpoint=self.checkpoint,
            rendezvous=self.rendezvous,
            ack=Ack(round=1, ok=True) if self.ready else None,
        )
        self.store.put(keys.heartbeat(self.node), codec.dumps(beat))

    def _tell_notice(self) -> None:
        if self.notice is not None and not self.notice_told and self.beats:
            notice = self.notice
            if self._try(lambda: self.store.put(keys.notice(self.node), codec.dumps(notice))):
                self.notice_told = True
                self.world.kick()

    def _commit(self) -> None:
        """Rank 0 keeps the checkpoint of the whole."""
        step = int(self.step)
        if self.machine.rank != 0 or step <= self.job.step_of(self.checkpoint.key if self.checkpoint else None):
            return
        # A number that was tried is used up: what was sent under it may still land.
        self.commits += 1
        key = keys.checkpoint_key(self.machine.claim, self.commits, f"step-{step}")
        self.store.put(keys.manifest(self.machine.job, key), b"{}")
        self.checkpoint = CheckpointRef(key, f"step-{step}", step)
        self.world.checks.committed(self, key, step)

    def _claim(self) -> Claim | None:
        return self.state.claim(self.machine.claim) if self.state else None

    def _peer_beat(self, claim: Claim, rank: int) -> Heartbeat | None:
        instance = claim.instance(rank)
        if instance is None:
            return None
        found = node_facts.read_node(self.store, self.machine.job, claim.number, rank, instance).heartbeat
        return found.value.value if isinstance(found, Known) and found.value else None

    def _peer_ready(self, claim: Claim, rank: int) -> bool:
        beat = self._peer_beat(claim, rank)
        return beat is not None and beat.ack is not None

    def _peer_left(self) -> float | None:
        """The grace of a peer that leaves: rank 0 watches all, the others watch rank 0."""
        claim = self._claim()
        if claim is None or claim.nodes == 1 or claim.launched is None:
            return None
        for node in claim.launched:
            if node.rank == self.machine.rank or (self.machine.rank != 0 and node.rank != 0):
                continue
            told = node_facts.read_node(self.store, self.machine.job, claim.number, node.rank, node.instance)
            if isinstance(told.notice, Known) and told.notice.value and told.notice.value.value.hard:
                return told.notice.value.value.grace_s
            left = told.exit.value.value if isinstance(told.exit, Known) and told.exit.value else None
            beat = told.heartbeat.value.value if isinstance(told.heartbeat, Known) and told.heartbeat.value else None
            if left is not None and left.outcome != "succeeded":
                return self.job.spec.checkpoints.grace_s
            if left is None and beat is not None and beat.phase == "saving":
                return self.job.spec.checkpoints.grace_s
        return None

    def _own_limit_s(self) -> float | None:
        most = self.job.spec.limits.max_runtime_s
        if most is None or self.state is None:
            return None
        spent = sum(c.closed.trained_s for c in self.state.since_opened() if c.closed)
        return max(0.0, most - spent)

    def _wall(self) -> datetime:
        """This node's own clock, which nobody may compare with another's."""
        return at(self.world.now_s) + self.skew


def poisoned_in(state: JobState | None) -> PoisonedCheckpoints:
    """The checkpoints that the log gives up on."""
    return poisoned_checkpoints(state, DEFAULT) if state else NONE_POISONED
