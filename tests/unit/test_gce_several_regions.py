"""Compute Engine in several regions: zones, subnetworks and placement policies are those of each launch's region."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_gce_offers import Lists
from test_gce_plan import Plan, plan

from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import GceResources, Resources
from stoker.model.spec import Spec
from stoker.providers.base import LaunchOrder
from stoker.providers.gce import request
from stoker.providers.gce.provider import GceProvider
from stoker.providers.regional_offerings import offerings_in_regions
from stoker.providers.registry import Context
from stoker.submit.job_regions import frozen_regions

__all__ = ["plan"]

CENTRAL, WEST = "vision-1/us-central1", "vision-1/us-west1"
TYPES = {
    "us-central1-a": [{"name": "n2-standard-2"}],
    "us-west1-b": [{"name": "n2-standard-2"}],
    "europe-west4-a": [{"name": "n2-standard-2"}],
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "vision-1")


def asked(**fields: Any) -> Resources:
    fixed = {"provider": "gce", "machine": ("n2-standard-2",), "region": ("us-central1", "us-west1")}
    return Resources(**{**fixed, **fields})


def provider(lists: Lists) -> GceProvider:
    made = GceProvider(Context(store="gs://bucket/team"))
    made._api = lists  # type: ignore[assignment]
    return made


def test_zones_of_all_regions_are_offered_with_their_projects() -> None:
    found = offerings_in_regions(provider(Lists(TYPES)), asked()).offerings
    assert {(each.region, each.zone) for each in found} == {(CENTRAL, "us-central1-a"), (WEST, "us-west1-b")}
    assert frozen_regions(asked(), found).region == (CENTRAL, WEST)
    # What is frozen is asked about again in the same way.
    again = offerings_in_regions(provider(Lists(TYPES)), asked(region=(CENTRAL, WEST))).offerings
    assert again == found


def test_each_region_has_its_own_prices() -> None:
    found = offerings_in_regions(provider(Lists(TYPES)), asked(region=("us-central1", "europe-west4"))).offerings
    prices = [each.price for each in found if not each.spot and each.price is not None]
    assert prices == sorted(prices) and len(set(prices)) == 2
    assert [each.zone for each in found if not each.spot] == ["us-central1-a", "europe-west4-a"]


def test_a_region_that_does_not_answer_leaves_the_other() -> None:
    lists = Lists(TYPES)
    lists.silent = {"machineTypes": ("us-west1-b",)}
    found = offerings_in_regions(provider(lists), asked())
    assert {each.region for each in found.offerings} == {CENTRAL} and list(found.unanswered) == ["us-west1"]


def order(region: str, zone: str, gce: GceResources) -> LaunchOrder:
    spec = Spec("gpt", "python train.py", nodes=2, resources=asked(region=(CENTRAL, WEST), gce=gce))
    offering = Offering("gce", "n2-standard-2", zone, False, region, 0.1, 0.1)
    return LaunchOrder("gpt-7f3k", "gpt", 2, 2, 1, "gs://bucket/team", spec, "jane", offering)


@pytest.mark.parametrize(("region", "zone"), [("us-central1", "us-central1-a"), ("us-west1", "us-west1-b")])
def test_a_launch_names_what_is_in_its_region(region: str, zone: str) -> None:
    gce = GceResources(network="subnet:training", placement_policy="close")
    sent = request.build(order(f"vision-1/{region}", zone, gce))
    assert {each.region for each in sent} == {f"vision-1/{region}"}
    text = str(sent[-1].body) + sent[-1].path
    assert f"projects/vision-1/regions/{region}/subnetworks/training" in text and "close" in text
    other = "us-west1" if region == "us-central1" else "us-central1"
    assert f"regions/{region}/" in text and f"/{other}" not in text


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"gce": GceResources(network="projects/vision-1/regions/us-west1/subnetworks/training")},
            r"^resources\.gce\.network: .*/training is in one region, .*; write subnet:training, and have one in each$",
        ),
        (
            {"gce": GceResources(gpu_networks=("a", "regions/us-west1/subnetworks/b"))},
            r"^resources\.gce\.gpu_networks: .* write subnet:b, ",
        ),
        (
            {"gce": GceResources(placement_policy="regions/us-west1/resourcePolicies/close")},
            r"^resources\.gce\.placement_policy: .*; write close, and have one in each$",
        ),
        (
            {"zones": ("us-central1-a", "us-east1-b")},
            r"^resources\.zones: us-east1-b is in none of us-central1, us-west1",
        ),
        (
            {"zones": ("us-central1-a",)},
            r"^resources\.zones: none is in us-west1; name one there, or leave us-west1 out",
        ),
        ({"region": ("us-central1", CENTRAL)}, r"^resources\.region: names us-central1 twice$"),
        (
            {"region": ("us-central1", "us-west1-b")},
            r"^resources\.region: .*no region 'us-west1-b'; did you mean us-west1",
        ),
    ],
)
def test_what_cannot_be_in_every_region_is_refused(fields: dict[str, Any], why: str) -> None:
    checked = provider(Lists(TYPES))
    with pytest.raises(UserError, match=why):
        checked.check(Spec("x", "true", resources=asked(**fields)))


def test_names_are_right_in_every_region() -> None:
    gce = GceResources(network="subnet:training", placement_policy="close", reservation="any")
    provider(Lists(TYPES)).check(Spec("x", "true", resources=asked(gce=gce)))
    link = GceResources(network="projects/vision-1/regions/us-west1/subnetworks/training")
    provider(Lists(TYPES)).check(Spec("x", "true", resources=asked(region="us-west1", gce=link)))


def test_a_plan_without_a_cloud_has_all_regions(plan: Plan) -> None:
    code, _, err = plan("resources.region=[us-central1, us-west1]", "resources.machine=n2-standard-2")
    assert code == 0, err
    assert "in 2 regions, us-" in err and "the transfer is charged" in err
    code, _, err = plan("resources.region=[us-central1, us-wset1]")
    assert code == 2 and "'us-wset1'; did you mean us-west1?" in err and err.count("\n") == 1
