"""After how many reclaims a job that prefers spot takes on-demand."""

from __future__ import annotations

from stoker.core.acceptable_offerings import acceptable
from stoker.model.offerings import Offering
from stoker.model.resources import Resources, Spot
from stoker.model.spec import Retry, Spec

OFFERINGS = tuple(Offering("cloud", "m", "z", spot=spot, price=1.0) for spot in (True, False))


def first_choice(reclaimed: int, on_demand_after: int | None, spot: Spot = "prefer") -> bool:
    """Whether the best offering is spot."""
    spec = Spec(name="x", run="x", resources=Resources(spot=spot), retry=Retry(on_demand_after=on_demand_after))
    return acceptable(spec, OFFERINGS, reclaimed)[0][0].spot


def test_more_reclaims_than_that_are_enough() -> None:
    assert [first_choice(reclaimed, 2) for reclaimed in (0, 1, 2, 3, 4)] == [True, True, True, False, False]
    assert [first_choice(reclaimed, 0) for reclaimed in (0, 1)] == [True, False]


def test_more_than_three_where_nobody_says_otherwise() -> None:
    assert [first_choice(reclaimed, Retry().on_demand_after) for reclaimed in (3, 4)] == [True, False]


def test_null_and_spot_only_never_change() -> None:
    assert first_choice(100, None)
    assert first_choice(100, 1, spot="only")


def test_what_is_sold_as_spot_alone_goes_on_as_spot() -> None:
    spec = Spec(name="x", run="x", resources=Resources(spot="prefer"), retry=Retry(on_demand_after=1))
    assert acceptable(spec, OFFERINGS[:1], 5) == ([OFFERINGS[0]], "spot first")
