"""A simulation of everything around the real governor, with a virtual clock and seeded faults.

    python -m tests.support.sim SEED          replay one seed and print what happened
    python -m tests.support.sim FIRST LAST    run many

The governor, the log, the facts, the gate and the retry rules are the real ones. Made up are the cloud (`sim_cloud`),
the agents' training (`sim_agent`) and time. Governors interleave with the world, and with each other, at each of their
calls of the store and the cloud: there the clock may move on, another governor may make a whole pass, the call may
fail, its reply may be lost, or the governor may crash. Whoever writes a provider can put their own faults here.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from stoker.governor.connected_providers import Fleet
from stoker.governor.loop import Governor
from stoker.model import codec, keys
from stoker.model.errors import StokerError, StoreError, StoreUnavailable
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Event, ResumeAsked, StopAsked, Submitted
from stoker.model.submission import Submission
from stoker.store import job_log
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_agent import Agent
from tests.support.sim_checks import Checks, Violation
from tests.support.sim_cloud import Cloud, Machine, SimProvider
from tests.support.sim_data import SPOT_A, at
from tests.support.sim_late import LateRequests, Remover
from tests.support.sim_scenario import Scenario, SimJob, make_scenario

# From the end of all faults until everything must be over.
REST_WITHIN_S = 4 * 3600.0
# Passes that may be needed for that.
MOST_PASSES = 800
# A governor stops for so long, in the middle of a pass, that its job may have ended and be removed meanwhile.
_STALLED = 0.02
# Governors inside governors.
_DEEPEST = 2


_BUGS = frozenset(
    error.__name__
    for error in (AssertionError, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
)


class Crash(BaseException):
    """A governor's process dies here. Not an Exception: nothing may catch it."""


@dataclass
class Caller:
    """One governor process after another under the same name."""

    name: str
    skew_s: float
    governor: Governor | None = None
    busy: bool = False
    paused_until_s: float = 0.0
    # When it looked for a job's tombstone: since it last read or wrote the log of the job.
    looked_s: dict[str, float] = field(default_factory=dict)


@dataclass
class Result:
    """What came of a seed. `violation` is None when every invariant held."""

    seed: int
    violation: str | None
    trace: list[str]
    passes: int
    outcomes: tuple[str, ...]
    attempts: int


@dataclass
class World:
    """Everything there is, and its clock."""

    scenario: Scenario
    jobs: dict[str, SimJob]
    random: random.Random
    now_s: float = 0.0
    quiet: bool = False
    outage_until_s: float = 0.0
    depth: int = 0
    passes: int = 0
    trace: list[str] = field(default_factory=list)
    dry_until_s: dict[str, float] = field(default_factory=dict)
    launched_twice: set[str] = field(default_factory=set)
    queue: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    counter: int = 0
    # When a governor last finished a pass, and how long that ever took.
    passed_s: float = 0.0
    ungoverned_s: float = 0.0
    # The changes of the store that `sync` has seen.
    synced: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.checks = Checks(self)
        self.cloud = Cloud(self)
        self.store = MemoryStore(lambda: at(self.now_s), is_local=True)
        self.late = LateRequests(self)
        self.remover = Remover(self)
        self.callers = [
            Caller(f"governor-{n}", self.random.uniform(-60.0, 60.0) if self.scenario.skewed else 0.0)
            for n in range(self.scenario.governors)
        ]

    # ── Time ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.counter += 1
        heapq.heappush(self.queue, (self.now_s + seconds, self.counter, action))

    def run_until(self, moment_s: float) -> None:
        """Let everything happen that is due by then."""
        while self.queue and self.queue[0][0] <= moment_s:
            due_s, _, action = heapq.heappop(self.queue)
            self.now_s = max(self.now_s, due_s)
            action()
            self.sync()
        self.now_s = max(self.now_s, moment_s)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_s:9.1f}  {text}")

    def chance(self, fault: str) -> bool:
        rate = self.scenario.rates[fault]
        return rate > 0.0 and not self.quiet and self.random.random() < rate

    # ── Governors ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def point(self, caller: Caller, call: str) -> None:
        """A governor is about to call the store or the cloud. The world goes on first, and the governor may not."""
        self.sync()
        if self.quiet:
            return
        if self.chance("crash"):
            self.note(f"{caller.name} crashes before: {call}")
            raise Crash
        if self.chance("interleave"):
            other = self.random.choice(self.callers)
            if self.depth < _DEEPEST and not other.busy and self.random.random() < 0.5:
                self.one_pass(other)
            else:
                longest_s = self.random.choice((1.0, 3.0, 3.0, 10.0, 10.0, 30.0, 150.0))
                if self.scenario.removes and self.late.random.random() < _STALLED:
                    longest_s = 1200.0
                self.run_until(self.now_s + self.random.uniform(0.0, longest_s))

    def one_pass(self, caller: Caller) -> None:
        """A whole pass of the real governor, at this moment."""
        if caller.busy or self.now_s < caller.paused_until_s:
            return
        caller.busy = True
        self.depth += 1
        self.passes += 1
        try:
            if caller.governor is None:
                caller.governor = self._new_governor(caller)
            done = caller.governor.run_pass()
            self.ungoverned_s = max(self.ungoverned_s, self.now_s - self.passed_s)
            self.passed_s = self.now_s
            for problem in done.problems.values():
                # A governor carries on past its own bugs; the simulation does not.
                if problem.split(":")[0] in _BUGS:
                    self.checks.fail(f"{caller.name} stumbled: {problem}")
        except Crash:
            caller.governor = None
        except StokerError as error:
            self.note(f"{caller.name} gives up a pass: {error}")
        finally:
            caller.busy = False
            self.depth -= 1

    def _new_governor(self, caller: Caller) -> Governor:
        def faults(operation: str, key: str) -> Fault | None:
            self.point(caller, f"{operation} {key}")
            if operation == "head" and key.startswith(keys.REMOVED):
                caller.looked_s[key.removeprefix(keys.REMOVED)] = self.now_s
            elif key.startswith(keys.JOBS) and "/log/" in key:
                caller.looked_s.pop(key.split("/")[1], None)
            if self.now_s < self.outage_until_s or self.chance("store_before"):
                return Fault(error=StoreUnavailable("no answer"))
            if operation in ("put", "create") and self.chance("store_after"):
                return Fault(after=True, error=StoreUnavailable("the reply was lost"))
            return self.late.fault(operation, key)

        store = self.store.client(faults)
        fleet = Fleet(store.url, connect=lambda _name: SimProvider(self, caller))
        return Governor(
            store,
            fleet,
            name=caller.name,
            monotonic=lambda: self.now_s + caller.skew_s,
            token=lambda: f"{self.random.getrandbits(64):x}",
        )

    def tick(self, caller: Caller) -> None:
        if self.depth < _DEEPEST:
            self.one_pass(caller)
        self.after(self.random.uniform(10.0, 60.0), lambda: self.tick(caller))

    def kick(self) -> None:
        """Something happened on a machine: a governor nearby may look at once."""
        caller = self.random.choice(self.callers)
        if self.random.random() < 0.7:
            self.after(self.random.uniform(0.0, 2.0), lambda: self.one_pass(caller) if self.depth < _DEEPEST else None)

    # ── Jobs and machines ─────────────────────────────────────────────────────────────────────────────────────────────

    def sync(self) -> None:
        """Carry the truth on over what was appended, and hold it against what runs."""
        changes = self.store.changes
        if changes == self.synced:
            return
        for job in self.jobs.values():
            self.remover.notice(job)
            while job.removed_at_s is None:
                seq = job.state.seq + 1 if job.state else 1
                key = keys.log_entry(job.name, seq)
                if not self.store.holds(key):
                    break
                found = self.store.get(key)
                assert found is not None
                entry = job_log.parse(seq, found)
                job.state = fold(job.name, [entry], job.state)
                self.note(f"{job.name} #{seq} {entry.event.kind}: {entry.reason} [{entry.by}]")
                self.checks.logged(job)
        self.synced = changes

    def boot(self, machine: Machine) -> None:
        if machine.job not in self.jobs:
            return
        if self.chance("never_boots"):
            self.note(f"{machine.id} never boots")
            return

        def up() -> None:
            if machine.alive:
                machine.agent = Agent(self, machine)
                machine.agent.start()

        self.after(self.random.uniform(2.0, 40.0), up)

    def agent_store(self, agent: Agent) -> MemoryStore:
        def faults(operation: str, key: str) -> Fault | None:
            if not agent.reachable:
                return Fault(error=StoreUnavailable("no answer"))
            return self.late.fault(operation, key)

        return self.store.client(faults)

    def gang_trains(self, machine: Machine) -> bool:
        """Whether every other rank trains, or has finished: else the collective operations wait."""
        missing = set(range(self.jobs[machine.job].spec.nodes)) - {machine.rank}
        for peer in self.cloud.machines.values():
            if missing and peer.job == machine.job and peer.claim == machine.claim and peer.agent is not None:
                finished = peer.agent.left is not None and peer.agent.left.outcome == "succeeded"
                if peer.agent.training or finished:
                    missing.discard(peer.rank)
        return not missing

    def training(self, job: SimJob) -> list[Agent]:
        return [
            m.agent
            for m in self.cloud.machines.values()
            if m.job == job.name and m.agent is not None and m.alive and m.agent.training
        ]

    def submit(self, job: SimJob) -> None:
        data = codec.dumps(Submission(job=job.name, spec=job.spec, submitter="jane"))
        self.store.put(keys.spec(job.name), data)
        self._append(job, lambda state: Submitted(codec.digest(data), "jane") if state is None else None)

    def _append(self, job: SimJob, wanted: Callable[[JobState | None], Event | None]) -> None:
        def decide(state: JobState | None) -> tuple[Event, str] | None:
            event = wanted(state)
            return (event, "a person asked") if event is not None else None

        announced: list[str] = []

        def mark(seq: int) -> None:
            if not isinstance(wanted(job.state), StopAsked):
                announced.append(keys.announcement(job.name, seq, f"{self.counter}"))
                self.store.put(announced[-1], b"")

        after = job_log.append_next(self.store, job.name, None, decide, "jane", mark)
        if announced and after is not None:
            self.store.put(keys.active(job.name, after.opened_seq), b"")
            self.store.delete(announced)

    def resume(self, job: SimJob) -> None:
        if not self.quiet:
            self._append(job, lambda s: ResumeAsked("jane") if s and s.ended and not s.removal_at else None)

    # ── Incidents ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def strike(self, what: str) -> None:
        """One incident, to whoever is there."""
        if self.quiet:
            return
        job = self.random.choice(list(self.jobs.values()))
        agents = [m.agent for m in self.cloud.machines.values() if m.alive and m.agent and m.agent.alive]
        training = [agent for agent in agents if agent.training]
        target = self.random.choice(training if training and self.random.random() < 0.7 else agents or [None])
        match what:
            case "stop":
                self._append(job, lambda s: StopAsked("jane") if s and not s.ended and not s.stop else None)
            case "resume":
                self.resume(job)
            case "outage":
                self.note("the store is out for an hour")
                self.outage_until_s = self.now_s + 3600.0
            case "governor_pause":
                self.random.choice(self.callers).paused_until_s = self.now_s + self.random.uniform(60.0, 400.0)
            case _ if target is None:
                self.after(60.0, lambda: self.strike(what))
            case "notice" | "short_notice":
                grace_s = self.random.choice((120.0, 30.0)) if what == "notice" else self.random.uniform(1.0, 8.0)
                target.give_notice(grace_s, hard=True)
                if self.random.random() < 0.9:
                    self.after(grace_s, lambda: self.cloud.vanish(target.machine))
            case "soft_notice":
                target.give_notice(120.0, hard=False)
            case "vanish":
                self.note(f"{target.machine.id} vanishes")
                self.cloud.vanish(target.machine)
            case "partition":
                target.partitioned_until_s = self.now_s + self.random.choice((20.0, 100.0, 400.0, 2000.0))
                self.note(f"{target.machine.id} is cut off until {target.partitioned_until_s:.0f}")
            case "agent_death":
                target.die()

    # ── The whole ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Faults, then quiet, then rest. Raises Violation."""
        for stranger in ("foreign", "ghost"):
            self.cloud.create(stranger, 2, 0, SPOT_A)
        for job in self.jobs.values():
            self.submit(job)
        for caller in self.callers:
            self.after(self.random.uniform(0.0, 20.0), lambda caller=caller: self.tick(caller))  # type: ignore[misc]
        for moment_s, what in self.scenario.incidents:
            self.after(moment_s, lambda what=what: self.strike(what))  # type: ignore[misc]
        last_s = max((moment_s for moment_s, _ in self.scenario.incidents), default=0.0)
        while self.now_s < self.scenario.faults_until_s and not (self.now_s > last_s and self.checks.at_rest()):
            self.run_until(self.now_s + 30.0)
        self.run_until(self.outage_until_s)
        self.quiet = True
        self.note("from here on nothing goes wrong")
        deadline_s, most = self.now_s + REST_WITHIN_S, self.passes + MOST_PASSES
        while self.late.pending or not self.checks.at_rest():
            if self.now_s > deadline_s or self.passes > most:
                self.checks.fail("it does not come to rest")
            self.run_until(self.now_s + 20.0)
        self.run_until(self.now_s + 120.0)  # The last pass writes the index.
        if not self.checks.at_rest():
            self.checks.fail("it was at rest, and began anew")
        self.checks.at_the_end()


def simulate(seed: int) -> Result:
    """Run one seed from beginning to end. Deterministic: the same seed gives the same trace."""
    source = random.Random(seed)
    scenario, jobs = make_scenario(seed, source)
    world = World(scenario, {job.name: job for job in jobs}, source)
    violation: str | None = None
    try:
        world.run()
    except Violation as error:
        violation = str(error)
    except Exception as error:  # noqa: BLE001 - whatever a governor raises is a finding, and the trace must be shown
        violation = f"{type(error).__name__}: {error}"
    states = [job.state for job in jobs if job.state is not None]
    return Result(
        seed=seed,
        violation=violation,
        trace=[_header(scenario, jobs), *world.trace],
        passes=world.passes,
        outcomes=tuple(state.ended.outcome if state.ended else "open" for state in states),
        attempts=sum(len(state.attempts) for state in states),
    )


def _header(scenario: Scenario, jobs: list[SimJob]) -> str:
    rates = {name: rate for name, rate in scenario.rates.items() if rate}
    what = "; ".join(
        f"{job.name}: {job.spec.nodes} nodes, {job.work} steps, fails {job.fails_at}, poison {job.poison_from}, "
        f"{job.spec.limits}, user_errors {job.spec.retry.user_errors}"
        for job in jobs
    )
    return f"seed {scenario.seed}: {scenario.governors} governors, {rates}, {what}"


def main(arguments: list[str]) -> int:
    """Replay a seed, or run a range of them."""
    if len(arguments) == 1:
        result = simulate(int(arguments[0]))
        print(*result.trace, sep="\n")
        print(f"violation: {result.violation}")
        return 1 if result.violation else 0
    bad = 0
    for seed in range(int(arguments[0]), int(arguments[1])):
        result = simulate(seed)
        if result.violation:
            bad += 1
            print(f"seed {seed}: {result.violation}", flush=True)
    print(f"{bad} of {int(arguments[1]) - int(arguments[0])} seeds violate an invariant")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


__all__ = ["Crash", "Result", "StoreError", "World", "main", "simulate"]
