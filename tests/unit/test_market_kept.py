"""Governors write down what claims saw of the market, once, whoever closes them, and every job's governor reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from stoker.core.market import NO_HISTORY, Tally
from stoker.governor.connected_providers import Fleet
from stoker.governor.loop import Governor
from stoker.governor.market_records import MarketReader, MarketWriter
from stoker.model import codec, keys
from stoker.model.errors import NoCapacity, StoreDenied, StoreError, StoreUnavailable
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Launched, StopAsked, Submitted
from stoker.model.offerings import Capabilities, Instance, InstanceState, Offering
from stoker.model.policy import NO_RULES
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.policy.policy_file import parse_policy
from stoker.policy.versions import write
from stoker.providers.base import EndReason, LaunchOrder, Request, TerminateResult
from stoker.store import job_log
from stoker.testing.memory_store import Fault, Faults, MemoryStore
from tests.support.sim_data import CAPABILITIES, ON_DEMAND, SPOT_A, SPOT_B, at, make_spec, make_state, nodes


@dataclass
class Cloud:
    """A `Provider` whose machines never say anything: they run until they are taken back."""

    name: str = "sim"
    capabilities: Capabilities = CAPABILITIES
    dry: set[str] = field(default_factory=set)
    machines: dict[str, Instance] = field(default_factory=dict)
    now_s: float = 0.0

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        return (SPOT_A, SPOT_B, ON_DEMAND)

    def build(self, order: LaunchOrder) -> tuple[Request, ...]:
        return (Request("sim", "launch", {"order": order}),)

    def launch(self, requests: tuple[Any, ...]) -> tuple[Instance, ...]:
        order: LaunchOrder = requests[0].params["order"]
        if order.offering.key in self.dry:
            raise NoCapacity("there is none")
        born = at(self.now_s)
        made = Instance(f"i-{order.token}", "sim", order.job, order.claim, 0, "running", born)
        return (self.machines.setdefault(made.id, made),)

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        return tuple(each for each in self.machines.values() if each.state != "gone")

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        return {each: self.machines[each].state for each in ids}

    def terminate(self, instance: str, region: str | None = None) -> TerminateResult:
        self.machines[instance] = replace(self.machines[instance], state="gone")
        return "gone"

    def end_reason(self, instance: str, region: str | None = None) -> EndReason | None:
        return EndReason(reclaimed=True, reason="spot")

    def take_back(self) -> None:
        for name, machine in self.machines.items():
            self.machines[name] = replace(machine, state="gone")


class World:
    """A store in memory, a cloud, and as many governors as somebody asks for. The clock moves when it is told to."""

    def __init__(self) -> None:
        self.cloud = Cloud()
        self.store = MemoryStore(lambda: at(self.cloud.now_s))
        self.listed: list[str] = []

    def governor(self, faults: Faults | None = None) -> Governor:
        def watch(operation: str, key: str) -> Fault | None:
            if operation == "list":
                self.listed.append(key)
            return faults(operation, key) if faults else None

        fleet = Fleet(self.store.url, connect=lambda _name: self.cloud)
        return Governor(self.store.client(watch), fleet, monotonic=lambda: self.cloud.now_s)

    def submit(self, job: str, spec: Spec) -> None:
        data = codec.dumps(Submission(job=job, spec=spec, submitter="jane"))
        self.store.put(keys.spec(job), data)
        self.store.put(keys.active(job, 1), b"")
        opened = Submitted(codec.digest(data), "jane")
        job_log.append_next(self.store, job, None, lambda state: None if state else (opened, "asked for"), "jane")

    def submit_stop(self, job: str) -> None:
        job_log.append_next(self.store, job, None, lambda _: (StopAsked("jane"), "enough"), "jane")

    def later(self, seconds: float) -> None:
        self.cloud.now_s += seconds

    def state(self, job: str) -> JobState:
        found = job_log.read(self.store, job)
        assert found is not None
        return found

    def sightings(self) -> list[str]:
        return [meta.key for meta in self.store.list(keys.MARKET)]


@pytest.fixture
def world() -> World:
    return World()


def test_one_that_finds_no_spot_is_on_demand_after_the_wait(world: World) -> None:
    spec = make_spec(spot="only")
    world.submit("a-1", replace(spec, retry=replace(spec.retry, spot_wait_s=1000.0)))
    world.cloud.dry = {SPOT_A.key, SPOT_B.key}
    governor = world.governor()
    governor.run_pass()
    assert not world.cloud.machines
    world.later(300)
    governor.run_pass()
    world.later(699)
    assert governor.run_pass().waiting["a-1"].endswith("after 16 min 40 s without a machine (retry.spot_wait)")
    world.later(1)
    governor.run_pass()
    (claim,) = world.state("a-1").open_claims
    assert claim.offering == ON_DEMAND and claim.reason.endswith("on-demand: no spot in 16 min 40 s (retry.spot_wait)")
    dry = [key.removeprefix("market/2026-01-01/sim/m1/") for key in world.sightings()]
    assert dry == ["a/spot/00/00.dry", "a/spot/00/10.dry", "b/spot/00/00.dry", "b/spot/00/10.dry"]
    assert len([claim for claim in world.state("a-1").claims if claim.closed]) > 4, "it asked oftener than that"


def test_the_policy_lets_it(world: World) -> None:
    world.submit("a-1", make_spec(spot="only"))
    world.cloud.dry = {SPOT_A.key, SPOT_B.key}
    governor = world.governor()
    governor.run_pass()
    write(world.store, "rules:\n- {name: patience, max_wait: 10m, then: on-demand}\n", "jane")
    world.later(600)
    governor.run_pass()
    (claim,) = world.state("a-1").open_claims
    assert claim.reason.endswith("on-demand: no spot in 10 min (policy patience)")


def test_two_governors_that_close_the_same_claim_leave_one_sighting(world: World) -> None:
    world.submit("a-1", make_spec())
    first, second = world.governor(), world.governor()
    first.run_pass()
    second.run_pass()
    assert world.sightings() == []
    world.later(1800)
    world.cloud.take_back()
    first.run_pass()
    second.run_pass()
    (taken,) = [key for key in world.sightings() if ".reclaimed." in key]
    assert taken == "market/2026-01-01/sim/m1/a/spot/00/a-1.2.reclaimed.30"


def test_what_was_not_written_is_written_before_the_job_is_forgotten(world: World) -> None:
    def lost(operation: str, key: str) -> Fault | None:
        return Fault() if operation == "create" and key.startswith(keys.MARKET) else None

    spec = make_spec()
    world.submit("a-1", replace(spec, limits=replace(spec.limits, max_runtime_s=1.0)))
    blind = world.governor(lost)
    blind.run_pass()
    world.later(300)
    world.cloud.take_back()
    blind.run_pass()
    assert world.sightings() == [] and len(world.state("a-1").claims) == 2
    world.submit_stop("a-1")
    world.later(300)
    blind.run_pass()
    world.cloud.take_back()
    world.later(300)
    blind.run_pass()
    assert world.state("a-1").ended is not None
    assert list(world.store.list(keys.ACTIVE)), "it is not forgotten while this is missing"
    world.governor().run_pass()
    assert not list(world.store.list(keys.ACTIVE))
    assert sorted(key.rpartition("/")[2].split(".")[2] for key in world.sightings()) == ["reclaimed", "served"]


def test_a_governor_that_may_not_write_there_forgets_jobs_all_the_same(world: World) -> None:
    def denied(operation: str, key: str) -> Fault | None:
        wrong = operation == "create" and key.startswith(keys.MARKET)
        return Fault(error=StoreDenied("not allowed")) if wrong else None

    world.submit("a-1", make_spec())
    governor = world.governor(denied)
    governor.run_pass()
    world.submit_stop("a-1")
    world.cloud.take_back()
    for _ in range(3):
        world.later(300)
        governor.run_pass()
    assert world.state("a-1").ended is not None and not list(world.store.list(keys.ACTIVE))


def test_a_job_avoids_the_zone_that_took_others_back(world: World) -> None:
    for number in range(3):
        job = f"bad-{number}"
        world.submit(job, make_spec())
        governor = world.governor()
        governor.run_pass()
        world.cloud.take_back()
        world.cloud.dry = {SPOT_A.key, SPOT_B.key, ON_DEMAND.key}
        world.later(60)
        governor.run_pass()
        world.cloud.dry = set()
        for meta in list(world.store.list(keys.ACTIVE)):
            world.store.delete([meta.key])
    taken = [key for key in world.sightings() if ".reclaimed." in key]
    assert len(taken) == 3 and all("/a/spot/" in key for key in taken)
    world.submit("new-1", make_spec())
    world.later(3600)
    world.governor().run_pass()
    (claim,) = world.state("new-1").open_claims
    assert claim.offering == SPOT_B and "rather than m1 spot in a (" in claim.reason


def test_a_market_that_is_only_rehearsed_is_not_written_down(world: World) -> None:
    world.cloud.capabilities = replace(CAPABILITIES, paid=False)
    world.cloud.dry = {SPOT_A.key, SPOT_B.key, ON_DEMAND.key}
    world.submit("a-1", make_spec())
    world.governor().run_pass()
    assert world.state("a-1").claims and world.sightings() == []


def test_one_look_serves_all_jobs_of_a_pass_and_those_without_spot_need_none(world: World) -> None:
    for number in range(5):
        world.submit(f"a-{number}", make_spec())
    world.governor().run_pass()
    looks = [key for key in world.listed if key.startswith(keys.MARKET)]
    assert sorted(looks) == ["market/2025-12-31/sim/", "market/2026-01-01/sim/"]
    other = World()
    other.submit("a-1", make_spec(spot="never"))
    other.governor().run_pass()
    assert not [key for key in other.listed if key.startswith(keys.MARKET)]


def test_a_store_that_does_not_tell_changes_nothing(world: World) -> None:
    def silent(operation: str, key: str) -> Fault | None:
        return Fault() if operation == "list" and key.startswith(keys.MARKET) else None

    world.submit("a-1", make_spec())
    done = world.governor(silent).run_pass()
    assert done.problems == {} and len(world.state("a-1").open_claims) == 1
    assert MarketReader(world.store.client(silent), at(0), NO_RULES).of("sim") == NO_HISTORY


# ── Alone ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def reclaimed(at_s: float, job: str = "job-1") -> JobState:
    claim = (Claimed(offering=SPOT_A, nodes=1), at_s - 120.0)
    return make_state(claim, (Launched(2, nodes(2)), at_s - 60.0), (Closed(2, "reclaimed", "notice"), at_s), job=job)


def test_it_is_read_as_far_back_as_a_rule_looks() -> None:
    store = MemoryStore(lambda: at(0))
    MarketWriter(store).record(None, reclaimed(3600.0))
    now, week = at(5 * 86400), parse_policy(b"rules:\n- market: {over: 7d}\n", "p.yaml")
    assert MarketReader(store, now, NO_RULES).of("sim") == NO_HISTORY
    found = MarketReader(store, now, week).of("sim")
    assert found.lately(SPOT_A, now, 7 * 86400.0) == Tally(1, 0, 1, 1 / 60)
    assert MarketReader(store, now, week).of("other") == NO_HISTORY


def test_what_is_older_than_a_month_is_forgotten() -> None:
    store = MemoryStore(lambda: at(0))
    writer = MarketWriter(store)
    for day in (0, 1, 30, 31):
        writer.record(None, reclaimed(86400.0 * day + 3600.0, f"job-{day}"))
    kept = {meta.key.split("/")[1] for meta in store.list(keys.MARKET)}
    assert kept == {(at(0) + timedelta(days=day)).date().isoformat() for day in (1, 30, 31)}
    MarketWriter(store).complete(_ended(reclaimed(3600.0), 86400.0 * 40))
    assert {meta.key.split("/")[1] for meta in store.list(keys.MARKET)} == kept, "and is not brought back"


def test_each_claim_is_written_once_and_old_days_are_looked_for_once_a_day() -> None:
    calls: list[str] = []

    def seen(operation: str, _key: str) -> Fault | None:
        calls.append(operation)
        return None

    writer = MarketWriter(MemoryStore(lambda: at(0)).client(seen))
    for number, at_s in ((1, 3600.0), (2, 7200.0), (3, 86400.0 + 3600.0)):
        state = reclaimed(at_s, f"job-{number}")
        for _ in range(2):
            writer.record(None, state)
        writer.complete(_ended(state, at_s + 100.0))
    assert calls.count("create") == 3 and len(calls) == 3 + 2, "one look on each of two days"


def _ended(state: JobState, at_s: float) -> JobState:
    events = (Claimed(offering=SPOT_A, nodes=1), Closed(2, "dry", "no-capacity"))
    ended = make_state(*events, (Ended(outcome="failed", rule="any"), at_s)).ended
    return replace(state, ended=ended)


def test_only_a_store_that_does_not_answer_is_asked_again() -> None:
    for error, raises in ((StoreUnavailable("?"), True), (StoreDenied("no"), False)):

        def fails(_operation: str, _key: str, error: StoreError = error) -> Fault:
            return Fault(error=error)

        writer = MarketWriter(MemoryStore(lambda: at(0)).client(fails))
        writer.record(None, reclaimed(100.0))
        if raises:
            with pytest.raises(StoreUnavailable):
                writer.complete(_ended(reclaimed(100.0), 200.0))
        else:
            writer.complete(_ended(reclaimed(100.0), 200.0))


def test_a_governor_that_stays_looks_again_after_a_minute(world: World) -> None:
    governor = world.governor()
    world.cloud.dry = {SPOT_A.key, SPOT_B.key}
    world.submit("a-1", make_spec(spot="only"))
    looks = []
    for seconds in (0, 30, 31):
        world.later(seconds)
        world.listed.clear()
        governor.run_pass()
        looks.append(sum(1 for key in world.listed if key.startswith("market/2026-01-01/")))
    assert looks == [1, 0, 1]
