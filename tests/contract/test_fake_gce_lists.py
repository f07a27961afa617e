"""The Compute Engine for tests lists what there is besides machines, filtered and in pages, and keeps what is used."""

from __future__ import annotations

import urllib.parse

import compute_client
import pytest
from compute_client import HERE, HOME, ZONE, Client, one

from tests.support.gce import OTHER_PROJECT, GceCloud, why_no_gce
from tests.support.gce.catalog import GPU_NETWORKS
from tests.support.servers import isolated, pytest_isolated

# Fixtures that all tests of this Compute Engine share.
shared, cloud, gce = compute_client.shared, compute_client.cloud, compute_client.gce

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("name=e2-medium", ["e2-medium"]),
        ('name = "e2-medium" OR name = "e2-small"', ["e2-medium", "e2-small"]),
        ("(name=e2-medium OR name=e2-small) AND memoryMb = 4096", ["e2-medium"]),
        # OR binds tighter than AND.
        ("memoryMb = 4096 AND name=e2-medium OR name=e2-small", ["e2-medium"]),
        ("(name:e2-) (guestCpus < 4) (NOT name=e2-micro)", ["e2-medium", "e2-small", "e2-standard-2"]),
        ("accelerators.guestAcceleratorType=nvidia-b200", []),
        ("accelerators:* AND name=g4*48", ["g4-standard-48"]),
        ('name eq "e2-(small|medium)"', ["e2-medium", "e2-small"]),
        ("(name eq e2-.*) (name ne .*-[0-9]+)", ["e2-medium", "e2-micro", "e2-small"]),
        ("isSharedCpu=true AND name!=e2-micro", ["e2-medium", "e2-small"]),
    ],
)
def test_filters(cloud: GceCloud, gce: Client, wanted: str, found: list[str]) -> None:
    assert gce.names(f"{HOME}/zones/us-central1-f/machineTypes", filter=wanted) == found


@pytest.mark.parametrize(
    "wrong",
    ["name", "nmae=x", "name=", "name ~ x", "(name=x", "name=x name eq y", "name eq a OR name eq b", "name eq ("],
)
def test_filters_that_are_not_understood(cloud: GceCloud, gce: Client, wrong: str) -> None:
    path = f"{HERE}/machineTypes?{urllib.parse.urlencode({'filter': wrong})}"
    assert gce.refused("GET", path) == (400, "invalid")


def test_lists_come_in_pages(cloud: GceCloud, gce: Client) -> None:
    whole = gce.names(f"{HERE}/machineTypes")
    assert "n1-standard-4" in whole
    assert "a4-highgpu-8g" not in whole
    pages, token = [], ""
    while not pages or token:
        page = gce.get(f"{HERE}/machineTypes", maxResults="20", **({"pageToken": token} if token else {}))
        pages.append([each["name"] for each in page["items"]])
        token = page.get("nextPageToken", "")
    assert [name for page in pages for name in page] == whole
    assert {len(page) for page in pages[:-1]} == {20}
    assert gce.refused("GET", f"{HERE}/machineTypes?pageToken=xyz") == (400, "invalid")
    everywhere = gce.get(f"{HOME}/aggregated/acceleratorTypes", filter="name=nvidia-b200")["items"]
    assert [each["name"] for each in everywhere["zones/us-central1-b"]["acceleratorTypes"]] == ["nvidia-b200"]
    assert everywhere[f"zones/{ZONE}"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"


def test_what_was_always_there(cloud: GceCloud, gce: Client) -> None:
    cloud.set_quota("NVIDIA_L4_GPUS", 0.0, "us-central1")
    region = gce.get(f"{HOME}/regions/us-central1")
    assert {"metric": "NVIDIA_L4_GPUS", "limit": 0.0, "usage": 0.0} in region["quotas"]
    assert region["zones"][0].endswith(f"/{ZONE}")
    assert gce.names(f"{HOME}/zones", filter="status=UP")[0] == "europe-west4-a"
    assert gce.get(f"/compute/v1/projects/{OTHER_PROJECT}")["name"] == OTHER_PROJECT
    family = gce.get("/compute/v1/projects/debian-cloud/global/images/family/debian-12")
    assert gce.get(f"/compute/v1/projects/debian-cloud/global/images/{family['name']}") == family
    missing = "/compute/v1/projects/debian-cloud/global/images/family/debian-99"
    assert gce.refused("GET", missing) == (404, "notFound")
    assert gce.names(f"{HOME}/global/networks") == ["default", *GPU_NETWORKS]
    subnetworks = ["default", *(each for below in GPU_NETWORKS.values() for each in below)]
    assert gce.names(f"{HOME}/regions/us-central1/subnetworks") == subnetworks
    assert "default-allow-ssh" in gce.names(f"{HOME}/global/firewalls")


def test_policies_that_are_used_stay(cloud: GceCloud, gce: Client) -> None:
    path = f"{HOME}/regions/us-central1/resourcePolicies"
    body = {"name": "close", "description": "a claim's", "groupPlacementPolicy": {"collocation": "COLLOCATED"}}
    gce.do("POST", path, body)
    assert gce.refused("POST", path, body) == (409, "alreadyExists")
    assert gce.get(f"{path}/close")["status"] == "READY"
    link = gce.get(path, filter='name = "clo*"')["items"][0]["selfLink"]
    assert gce.refused("POST", f"{HERE}/instances", one(resourcePolicies=[link])) == (400, "invalid")
    gce.launch(resourcePolicies=[link], machineType=f"zones/{ZONE}/machineTypes/n2-standard-2")
    assert gce.refused("DELETE", f"{path}/close") == (400, "resourceInUseByAnotherResource")
    gce.do("DELETE", f"{HERE}/instances/one")
    gce.do("DELETE", f"{path}/close")
    assert not cloud.left()
