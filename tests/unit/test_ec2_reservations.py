"""A reservation that a job names decides where its machines are asked for, and until when."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from stoker.core.governor_settings import DEFAULT
from stoker.core.placement import NoCapacityNow, NoOffering, Placed, Placement, place
from stoker.model.errors import AuthDenied, NoCapacity, NoSuchResource, UserError
from stoker.model.offerings import Offering, Reservation
from stoker.model.resources import Ec2Resources, Gpus, Resources
from stoker.model.spec import Checkpoints, Spec
from stoker.providers.ec2 import check, offers, reservations
from stoker.providers.ec2.errors import map_error
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.ec2.reservations import ReservedCapacity
from stoker.providers.registry import Context
from tests.support.sim_data import make_snapshot, make_state

NOW = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)
DAY = timedelta(days=1)
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/blocks"


def described(name: str, **facts: Any) -> dict[str, Any]:
    """A reservation as CapacityReservation describes it: "ReservationType": "default" or "capacity-block"."""
    common = {"AvailabilityZone": "us-east-1b", "InstanceType": "p5.48xlarge", "State": "active"}
    return {"CapacityReservationId": name, **common, "ReservationType": "default", **facts}


def block(name: str, ends_at: datetime | None = NOW + DAY, **facts: Any) -> dict[str, Any]:
    return described(name, ReservationType="capacity-block", EndDate=ends_at, EndDateType="limited", **facts)


class Ec2:
    """The reservations of an account, a page of one at a time, and the members of its one resource group."""

    def __init__(self, *found: dict[str, Any], members: tuple[str, ...] | None = None) -> None:
        self._found = {each["CapacityReservationId"]: each for each in found}
        self._members = tuple(self._found) if members is None else members

    def describe_capacity_reservations(self, CapacityReservationIds: Any = (), NextToken: str = "0") -> dict[str, Any]:
        if CapacityReservationIds:
            return {"CapacityReservations": [self._found[name] for name in CapacityReservationIds]}
        at, found = int(NextToken), list(self._found.values())
        more = {"NextToken": str(at + 1)} if at + 1 < len(found) else {}
        return {"CapacityReservations": found[at : at + 1], **more}

    def list_group_resources(self, Group: str, Filters: Any, NextToken: str = "0") -> dict[str, Any]:
        assert Group == GROUP and Filters[0]["Values"] == ["AWS::EC2::CapacityReservation"]
        at, kind = int(NextToken), "AWS::EC2::CapacityReservation"
        arns = [f"arn:aws:ec2:us-east-1:123456789012:capacity-reservation/{name}" for name in self._members]
        found = [{"Identifier": {"ResourceArn": arn, "ResourceType": kind}} for arn in arns[at : at + 1]]
        return {"Resources": found, **({"NextToken": str(at + 1)} if at + 1 < len(arns) else {})}


def wanted(name: str | None, **settings: Any) -> Resources:
    return Resources(provider="ec2", ec2=Ec2Resources(reservation=name), **settings)


def found(cloud: Ec2, name: str | None = "cr-1", **settings: Any) -> tuple[ReservedCapacity, ...]:
    return reservations.find(cloud, lambda: cloud, wanted(name, **settings))


def restricted(cloud: Ec2, name: str | None = "cr-1", **settings: Any) -> tuple[Any, Any]:
    resources = wanted(name, **settings)
    narrowed = reservations.restrict(resources, reservations.find(cloud, lambda: cloud, resources))
    return narrowed.zones, narrowed.machine


def test_machines_are_asked_for_where_the_reservation_is() -> None:
    there = (("us-east-1b",), ("p5.48xlarge",))
    assert restricted(Ec2(described("cr-1"))) == there
    several = {"zones": ("us-east-1a", "us-east-1b"), "machine": ("p4d.24xlarge", "p5.48xlarge")}
    assert restricted(Ec2(described("cr-1")), **several) == there
    assert restricted(Ec2(block("cr-1")), "block:cr-1") == there


@pytest.mark.parametrize("name", [None, "open", "none"])
def test_what_names_no_reservation_restricts_nothing(name: str | None) -> None:
    assert restricted(Ec2(), name, zones=("us-east-1a",)) == (("us-east-1a",), ())


@pytest.mark.parametrize(
    ("facts", "name", "settings", "told"),
    [
        ({"State": "expired"}, "cr-1", {}, "cr-1 is expired; name one that is active"),
        ({"State": "expired", "EndDate": NOW}, "cr-1", {}, "cr-1 is expired (it ended at 2026-11-16 12:00 UTC); name"),
        ({"ReservationType": "capacity-block"}, "cr-1", {}, "cr-1 is a capacity block; write block:cr-1"),
        ({}, "block:cr-1", {}, "cr-1 is no capacity block; write cr-1"),
        ({"Interruptible": True}, "cr-1", {}, "cr-1 is interruptible, which Stoker does not ask for; name another"),
        ({}, "cr-1", {"zones": ("us-east-1a",)}, "cr-1 is in us-east-1b, and the job's zones or subnets are not"),
        ({}, "cr-1", {"machine": ("p4d.24xlarge",)}, "cr-1 holds p5.48xlarge, which resources.machine does not name"),
    ],
)
def test_what_does_not_fit_is_one_line(facts: dict[str, Any], name: str, settings: dict[str, Any], told: str) -> None:
    with pytest.raises((UserError, NoSuchResource)) as raised:
        found(Ec2(described("cr-1", **facts)), name, **settings)
    assert str(raised.value).startswith(f"resources.ec2.reservation: {told}")
    # What is over stays so, and ends a job that waits for it; the rest is for a person to correct.
    assert isinstance(raised.value, NoSuchResource) == (facts.get("State") == "expired")


def test_a_capacity_block_ends_machines_before_its_end() -> None:
    """ "You can use all the instances you reserved until 30 minutes (for instance types) or 60 minutes (for UltraServer
    type) before the end time of the Capacity Block."
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html
    """
    end = NOW + DAY
    (plain,) = found(Ec2(block("cr-1")), "block:cr-1")
    assert plain.reservation == Reservation("cr-1", None, end, end - timedelta(minutes=30))
    (ultra,) = found(Ec2(block("cr-1", InstanceType="p6e-gb200.36xlarge")), "block:cr-1")
    assert ultra.reservation.ends_machines_at == end - timedelta(minutes=60)


def test_the_end_of_any_other_reservation_ends_no_machine() -> None:
    """Instances then "continue to run normally outside of the capacity reservation at standard On-Demand Instance
    rates": https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservations-release.html
    """
    (limited,) = found(Ec2(described("cr-1", EndDate=NOW + DAY, EndDateType="limited")))
    assert limited.reservation == Reservation("cr-1", ends_at=NOW + DAY)
    (unlimited,) = found(Ec2(described("cr-1", EndDateType="unlimited")))
    assert unlimited.reservation == Reservation("cr-1")


def test_the_size_of_a_reservation_is_known_where_it_is_the_only_one() -> None:
    cloud = Ec2(described("cr-1", TotalInstanceCount=2), described("cr-2", TotalInstanceCount=2))
    assert [each.reservation.machines for each in found(cloud)] == [2]
    assert [each.reservation.machines for each in found(cloud, GROUP)] == [None, None]


def test_a_reservation_that_has_not_started_is_waited_for() -> None:
    later = {"StartDate": NOW + DAY}
    (scheduled,) = found(Ec2(block("cr-1", NOW + 2 * DAY, State="scheduled", **later)), "block:cr-1")
    assert scheduled.reservation.starts_at == NOW + DAY
    (active,) = found(Ec2(described("cr-1", **later)))
    assert active.reservation.starts_at is None


@pytest.mark.parametrize("state", ["", ".PendingActivation", ".Unavailable"])
def test_the_state_of_a_reservation_is_no_mistake_of_the_job(state: str) -> None:
    """One that starts late ("delayed"), or ends between the look-up and the launch: the next look-up tells."""
    answer = {"Error": {"Code": f"InvalidCapacityReservationState{state}", "Message": "It is not active."}}
    error = map_error("p5.48xlarge", answer | {"ResponseMetadata": {"HTTPStatusCode": 400}})
    assert isinstance(error, NoCapacity) and str(error).startswith("resources.ec2.reservation: It is not active.")


# ── Groups ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_group_is_asked_for_where_its_reservations_are() -> None:
    cloud = Ec2(
        described("cr-1"),
        described("cr-2", AvailabilityZone="us-east-1c", InstanceType="p4d.24xlarge"),
        described("cr-3", State="cancelled", AvailabilityZone="us-east-1d"),
        block("cr-4", AvailabilityZone="us-east-1e"),
        described("cr-5", AvailabilityZone="us-east-1f"),
        members=("cr-1", "cr-2", "cr-3", "cr-4", "cr-gone"),
    )
    assert restricted(cloud, GROUP) == (("us-east-1b", "us-east-1c"), ("p5.48xlarge", "p4d.24xlarge"))
    assert restricted(cloud, f"block:{GROUP}") == (("us-east-1e",), ("p5.48xlarge",))
    assert restricted(cloud, GROUP, zones=("us-east-1c",)) == (("us-east-1c",), ("p4d.24xlarge",))
    assert restricted(cloud, GROUP, machine=("p5.48xlarge",)) == (("us-east-1b",), ("p5.48xlarge",))


@pytest.mark.parametrize(
    ("members", "name", "settings", "told"),
    [
        ((), GROUP, {}, f"{GROUP} holds no reservation; name one that is active"),
        (("cr-2", "cr-3"), GROUP, {}, "cr-2 is expired, cr-3 is cancelled; name one that is active"),
        (("cr-4",), GROUP, {}, f"{GROUP} holds capacity blocks alone; write block:{GROUP}"),
        (("cr-1",), f"block:{GROUP}", {}, f"{GROUP} holds no capacity block; write {GROUP}"),
        (("cr-1",), GROUP, {"zones": ("us-east-1a",)}, f"{GROUP} is in us-east-1b, and the job's zones"),
    ],
)
def test_a_group_without_what_fits_is_one_line(
    members: tuple[str, ...], name: str, settings: dict[str, Any], told: str
) -> None:
    facts = (described("cr-1"), described("cr-2", State="expired"), described("cr-3", State="cancelled"), block("cr-4"))
    with pytest.raises((UserError, NoSuchResource)) as raised:
        found(Ec2(*facts, members=members), name, **settings)
    assert str(raised.value).startswith(f"resources.ec2.reservation: {told}")


class Refusing(Ec2):
    """Answers nothing about its group."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__()
        self._answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}

    def list_group_resources(self, **_: Any) -> dict[str, Any]:
        from botocore.exceptions import ClientError

        raise ClientError(self._answer, "ListGroupResources")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("NotFoundException", 404, NoSuchResource),
        ("AccessDeniedException", 400, AuthDenied),
        ("ForbiddenException", 403, AuthDenied),
    ],
)
def test_a_group_that_cannot_be_listed_is_told(code: str, status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^resources\.ec2\.reservation: no "):
        found(Refusing(code, status), GROUP)


# ── Offerings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def offering(machine: str, zone: str, spot: bool = False) -> Offering:
    return Offering("ec2", machine, zone, spot, region="us-east-1")


def test_offerings_outside_the_reservations_are_left_out() -> None:
    one, two = Reservation("cr-1"), Reservation("cr-2")
    capacity = (ReservedCapacity("p5", "b", one), ReservedCapacity("p4d", "c", two))
    offered = tuple(offering(machine, zone) for machine in ("p5", "p4d") for zone in ("b", "c"))
    spot = offering("p5", "b", spot=True)
    attached = reservations.with_reservations((*offered, spot), capacity, NOW)
    assert [(each.machine, each.zone, each.reservation) for each in attached] == [
        ("p5", "b", one),
        ("p4d", "c", two),
        ("p5", "b", None),
    ]
    # What other jobs find on the market says nothing about a reservation, and the other way round.
    assert attached[0].key == "ec2/p5/b/reserved" and offered[0].key == "ec2/p5/b/on-demand"
    assert reservations.with_reservations(offered, (), NOW) == offered


def test_of_several_blocks_the_one_that_ends_machines_first_counts() -> None:
    later = Reservation("cr-1", ends_at=NOW + 2 * DAY, ends_machines_at=NOW + 2 * DAY)
    sooner = Reservation("cr-2", ends_at=NOW + DAY, ends_machines_at=NOW + DAY)
    waiting = Reservation("cr-3", starts_at=NOW + DAY / 2, ends_at=NOW + DAY / 2, ends_machines_at=NOW + DAY / 2)
    capacity = tuple(ReservedCapacity("p5", "b", each) for each in (later, waiting, sooner))
    (attached,) = reservations.with_reservations((offering("p5", "b"),), capacity, NOW)
    assert attached.reservation == sooner


def test_at_the_end_of_a_block_the_next_one_of_its_group_is_waited_for() -> None:
    """The job in the first block would otherwise end as one whose only reservation is over."""
    spec = Spec("x", "x", resources=Resources(spot="never"), checkpoints=Checkpoints(grace_s=3600.0))
    ending = Reservation("cr-1", ends_at=NOW + DAY, ends_machines_at=NOW + DAY - timedelta(minutes=30))
    going_on, scheduled = (Reservation(name, ends_at=NOW + 9 * DAY, ends_machines_at=NOW + 9 * DAY) for name in "ab")
    scheduled = replace(scheduled, starts_at=NOW + DAY + timedelta(minutes=30))
    end = ending.ends_machines_at
    assert end is not None

    def placed(now: datetime, *more: Reservation) -> Placement:
        capacity = tuple(ReservedCapacity("p5", "b", each) for each in (ending, *more))
        attached = reservations.with_reservations((offering("p5", "b"),), capacity, now)
        return place(make_snapshot(make_state(), spec=spec), attached, DEFAULT, now)

    for before_s in range(0, 7200, 60):
        now = end - timedelta(seconds=before_s)
        found = placed(now, going_on)
        assert not isinstance(found, NoOffering), f"{before_s} s before the end"
        if isinstance(found, Placed):
            chosen = found.offering.reservation
            # EC2 may choose either: no attempt expects a later end than that of the first, while that has machines.
            assert chosen is not None and (chosen == ending if before_s else chosen.name == "a")
        else:
            assert found.until == end
    assert placed(end, scheduled) == NoCapacityNow(scheduled.starts_at or end, "b starts at 2026-11-17 12:30 UTC")
    assert isinstance(placed(end), NoOffering)


def test_offers_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Ec2Provider(Context(store="s3://bucket/team"))
    monkeypatch.setattr(provider.clients, "get", lambda *_, **__: Ec2(described("cr-1", State="cancelled")))
    with pytest.raises(NoSuchResource, match=r"^resources\.ec2\.reservation: cr-1 is cancelled"):
        provider.offerings(wanted("cr-1", region="us-east-1"))


def test_offers_of_spot_machines_alone_do_not_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Ec2Provider(Context(store="s3://bucket/team"))
    monkeypatch.setattr(provider.clients, "get", lambda *_, **__: Ec2(described("cr-1", State="cancelled")))
    spot = (offering("p5", "b", spot=True),)
    monkeypatch.setattr(offers, "live", lambda *_, **__: spot)
    assert provider.offerings(wanted("cr-1", region="us-east-1", spot="only")) == spot


def test_a_reservation_of_other_machines_than_the_job_asks_for_is_named() -> None:
    """The region offers them, and is not to blame."""
    asked = wanted("cr-1", region="us-east-1", gpus=Gpus("A10G", 1))
    assert offers.why_none(asked) == (
        "resources.ec2.reservation: cr-1 holds no machine with what the job asks for; leave out resources.gpus, cpus "
        "and memory, or name another"
    )
    nowhere = wanted("cr-1", region="us-east-1", gpus=Gpus("A10G", 99))
    assert offers.why_none(nowhere) == "resources.gpus: EC2 has no machine with 99 of them; at most 8"
    assert "reservation" not in offers.why_none(wanted("open", region="us-east-1", gpus=Gpus("A10G", 1)))


def test_check_lists_the_group_of_a_job_that_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(cloud: Ec2, name: str | None) -> list[tuple[bool | None, str, str]]:
        provider = Ec2Provider(Context(store="s3://bucket/team"))
        monkeypatch.setattr(provider.clients, "get", lambda *_, **__: cloud)
        checks = check._AccountChecks(provider, Spec("x", "x", resources=wanted(name)), "s3://bucket/team", {})
        return [(each.ok, each.detail, each.fix) for each in checks._list_group()]

    assert lines(Ec2(described("cr-1")), GROUP) == [(True, f"allowed; {GROUP} holds 1 reservation", "")]
    assert lines(Ec2(), "cr-1") == []
    ((ok, _, fix),) = lines(Refusing("AccessDeniedException", 400), GROUP)
    assert ok is False and '"Action":"resource-groups:ListGroupResources"' in fix
