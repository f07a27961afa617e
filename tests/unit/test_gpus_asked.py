"""How many GPUs a job gets that names how many it wants, on either cloud: no more than it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from stoker.cli.plan_view import worst_case
from stoker.core.acceptable_offerings import acceptable
from stoker.model.errors import Transient
from stoker.model.offerings import Offering
from stoker.model.resources import Gpus, Resources, Spot
from stoker.model.spec import Limits, Spec
from stoker.providers.ec2 import offers as ec2
from stoker.providers.gce import catalog
from stoker.providers.gce import offers as gce
from stoker.providers.gce.client import AggregatedList
from stoker.providers.gce.places import ProjectRegion

PLACE = ProjectRegion("vision-1", "us-central1")
CLOUDS = ("ec2", "gce")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))


def asked(cloud: str, gpus: str, spot: Spot = "prefer", **more: Any) -> Resources:
    name, _, count = gpus.rpartition(":")
    region = "us-east-1" if cloud == "ec2" else PLACE.region
    return Resources(provider=cloud, region=region, spot=spot, gpus=Gpus(name, int(count)), **more)


def offered(resources: Resources) -> tuple[Offering, ...]:
    return ec2.offline(resources) if resources.provider == "ec2" else gce.offline(resources, PLACE)


@pytest.mark.parametrize(
    ("cloud", "gpus", "count", "machines"),
    [
        ("gce", "A100:1", 1, {"a2-highgpu-1g", "a2-ultragpu-1g"}),
        ("gce", "A100:8", 8, {"a2-highgpu-8g", "a2-ultragpu-8g"}),
        ("gce", "A100:16", 16, {"a2-megagpu-16g"}),
        ("gce", "L4:2", 2, {"g2-standard-24"}),
        # None has exactly so many: the fewest more.
        ("gce", "A100:3", 4, {"a2-highgpu-4g", "a2-ultragpu-4g"}),
        ("gce", "H200:1", 8, {"a3-ultragpu-8g"}),
        ("ec2", "A100:1", 8, {"p4d.24xlarge", "p4de.24xlarge"}),
        ("ec2", "L4:3", 4, {"g6.12xlarge", "g6.24xlarge"}),
    ],
)
def test_as_many_as_asked_else_the_fewest_more(cloud: str, gpus: str, count: int, machines: set[str]) -> None:
    found = offered(asked(cloud, gpus))
    assert {each.gpus for each in found} == {count}
    assert {each.machine for each in found} == machines


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("gpus", ["L4:1", ":1", "T4:1"])
@pytest.mark.parametrize("spot", get_args(Spot))
def test_one_gpu_is_one_gpu(cloud: str, gpus: str, spot: Spot) -> None:
    found = offered(asked(cloud, gpus, spot))
    assert found and {each.gpus for each in found} == {1}


def test_the_rest_that_is_asked_for_may_take_more() -> None:
    # 1 × L4 has at most 32 cores.
    assert {each.machine for each in offered(asked("gce", "L4:1", cpus=20))} == {"g2-standard-32"}
    assert {each.machine for each in offered(asked("gce", "L4:1", cpus=40))} == {"g2-standard-48"}


@pytest.mark.parametrize(
    ("spot", "machines"),
    [
        ("only", {"a3-highgpu-1g"}),
        # No large machine on demand takes the place of a small one that is spot.
        ("prefer", {"a3-highgpu-1g"}),
        # Small ones are not sold on demand.
        ("never", {"a3-highgpu-8g", "a3-megagpu-8g"}),
    ],
)
def test_what_the_job_does_not_allow_is_no_machine_with_as_many(spot: Spot, machines: set[str]) -> None:
    resources = asked("gce", "H100:1", spot)
    found, _ = acceptable(Spec(name="x", run="x", resources=resources), offered(resources))
    assert {each.machine for each in found} == machines


@pytest.mark.parametrize("cloud", CLOUDS)
def test_who_names_machines_gets_those(cloud: str) -> None:
    names = ("p4d.24xlarge", "p5.48xlarge") if cloud == "ec2" else ("a2-highgpu-1g", "a2-megagpu-16g")
    resources = asked(cloud, ":1", machine=names)
    assert {each.machine for each in offered(resources)} == set(names)


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("gpus", ["A100:1", "L4:1", "H100:8", "L4:4"])
def test_the_worst_case_is_that_of_what_may_be_launched(cloud: str, gpus: str) -> None:
    resources = asked(cloud, gpus)
    spec = Spec(name="x", run="x", resources=resources, limits=Limits(max_runtime_s=3600))
    found, _ = acceptable(spec, offered(resources))
    known = [price for each in found for price in (each.price or each.on_demand_price,) if price is not None]
    assert f"${max(known):.2f}/h" in worst_case(spec, tuple(found))


class Silent:
    """Compute Engine's lists, where one zone gives no answer."""

    def __init__(self, *machines: str, silent: str = "us-central1-a") -> None:
        self.machines, self.silent = machines, silent

    def scoped(self, _path: str, _kind: str, _params: object) -> AggregatedList:
        listed = []
        for name in self.machines:
            known = catalog.facts(name)
            memory_mib = (known.memory_bytes or 0) // 2**20
            listed.append(("us-central1-b", {"name": name, "guestCpus": known.cpus, "memoryMb": memory_mib}))
        return AggregatedList(tuple(listed), frozenset({self.silent}))


def test_a_zone_that_gives_no_answer_is_no_reason_for_larger_machines() -> None:
    resources = asked("gce", "A100:1")
    with pytest.raises(Transient, match="us-central1-a cannot be reached now"):
        gce.live(Silent("a2-highgpu-8g"), resources, PLACE)  # type: ignore[arg-type]
    found = gce.live(Silent("a2-highgpu-8g", "a2-highgpu-1g"), resources, PLACE)  # type: ignore[arg-type]
    assert {each.machine for each in found} == {"a2-highgpu-1g"}
    elsewhere = gce.live(Silent("a2-highgpu-8g", silent="us-east1-b"), resources, PLACE)  # type: ignore[arg-type]
    assert {each.machine for each in elsewhere} == {"a2-highgpu-8g"}
    named = asked("gce", ":1", machine=("a2-highgpu-1g", "a2-highgpu-8g"))
    assert gce.live(Silent("a2-highgpu-8g"), named, PLACE)  # type: ignore[arg-type]
