"""A job in several regions: offerings of all, what a region without an answer hides, and what it does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from scripted_cloud import ScriptedCloud, ScriptedWorld

from stoker.core import unowned_machines
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.placement import NoOffering, Placed, place
from stoker.core.snapshot import Append, JobSnapshot, Unmark
from stoker.governor.observe import Memory, active_jobs, list_clouds, observe
from stoker.model.errors import AuthDenied, InvalidRequest, StokerError, Transient, UserError
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import Instance, InstanceState, Offering
from stoker.model.policy import DenyRule, Policy, Rule
from stoker.model.resources import Gpus, Resources
from stoker.model.spec import Spec
from stoker.providers.regional_offerings import offerings_in_regions
from stoker.submit.choose_offerings import OfferingChoice, choose_offerings
from stoker.submit.job_regions import frozen_regions
from tests.support.sim_data import (
    at,
    make_instance,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

EAST, WEST = "east-1", "west-2"
BOTH = Resources(provider="sim", region=(EAST, WEST))
# A job that may run a day ends in none of these tests.
NOW_S = 1e4


def sold(region: str, letter: str = "a", price: float | None = 1.0, **facts: object) -> Offering:
    return Offering("sim", "m1", f"{region}{letter}", False, region, price, price, **facts)  # type: ignore[arg-type]


@dataclass
class Regional:
    """A cloud that sells in some regions, and whose others raise."""

    sells: Mapping[str | None, Iterable[Offering] | StokerError]
    name: str = "sim"
    asked: list[Resources] = field(default_factory=list)
    no_quota: tuple[str, ...] = ()

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        self.asked.append(resources)
        found = self.sells[resources.only_region]
        if isinstance(found, StokerError):
            raise found
        return tuple(found)

    def check_quota(self, offerings: Iterable[Offering], nodes: int) -> None:
        (region,) = {str(each.region) for each in offerings}
        if region in self.no_quota:
            raise UserError(f"no quota in {region}")

    def check_regions(self, resources: Resources) -> None:
        if "sg-9" in resources.machine:
            raise UserError("sg-9 is in none of them")


# ── Offerings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_offerings_of_all_regions_are_in_order_of_the_market() -> None:
    cloud = Regional(
        {EAST: (sold(EAST, "b", 1.5), sold(EAST, "a", 3.0)), WEST: (sold(WEST, "a", 1.5), sold(WEST, "c"))}
    )
    found = offerings_in_regions(cloud, BOTH)
    # At equal prices the job's own order decides.
    assert [each.zone for each in found.offerings] == ["west-2c", "east-1b", "west-2a", "east-1a"]
    assert found.unanswered_text == ""
    other_way = offerings_in_regions(cloud, replace(BOTH, region=(WEST, EAST)))
    assert [each.zone for each in other_way.offerings] == ["west-2c", "west-2a", "east-1b", "east-1a"]


def test_each_region_is_asked_about_its_own_zones() -> None:
    cloud = Regional({EAST: (), WEST: ()})
    offerings_in_regions(cloud, replace(BOTH, zones=("west-2b", "east-1a")))
    assert [(each.only_region, each.zones) for each in cloud.asked] == [(EAST, ("east-1a",)), (WEST, ("west-2b",))]


def test_one_region_is_asked_as_it_always_was() -> None:
    for resources in (Resources(region=EAST), Resources()):
        cloud = Regional({EAST: (sold(EAST, "b", 2.0), sold(EAST)), None: ()})
        assert offerings_in_regions(cloud, resources).offerings == cloud.offerings(resources)
        assert cloud.asked[0] is resources


def test_machines_with_more_gpus_of_one_region_are_no_offer_beside_exact_ones() -> None:
    """One GPU is asked for: a region that has none but machines with eight must not sell these."""
    cloud = Regional({EAST: (sold(EAST, gpus=8, price=0.1),), WEST: (sold(WEST, gpus=1),)})
    found = offerings_in_regions(cloud, replace(BOTH, gpus=Gpus("A100", 1)))
    assert [each.region for each in found.offerings] == [WEST]


def test_a_region_without_an_answer_hides_no_other() -> None:
    found = offerings_in_regions(Regional({EAST: Transient("no route"), WEST: (sold(WEST),)}), BOTH)
    assert found.offerings == (sold(WEST),)
    assert found.unanswered_text == "the offerings of east-1 are unknown: no route"


def test_no_region_answers() -> None:
    with pytest.raises(Transient, match="first"):
        offerings_in_regions(Regional({EAST: Transient("first"), WEST: Transient("second")}), BOTH)


# ── At submission ─────────────────────────────────────────────────────────────────────────────────────────────────────


def chosen(cloud: Regional, *, policy: Policy | None = None, **resources: object) -> OfferingChoice:
    spec = Spec(name="job", run="true", resources=replace(BOTH, **resources))  # type: ignore[arg-type]
    return choose_offerings(spec, cloud, None, policy=policy)  # type: ignore[arg-type]


def test_all_regions_are_kept_also_those_that_have_nothing_now() -> None:
    cloud = Regional({EAST: (), WEST: (sold(WEST),), "mid-3": Transient("no route")})
    found = chosen(cloud, region=(EAST, WEST, "mid-3"))
    assert found.spec.resources.region == (EAST, WEST, "mid-3")
    *left_out, transfer = found.about_regions
    assert left_out == [
        "resources.region: sim offers no such machine in east-1 now",
        "resources.region: mid-3 gave no answer, and is asked again later: no route",
    ]
    assert transfer.startswith("resources.region: machines in another region than the store's bucket take longer")
    assert transfer.endswith("and the transfer is charged")


def test_the_names_of_regions_are_whole_when_they_are_kept() -> None:
    offered = (replace(sold(WEST), region=f"vision-1/{WEST}"),)
    assert frozen_regions(BOTH, offered).region == (f"vision-1/{EAST}", f"vision-1/{WEST}")
    mixed = replace(BOTH, region=(f"other-2/{EAST}", WEST))
    assert frozen_regions(mixed, offered).region == (f"other-2/{EAST}", f"vision-1/{WEST}")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("resources.ec2.subnet: none of them"), "resources.ec2.subnet: none of them"),
        (
            AuthDenied("ec2: not enabled"),
            "resources.region: west-2 cannot be used (ec2: not enabled); correct that, or leave west-2 out",
        ),
        (
            InvalidRequest("no such image"),
            "resources.region: west-2 cannot be used (no such image); correct that, or leave west-2 out",
        ),
    ],
)
def test_a_region_that_cannot_be_used_is_refused(error: StokerError, said: str) -> None:
    with pytest.raises(UserError) as caught:
        chosen(Regional({EAST: (sold(EAST),), WEST: error}))
    assert str(caught.value) == said


def test_a_name_that_is_in_none_of_the_regions_is_refused() -> None:
    with pytest.raises(UserError, match="sg-9 is in none of them"):
        chosen(Regional({EAST: (sold(EAST),), WEST: (sold(WEST),)}), machine=("m1", "sg-9"))


def test_a_quota_of_one_region_is_told_and_of_all_refused() -> None:
    sells = {EAST: (sold(EAST),), WEST: (sold(WEST),)}
    assert chosen(Regional(sells, no_quota=(WEST,))).about_regions[-1] == "no quota in west-2"
    with pytest.raises(UserError, match="no quota in east-1"):
        chosen(Regional(sells, no_quota=(EAST, WEST)))


def test_the_policy_leaves_the_regions_that_it_allows() -> None:
    sells = {EAST: (sold(EAST),), WEST: (sold(WEST),)}
    allowed = Policy(rules=(Rule(name="home", regions=("west-*",), then="refuse"),))
    assert [each.region for each in chosen(Regional(sells), policy=allowed).offerings] == [WEST]
    denied = Policy(rules=(Rule(name="home", deny=DenyRule(regions=("east-*", "west-*")), then="refuse"),))
    with pytest.raises(UserError, match=r"east-1.*west-2 are forbidden"):
        chosen(Regional(sells), policy=denied)


# ── Decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SPEC = replace(make_spec(spot="never"), resources=replace(BOTH, spot="never"))


def refused(*told: tuple[Offering, str, str]) -> JobState:
    events: list[Event] = []
    for offering, rule, _ in told:
        events += [Claimed(offering, 1), Closed(2 + len(events), "refused", rule)]
    state = make_state(*events)
    claims = tuple(replace(claim, closed_reason=words) for claim, (_, _, words) in zip(state.claims, told, strict=True))
    return replace(state, claims=claims)


def placed(state: JobState, *offerings: Offering) -> object:
    return place(make_snapshot(state, spec=SPEC), offerings, DEFAULT, at(NOW_S))


@pytest.mark.parametrize("rule", ["AuthDenied", "NoSuchResource", "UserError", "QuotaExceeded"])
def test_what_one_region_refuses_another_may_allow(rule: str) -> None:
    """ "A quota is the same in every zone", and an image, a key or a permission in every zone of a region."""
    east, other, west = sold(EAST), sold(EAST, "b"), sold(WEST)
    once = refused((east, rule, "no such key"))
    assert placed(once, east, other, west) == Placed(west, "on-demand")
    assert placed(once, east, other) == NoOffering("no such key")
    twice = refused((east, rule, "no such key"), (west, rule, "none here either"))
    assert placed(twice, east, other, west) == NoOffering(
        "no such key" if rule != "QuotaExceeded" else "none here either"
    )


def test_the_same_answer_thrice_counts_for_its_region() -> None:
    zones = [sold(EAST, letter) for letter in "abcd"]
    thrice = refused(*((each, "InvalidRequest", "not supported") for each in zones[:3]))
    assert placed(thrice, *zones, sold(WEST)) == Placed(sold(WEST), "on-demand")
    assert placed(thrice, *zones) == NoOffering("not supported")


def wanting(offerings: tuple[Offering, ...], unanswered: str) -> JobSnapshot:
    return replace(make_snapshot(make_state(), spec=SPEC, offerings=Known(offerings)), unanswered=unanswered)


def test_a_job_that_no_offering_serves_waits_for_a_region_that_did_not_answer() -> None:
    ended = decide_job(wanting((), ""), DEFAULT, at(NOW_S))
    assert any(isinstance(each, Append) and isinstance(each.event, Ended) for each in ended.actions)
    waits = decide_job(wanting((), "the offerings of west-2 are unknown: no route"), DEFAULT, at(NOW_S))
    assert waits.actions == () and waits.wake_at is not None
    assert "the offerings of west-2 are unknown: no route" in next(iter(waits.waiting.values()))


def test_a_rule_about_regions_ends_no_job_while_one_does_not_answer() -> None:
    policy = Policy(rules=(Rule(name="home", regions=("west-*",), then="refuse"),))
    settings = replace(DEFAULT, policy=policy)
    ended = decide_job(wanting((sold(EAST),), ""), settings, at(NOW_S))
    assert any(isinstance(each, Append) and isinstance(each.event, Ended) for each in ended.actions)
    waits = decide_job(wanting((sold(EAST),), "west-2 is unknown"), settings, at(NOW_S))
    assert not [each for each in waits.actions if isinstance(each, Append) and isinstance(each.event, Ended | Claimed)]


def test_a_machine_that_no_claim_owns_is_ended_where_the_region_answered() -> None:
    state = make_state(Claimed(sold(WEST), 1), Launched(2, nodes(2)))
    stray = replace(make_instance(9), region=WEST)
    job = replace(make_snapshot(state, instances=Unknown("east-1: no route")), partly_listed=(stray,))
    assert [each.instance for each in unowned_machines.find_unowned(job, at(NOW_S))] == [stray.id]


# ── What a governor sees ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Partial(ScriptedCloud):
    """A cloud of which some regions do not answer."""

    silent: set[str] = field(default_factory=set)

    def _check(self, region: str | None) -> None:
        if region in self.silent:
            raise Transient(f"{region}: no route")

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        self._check(region)
        return tuple(each for each in super().list_instances(region) if each.region == region)

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        self._check(region)
        return super().state(ids, region)

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        region = resources.only_region
        self._check(region)
        return (sold(str(region)),)


A = "a-aaaa"


def partial_world() -> tuple[ScriptedWorld, Partial]:
    world = ScriptedWorld()
    world.cloud = Partial()
    return world, world.cloud


def look(world: ScriptedWorld) -> JobSnapshot:
    markers = active_jobs(world.store)
    memory = Memory()
    listing = list_clouds(world.store, world.fleet, memory, markers, {("sim", EAST), ("sim", WEST)})
    (found,) = observe(world.store, world.fleet, memory, markers, listing).snapshot.jobs
    return found


def machine(claim: int, region: str) -> Instance:
    return Instance(f"i-{claim}-0", "sim", A, claim, 0, "running", at(0), region=region)


def moved(*more: Event) -> tuple[ScriptedWorld, Partial]:
    """A job whose first machine, in the east, was reclaimed, and which runs in the west."""
    world, cloud = partial_world()
    events = (Claimed(sold(EAST), 1), Launched(2, nodes(2)), Closed(2, "reclaimed", "notice"))
    world.submit(A, *events, Claimed(sold(WEST), 1), Launched(5, nodes(5)), *more, spec=SPEC)
    cloud.machines = {"i-5-0": machine(5, WEST), "i-2-0": machine(2, EAST)}
    return world, cloud


def test_a_region_that_does_not_answer_hides_no_machine_of_another() -> None:
    world, cloud = moved()
    cloud.silent = {EAST}
    job = look(world)
    # Nothing follows from the absence of the first machine: the list is not complete.
    assert isinstance(job.instances, Unknown) and [each.id for each in job.seen_instances] == ["i-5-0"]
    assert job.states == Known({"i-5-0": "running"}) and not job.is_gone("i-2-0")
    cloud.machines["i-5-0"] = replace(cloud.machines["i-5-0"], state="gone")
    assert look(world).is_gone("i-5-0")


def test_machines_of_an_open_claim_are_never_gone_in_a_region_that_does_not_answer() -> None:
    """Two claims are open while the first still saves; only the second's region answers."""
    world, cloud = partial_world()
    world.submit(
        A,
        Claimed(sold(EAST), 1),
        Launched(2, nodes(2)),
        Claimed(sold(WEST), 1, successor_of=2),
        Launched(4, nodes(4)),
        spec=SPEC,
    )
    cloud.silent = {EAST}
    cloud.machines = {"i-4-0": replace(machine(4, WEST), state="gone")}
    job = look(world)
    assert job.is_gone("i-4-0") and not job.is_gone("i-2-0")
    cloud.silent = {EAST, WEST}
    assert isinstance(look(world).states, Unknown)


def test_an_ended_job_is_kept_until_every_region_says_that_its_machines_are_gone() -> None:
    closing = Closed(5, "failed", "user-error", exit_code=1)
    world, cloud = moved(Ended("failed", "user-error", 5, closing=closing))
    cloud.machines = {name: replace(each, state="gone") for name, each in cloud.machines.items()}
    cloud.silent = {EAST}
    assert decide_job(look(world), DEFAULT, at(NOW_S)).actions == ()
    cloud.silent = set()
    (action,) = decide_job(look(world), DEFAULT, at(NOW_S)).actions
    assert isinstance(action, Unmark)


def test_before_its_first_claim_a_job_is_looked_for_in_all_of_its_regions() -> None:
    world, cloud = partial_world()
    state = world.submit(A, spec=SPEC)
    memory = Memory()
    markers = active_jobs(world.store)
    observe(world.store, world.fleet, memory, markers, list_clouds(world.store, world.fleet, memory, markers))
    cloud.calls.clear()
    list_clouds(world.store, world.fleet, memory, markers)
    assert sorted(cloud.called("list_instances")) == [EAST, WEST] and not state.claims


def test_a_pass_launches_in_the_region_of_the_offering_while_another_does_not_answer() -> None:
    world, cloud = partial_world()
    world.submit(A, spec=SPEC)
    cloud.silent = {EAST}
    world.governor().run_pass()
    (order,) = cloud.called("launch")
    assert order.offering == sold(WEST) and order.spec.resources.region == (EAST, WEST)
