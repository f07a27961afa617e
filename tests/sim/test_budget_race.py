"""Governors that race at the edge of a budget, while stores and clouds fail: nobody claims once its money is spent."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from stoker.core import decide
from stoker.core.budget_state import FULL
from stoker.core.snapshot import JobSnapshot, Plan
from stoker.governor import loop
from stoker.governor.apply import Applier
from stoker.governor.budget_tracker import REREAD_AFTER_S, BudgetTracker
from stoker.governor.cost_ledger import read_daily_costs, record_job_costs
from stoker.governor.loop import Governor
from stoker.governor.observe import Memory, active_jobs
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreUnavailable
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Claimed, Entry, Event, Launched, Warned
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import Instance
from stoker.model.policy import Policy
from stoker.model.spec import Limits
from stoker.policy import versions
from stoker.providers.base import Request
from stoker.store import job_log
from stoker.store.base import Store
from stoker.testing.memory_store import Fault
from tests.support.sim import Caller, World
from tests.support.sim_checks import SLACK_S
from tests.support.sim_cloud import SimProvider
from tests.support.sim_data import at, make_spec
from tests.support.sim_scenario import RATES, Scenario, SimJob, make_scenario

DOLLARS = 0.5
# What saving costs is set aside of it: two nodes at $3 an hour, for a minute and a half, are 15 cents.
BOUNDS = (0.2, 0.25, 0.45)
POLICY = f"rules:\n- {{name: money, budget: {{dollars: {DOLLARS}, period: day, by: team}}}}\n"


class Watched(World):
    """Remembers when each pass began, when each governor last set out to write what, and from when on it may not have
    known then what others launched."""

    def point(self, caller: Caller, call: str) -> None:
        self.asked[caller.name, call] = self.now_s
        for name, job in [*self.blind_since]:
            if name == caller.name and call.startswith(f"create {keys.log_prefix(job)}"):
                self.wrote[name, call] = self.blind_since[name, job]
        super().point(caller, call)

    @property
    def wrote(self) -> dict[tuple[str, str], datetime]:
        found: dict[tuple[str, str], datetime] = self.__dict__.setdefault("_wrote", {})
        return found

    @property
    def asked(self) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = self.__dict__.setdefault("_asked", {})
        return found

    def one_pass(self, caller: Caller) -> None:
        self.began.setdefault(caller.name, []).append(self.now_s)
        super().one_pass(caller)

    @property
    def began(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = self.__dict__.setdefault("_began", {})
        return found

    def _new_governor(self, caller: Caller) -> Governor:
        governor = super()._new_governor(caller)
        refresh_before_launch = governor.budget_tracker.refresh_before_launch

        def looks(policy: Policy, job: str, now: datetime) -> None:
            self.blind_since[caller.name, job] = now - timedelta(seconds=REREAD_AFTER_S)
            refresh_before_launch(policy, job, now)

        governor.budget_tracker.refresh_before_launch = looks  # type: ignore[method-assign]
        return governor

    @property
    def blind_since(self) -> dict[tuple[str, str], datetime]:
        found: dict[tuple[str, str], datetime] = self.__dict__.setdefault("_blind_since", {})
        return found


def make_world(seed: int) -> Watched:
    source = random.Random(seed)
    scenario, _ = make_scenario(seed, source)
    rates = {name: source.choice(chances) for name, chances in RATES.items() if name != "quota"} | {"quota": 0.0}
    scenario = Scenario(
        seed=seed,
        governors=3,
        skewed=True,
        capabilities=scenario.capabilities,
        rates=rates,
        incidents=tuple((source.uniform(0.0, 1500.0), what) for what in ("notice", "vanish", "notice", "agent_death")),
        faults_until_s=3000.0,
    )
    jobs = [
        SimJob(
            f"job-{n}",
            replace(
                make_spec(source.choice((1, 2)), user_errors=2, limits=Limits(max_cost=source.choice(BOUNDS))),
                tags={"team": source.choice(("a", "a", "b"))},
            ),
            work=source.choice((60, 200, 800)),
            every=20,
            pace=1.0,
        )
        for n in range(6)
    ]
    return Watched(scenario, {job.name: job for job in jobs}, source)


def play(seed: int) -> Watched:
    world = make_world(seed)
    versions.write(world.store, POLICY, "jane")
    for job in world.jobs.values():
        world.after(world.random.uniform(0.0, 1500.0), lambda job=job: world.submit(job))  # type: ignore[misc]
    for caller in world.callers:
        world.after(world.random.uniform(0.0, 20.0), lambda caller=caller: world.tick(caller))  # type: ignore[misc]
    for moment_s, what in world.scenario.incidents:
        world.after(moment_s, lambda what=what: world.strike(what))  # type: ignore[misc]
    world.run_until(3000.0)
    return world


def logs(world: Watched) -> dict[str, list[Entry]]:
    return {job: list(job_log.entries(world.store, job)) for job in world.jobs}


def spent(
    world: Watched,
    told: dict[str, list[Entry]],
    team: str,
    moment: datetime,
    unseen: tuple[str, datetime] | None = None,
) -> float:
    """What the team's jobs had cost by then, reckoned from the machines that the logs name.

    `unseen`: a governor, and since when it does not see what others launched.
    """
    total = 0.0
    for job, entries in told.items():
        if world.jobs[job].spec.tags["team"] != team:
            continue
        state: JobState | None = fold(job, [entry for entry in entries if entry.at <= moment])
        for claim in state.claims if state else ():
            if claim.launched_at is not None:
                by = next(e.by for e in entries if isinstance(e.event, Launched) and e.event.claim == claim.number)
                if unseen is not None and by != unseen[0] and claim.launched_at >= unseen[1]:
                    continue
                held_s = ((claim.closed_at or moment) - claim.launched_at).total_seconds()
                total += held_s * (claim.offering.price or 0.0) / 3600 * len(claim.launched or ())
    return total


@pytest.mark.parametrize("seed", range(40))
def test_no_governor_claims_once_the_money_is_spent(seed: int) -> None:
    """Nor launches what another claimed, and left behind, before it was spent; nor what would not fit beside all that
    is reserved. Three governors, lost replies, stores that fail, machines that vanish."""
    world = play(seed)
    told = logs(world)
    for job, entries in told.items():
        team = world.jobs[job].spec.tags["team"]
        for entry in entries:
            began = [at(moment) for moment in world.began.get(entry.by, ()) if at(moment) <= entry.at]
            match entry.event:
                case Claimed():
                    # The store may take its time with it.
                    call = f"create {keys.log_entry(job, entry.seq)}"
                    moment, blind_since = at(world.asked[entry.by, call]), world.wrote[entry.by, call]
                case Launched(claim=claim) if began and (began[-1] - entries[claim - 1].at).total_seconds() > 60:
                    # A launch takes a while, and is not called back.
                    moment = blind_since = began[-1]
                case _:
                    continue
            before = spent(world, told, team, moment, unseen=(entry.by, blind_since))
            assert before < DOLLARS, "\n".join([f"{job} #{entry.seq}: ${before} were spent", *world.trace])
    check_reserves(world, told)


def committed(world: Watched, told: dict[str, list[Entry]], team: str, moment: datetime) -> float:
    """What the team's jobs that had begun by then may cost: all that is reserved, and what those spent that are over.

    A governor that comes late lets a job cost more than its bound; that is no launch's fault.
    """
    total = 0.0
    for job, entries in told.items():
        spec = world.jobs[job].spec
        state = fold(job, [entry for entry in entries if entry.at <= moment])
        if spec.tags["team"] != team or state is None or not state.attempts:
            continue
        assert spec.limits.max_cost is not None
        cost = min(spec.limits.max_cost, spent(world, {job: entries}, team, moment))
        total += cost if state.ended is not None else spec.limits.max_cost
    return total


def check_reserves(world: Watched, told: dict[str, list[Entry]]) -> None:
    """At every launch, what all may cost together is within the budget: there is no allowance for a race."""
    for job, entries in told.items():
        team = world.jobs[job].spec.tags["team"]
        for entry in entries:
            if isinstance(entry.event, Launched):
                total = committed(world, told, team, entry.at)
                assert total <= DOLLARS + 1e-9, "\n".join([f"{job} #{entry.seq}: ${total}", *world.trace])
        spec = world.jobs[job].spec
        # A job runs on while no governor finishes a pass, and for some minutes more.
        late_s = SLACK_S + world.ungoverned_s
        bound = (spec.limits.max_cost or 0.0) + 3.0 * spec.nodes * late_s / 3600
        assert spent(world, {job: entries}, team, at(world.now_s)) <= bound, "\n".join(world.trace)


def crowd(count: int, max_cost: float = 0.1) -> Watched:
    """Jobs of one team that never end, in a world without trouble."""
    world = make_world(1)
    world.scenario = replace(world.scenario, rates=dict.fromkeys(RATES, 0.0))
    world.quiet = True
    spec = replace(make_spec(limits=Limits(max_cost=max_cost)), tags={"team": "a"})
    world.jobs = {f"job-{n:02d}": SimJob(f"job-{n:02d}", spec, work=10**6, every=20, pace=1.0) for n in range(count)}
    versions.write(world.store, POLICY, "jane")
    for job in world.jobs.values():
        world.submit(job)
    return world


def claimed(told: dict[str, list[Entry]]) -> list[tuple[datetime, str]]:
    """When which jobs were claimed, in order."""
    return sorted((entry.at, job) for job, log in told.items() for entry in log if isinstance(entry.event, Claimed))


def test_a_pass_that_launches_many_stops_when_all_is_reserved() -> None:
    """Each launch takes a minute, and what it got costs money while the next one is made: within a single pass."""
    world = crowd(30)
    real = SimProvider.launch

    def slow(self: SimProvider, requests: tuple[Request, ...]) -> tuple[Instance, ...]:
        world.run_until(world.now_s + 60.0)
        return real(self, requests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimProvider, "launch", slow)
        done = world._new_governor(world.callers[0]).run_pass()
    told = logs(world)
    claims = claimed(told)
    assert len(claims) == 5, "of ten cents each"
    assert all(committed(world, told, "a", moment) <= DOLLARS for moment, _ in claims)
    kept_back = set(told) - {job for _, job in claims}
    assert all("policy money" in done.waiting[job] for job in kept_back)


@pytest.mark.parametrize("late", [False, True], ids=["jobs-that-were-there", "jobs-that-came-since"])
def test_a_pass_that_launches_many_sees_what_another_launches_meanwhile(late: bool) -> None:
    """A is in a long pass, each launch of which takes a minute; B launches twenty while A makes its first."""
    world = crowd(40, 0.03)
    others = [job for job in world.jobs.values() if job.name >= "job-20"]
    if late:
        world.store.delete([keys.active(job.name, 1) for job in others])
    real = SimProvider.launch
    by_a: list[int] = []

    def slow(self: SimProvider, requests: tuple[Request, ...]) -> tuple[Instance, ...]:
        if requests[0].params["order"].job < "job-20":
            by_a.append(1)
            if len(by_a) == 1:
                for job in others:
                    world.store.put(keys.active(job.name, 1), b"")
                world._new_governor(world.callers[1]).run_pass(only={job.name for job in others})
            world.run_until(world.now_s + 60.0)
        return real(self, requests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimProvider, "launch", slow)
        done = world._new_governor(world.callers[0]).run_pass()
    told = logs(world)
    claims = claimed(told)
    assert len(claims) == 16, "one by A, and by B as many as are left"
    assert all(committed(world, told, "a", moment) <= DOLLARS + 1e-9 for moment, _ in claims)
    assert "is spent or reserved" in done.waiting["job-19"]


def test_two_governors_that_claim_at_once_do_not_both_launch() -> None:
    """B claims and launches its job after A has judged, and before A has claimed: as close as a race can be."""
    world = crowd(2, 0.4)
    first, second = world.jobs
    append = Applier._append
    raced: list[bool] = []

    def slow(self: Applier, job: str, seq: int, event: Event, reason: str) -> bool:
        if isinstance(event, Claimed) and not raced:
            raced.append(True)
            world._new_governor(world.callers[1]).run_pass(only={second})
            world.run_until(world.now_s + 5.0)
        return append(self, job, seq, event, reason)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Applier, "_append", slow)
        done = world._new_governor(world.callers[0]).run_pass(only={first})
    told = logs(world)
    assert [job for _, job in claimed(told)] == [second, first], "both were claimed"
    states = {job: fold(job, entries) for job, entries in told.items()}
    assert all(state is not None for state in states.values())
    assert states[second].open_claims and not states[first].open_claims  # type: ignore[union-attr]
    (lost,) = states[first].claims  # type: ignore[union-attr]
    assert lost.closed is not None and (lost.closed.outcome, lost.closed.rule) == ("abandoned", "policy:money")
    assert "waits for $0.40" in done.waiting[first]


def test_one_job_that_makes_no_sense_keeps_no_other_from_being_governed() -> None:
    """An absurd number in one job file stumbles on its own."""
    world = make_world(1)
    world.scenario = replace(world.scenario, rates=dict.fromkeys(RATES, 0.0))
    world.quiet = True
    bad, good = list(world.jobs.values())[:2]
    world.jobs = {job.name: replace(job, work=10**6) for job in (bad, good)}
    for job in world.jobs.values():
        world.submit(job)
    governor = world._new_governor(world.callers[0])
    real = decide.decide_job

    def stumbling(job: JobSnapshot, *rest: Any, **more: Any) -> Plan:
        if job.state.job == bad.name:
            raise OverflowError("date value out of range")
        return real(job, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decide, "decide_job", stumbling)
        done = governor.run_pass()
    assert "OverflowError" in done.problems[bad.name] and good.name not in done.problems
    state = job_log.read(world.store, good.name)
    assert state is not None and state.open_claims


def test_money_that_cannot_be_written_down_keeps_no_other_job() -> None:
    world = make_world(1)
    world.scenario = replace(world.scenario, rates=dict.fromkeys(RATES, 0.0))
    world.quiet = True
    first, second = list(world.jobs.values())[:2]
    world.jobs = {job.name: replace(job, work=10) for job in (first, second)}
    for job in world.jobs.values():
        world.submit(job)

    def failing(store: Store, state: JobState, *rest: Any) -> None:
        if state.job == first.name:
            raise OverflowError("cannot convert float infinity to integer")
        record_job_costs(store, state, *rest)

    world.after(0.0, lambda: world.tick(world.callers[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "record_job_costs", failing)
        patch.setattr(world.checks, "fail", lambda _text: None)
        world.run_until(3000.0)
    assert set(active_jobs(world.store)) == {first.name}


def test_who_looks_at_one_job_counts_what_the_others_spend() -> None:
    """Also one that has never seen them, as a function does that an event starts."""
    world = make_world(1)
    world.quiet = True
    world.scenario = replace(world.scenario, rates=dict.fromkeys(RATES, 0.0))
    first, second = (replace(job, spec=replace(job.spec, tags={"team": "a"})) for job in list(world.jobs.values())[:2])
    world.jobs = {job.name: replace(job, work=10**6) for job in (first, second)}
    versions.write(world.store, POLICY, "jane")
    world.submit(world.jobs[first.name])
    world.one_pass(world.callers[0])
    world.run_until(3600.0)
    world.submit(world.jobs[second.name])
    for only in ({second.name}, {second.name, first.name}):
        governor = world._new_governor(world.callers[1])
        done = governor.run_pass(only=only)
        state = job_log.read(world.store, second.name)
        assert state is not None and not state.claims
        assert "policy money" in done.waiting[second.name]
    versions.write(world.store, POLICY.replace(str(DOLLARS), "500"), "jane")
    world._new_governor(world.callers[1]).run_pass(only={second.name})
    state = job_log.read(world.store, second.name)
    assert state is not None and state.claims


def test_the_edge_is_reached() -> None:
    """Some jobs wait at a full budget, some claims came before it: the test above is about something."""
    full = claims = 0
    for seed in range(6):
        for entries in logs(play(seed)).values():
            claims += sum(1 for entry in entries if isinstance(entry.event, Claimed))
            full += sum(1 for entry in entries if isinstance(entry.event, Warned) and entry.event.code.endswith(FULL))
    assert full and claims > full


def test_what_a_job_spent_stays_when_it_is_forgotten() -> None:
    for seed in range(10):
        world = play(seed)
        told = logs(world)
        forgotten = [job for job in world.jobs if told[job] and job not in active_jobs(world.store)]
        found = {each.job: each for each in read_daily_costs(world.store, [keys.SPENT])}
        for job in forgotten:
            state = fold(job, told[job])
            assert state is not None and state.ended is not None
            if any(claim.launched for claim in state.claims):
                alone = {job: told[job]}
                team = world.jobs[job].spec.tags["team"]
                cost = found[job].sums.spent.known
                assert cost == pytest.approx(spent(world, alone, team, state.ended.at), abs=1e-5)
                assert found[job].tags == {"team": team}


def test_the_sum_is_unknown_as_soon_as_one_part_of_it_is() -> None:
    # One that is not over yet.
    world = next(found for found in map(play, range(40)) if active_jobs(found.store))
    policy = versions.parsed_policy(versions.current(world.store))
    jobs = tuple(active_jobs(world.store))
    now = at(world.now_s)
    for broken in (keys.SPENT, keys.log_prefix(jobs[0]), keys.spec(jobs[0])):

        def faults(_operation: str, key: str, broken: str = broken) -> Fault | None:
            return Fault(error=StoreUnavailable("no answer")) if key.startswith(broken) else None

        keeper = BudgetTracker(world.store.client(faults), Memory())
        keeper.begin(jobs)
        assert isinstance(keeper.read_state(policy, now), Unknown), broken
        keeper = BudgetTracker(world.store, Memory())
        keeper.begin(jobs)
        assert isinstance(keeper.read_state(policy, now), Known)


def test_a_job_is_not_forgotten_before_its_money_is_written_down() -> None:
    world = make_world(1)
    world.quiet = True
    (job, *_) = world.jobs.values()
    world.jobs = {job.name: replace(job, work=10)}
    world.submit(world.jobs[job.name])
    world.after(0.0, lambda: world.tick(world.callers[0]))

    def denied(_operation: str, key: str) -> Fault | None:
        return Fault(error=StoreDenied("you may not write there")) if key.startswith(keys.SPENT) else None

    real = world.store.client
    world.store.client = lambda faults=None: real(denied if faults else None)  # type: ignore[assignment, method-assign]
    world.run_until(3000.0)
    state = job_log.read(world.store, job.name)
    assert state is not None and state.ended is not None
    assert job.name in active_jobs(world.store)
    done = world._new_governor(world.callers[1]).run_pass()
    assert done.problems[job.name] == "you may not write there" == done.waiting[job.name]
    world.store.client = real  # type: ignore[method-assign]
    world._new_governor(world.callers[1]).run_pass()
    assert job.name not in active_jobs(world.store)
    assert [each.job for each in read_daily_costs(world.store, [keys.SPENT])] == [job.name]
