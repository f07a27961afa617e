"""Which machine types are looked for, and which of them are offered."""

from __future__ import annotations

from typing import cast

import pytest

from stoker.core.policy_rules import EffectiveLimits
from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Gpus, Resources, Spot
from stoker.model.spec import Spec
from stoker.providers import offerings
from stoker.providers.base import Provider
from stoker.providers.machine_types import MachineType
from stoker.submit.choose_offerings import fitting_offerings


def machine(name: str, gpus: int) -> MachineType:
    return MachineType(name=name, cpus=8, memory_bytes=2**30, gpu="A100", gpus=gpus)


def sold(gpus: int, *, spot: bool = False) -> Offering:
    return Offering("gce", f"a2-{gpus}g", "z", spot, gpu="A100", gpus=gpus)


def found(wanted: Gpus | None, *offered: Offering, spot: Spot = "never", machine: tuple[str, ...] = ()) -> set[int]:
    resources = Resources(gpus=wanted, spot=spot, machine=machine)
    return {each.gpus for each in offerings.fewest_gpus(resources, offered)}


def test_of_many_types_those_with_the_fewest_gpus_are_looked_for() -> None:
    many = [machine(f"many-{number}", 16) for number in range(30)]
    chosen = offerings.candidates(Resources(gpus=Gpus("A100", 1)), [*many, machine("one", 1)], lambda _: None)
    assert chosen[0].name == "one" and len(chosen) < len(many)
    named = offerings.candidates(Resources(machine=("many-3",)), many, lambda _: None)
    assert named == many


def test_as_many_as_asked_else_the_fewest_more() -> None:
    assert found(Gpus("A100", 1), sold(1), sold(2), sold(16)) == {1}
    assert found(Gpus("A100", 3), sold(4), sold(8)) == {4}
    assert found(None, sold(1), sold(16)) == {1, 16}
    assert found(Gpus("A100", 1), sold(1), sold(16), machine=("a2-16g",)) == {1, 16}


def test_what_the_job_does_not_take_is_not_counted() -> None:
    offered = (sold(1, spot=True), sold(8))
    assert found(Gpus("A100", 1), *offered) == {8}
    assert found(Gpus("A100", 1), *offered, spot="only") == {1}
    assert found(Gpus("A100", 1), *offered, spot="prefer") == {1}


def test_never_more_than_were_agreed_to() -> None:
    assert found(Gpus("A100", 1, most=1), sold(16)) == set()
    assert found(Gpus("A100", 1, most=2), sold(2), sold(16)) == {2}


def test_spot_where_there_are_on_demand_machines_alone() -> None:
    """A provider that has no other way to sell them."""
    limits = EffectiveLimits(Spec("x", "x", resources=Resources("sim", spot="only")), {})
    with pytest.raises(UserError, match=r"on-demand ones do: set resources.spot to false; "):
        fitting_offerings(limits, cast("Provider", object()), (sold(1),))
    limits = EffectiveLimits(Spec("x", "x", resources=Resources("sim")), {})
    with pytest.raises(UserError, match=r"spot ones do: set resources.spot to true; "):
        fitting_offerings(limits, cast("Provider", object()), (sold(1, spot=True),))
