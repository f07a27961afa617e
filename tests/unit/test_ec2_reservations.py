"""A reservation that a job names decides where its machines are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.errors import UserError
from stoker.model.resources import Ec2Resources, Resources
from stoker.providers.ec2 import reservations
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.registry import Context


class Ec2:
    """One reservation, as CapacityReservation describes it: "ReservationType": "default" or "capacity-block"."""

    def __init__(self, **facts: Any) -> None:
        common = {"AvailabilityZone": "us-east-1b", "InstanceType": "p5.48xlarge", "State": "active"}
        self._found = {**common, "ReservationType": "default", **facts}

    def describe_capacity_reservations(self, CapacityReservationIds: Any) -> dict[str, Any]:
        (name,) = CapacityReservationIds
        return {"CapacityReservations": [{"CapacityReservationId": name, **self._found}]}


def restricted(cloud: Ec2, name: str | None = "cr-1", **settings: Any) -> Resources:
    return reservations.restrict(cloud, Resources(provider="ec2", ec2=Ec2Resources(reservation=name), **settings))


def test_machines_are_asked_for_where_the_reservation_is() -> None:
    found = restricted(Ec2())
    assert (found.zones, found.machine) == (("us-east-1b",), ("p5.48xlarge",))
    found = restricted(Ec2(), zones=("us-east-1a", "us-east-1b"), machine=("p4d.24xlarge", "p5.48xlarge"))
    assert (found.zones, found.machine) == (("us-east-1b",), ("p5.48xlarge",))
    assert restricted(Ec2(ReservationType="capacity-block"), "block:cr-1").zones == ("us-east-1b",)


@pytest.mark.parametrize("name", [None, "open", "none", "arn:aws:resource-groups:us-east-1:1:group/g", "block:arn:x"])
def test_what_names_no_single_reservation_restricts_nothing(name: str | None) -> None:
    found = restricted(Ec2(), name, zones=("us-east-1a",))
    assert (found.zones, found.machine) == (("us-east-1a",), ())


@pytest.mark.parametrize(
    ("facts", "name", "settings", "told"),
    [
        ({"State": "expired"}, "cr-1", {}, "cr-1 is expired; name one that is active"),
        ({"ReservationType": "capacity-block"}, "cr-1", {}, "cr-1 is a capacity block; write block:cr-1"),
        ({}, "block:cr-1", {}, "cr-1 is no capacity block; write cr-1"),
        ({}, "cr-1", {"zones": ("us-east-1a",)}, "cr-1 is in us-east-1b, and the job's zones or subnets are not"),
        ({}, "cr-1", {"machine": ("p4d.24xlarge",)}, "cr-1 holds p5.48xlarge, which resources.machine does not name"),
    ],
)
def test_what_does_not_fit_is_one_line(facts: dict[str, Any], name: str, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as raised:
        restricted(Ec2(**facts), name, **settings)
    assert str(raised.value).startswith(f"resources.ec2.reservation: {told}")


def test_offers_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Ec2Provider(Context(store="s3://bucket/team"))
    monkeypatch.setattr(provider.clients, "get", lambda *_, **__: Ec2(State="cancelled"))
    asked = Resources(provider="ec2", region="us-east-1", ec2=Ec2Resources(reservation="cr-1"))
    with pytest.raises(UserError, match=r"^resources\.ec2\.reservation: cr-1 is cancelled"):
        provider.offerings(asked)
