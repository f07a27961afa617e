"""The Compute Engine for tests takes the calls that Google's would take, and fails those that it is told to fail."""

from __future__ import annotations

import json
import time
import urllib.error
from typing import Any

import compute_client
import pytest
from compute_client import ALL, HERE, HOME, SPOT, ZONE, Client, one

from tests.support.gce import PROJECT, GceCloud, check_request, why_no_gce
from tests.support.servers import isolated, pytest_isolated

# Fixtures that all tests of this Compute Engine share.
shared, cloud, gce = compute_client.shared, compute_client.cloud, compute_client.gce

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, ""),
        ({"nmae": "x"}, "nmae: there is no such field"),
        ({"id": "4"}, "id: is output only"),
        ({"name": "Upper"}, "name: 'Upper' does not match"),
        ({"scheduling": {"maxRunDuration": {"seconds": 60}}}, "seconds: 60 is no string"),
        ({"scheduling": {"maxRunDuration": {"seconds": "1m"}}}, "seconds: '1m' is no int64"),
        ({"scheduling": {"provisioningModel": "CHEAP"}}, "'CHEAP' is none of"),
        ({"scheduling": {"preemptible": "true"}}, "'true' is no boolean"),
        ({"guestAccelerators": [{"acceleratorCount": True}]}, "acceleratorCount: True is no integer"),
        ({"guestAccelerators": {"acceleratorCount": 1}}, "is no list"),
        ({"metadata": {"items": [{"key": "a"}]}}, "metadata.items[0].value: is required"),
        ({"labels": {"a": None}}, "labels.a: None is no string"),
        ({"disks": [{"index": 0}]}, "disks[0].index: is output only"),
    ],
)
def test_bodies_are_held_against_googles_document(change: dict[str, Any], wrong: str) -> None:
    found = check_request("POST", f"{HERE}/instances?requestId=x", body={**one(), **change})
    assert ([wrong in each for each in found] == [True]) if wrong else found == []


def test_methods_and_parameters_are_held_against_it_too() -> None:
    assert check_request("DELETE", f"{HERE}/instances/4242424242424242424") == []
    assert "does not match" in check_request("DELETE", f"{HERE}/instances/Upper")[0]
    assert "no parameter" in check_request("GET", f"{HERE}/instances", {"fliter": "a=b"})[0]
    assert "no uint32" in check_request("GET", f"{HERE}/instances?maxResults=-1")[0]
    assert "is required" in check_request("POST", f"{HERE}/instances", body={})[0]
    assert "a body is missing" in check_request("POST", f"{HERE}/instances")[0]
    assert "there is no method" in check_request("PUT", f"{HERE}/instances")[0]
    assert check_request("POST", "/v2/entries:write", body={"entries": [{"textPayload": "x"}]}, service="logging") == []
    assert "is no google-datetime" in "".join(
        check_request("POST", "/v2/entries:write", body={"entries": [{"timestamp": "now"}]}, service="logging")
    )


def test_what_does_not_fit_is_refused_and_remembered(cloud: GceCloud, gce: Client) -> None:
    assert gce.refused("POST", f"{HERE}/instances", one(labels={"a": 1})) == (400, "invalid")
    assert gce.refused("GET", f"{HERE}/machines") == (404, "notFound")
    broken = cloud.broken(reset=True)
    assert "labels.a: 1 is no string" in broken[0]
    assert "/machines: there is no such method" in broken[1]


def test_what_cannot_be_is_refused_at_once(cloud: GceCloud, gce: Client) -> None:
    boot = {"boot": True, "initializeParams": {"sourceImage": "global/images/mine"}}
    gpus = [{"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-l4", "acceleratorCount": 1}]
    wrong: list[dict[str, Any]] = [
        {"machineType": f"zones/{ZONE}/machineTypes/e9-medium"},
        {"machineType": "zones/us-central1-b/machineTypes/e2-medium"},
        {"machineType": "e2-medium"},
        {"disks": [boot]},
        {"disks": []},
        {"networkInterfaces": []},
        {"networkInterfaces": [{"network": "global/networks/mine"}]},
        {"guestAccelerators": gpus},
        {"machineType": f"zones/{ZONE}/machineTypes/g2-standard-4", "scheduling": {"onHostMaintenance": "MIGRATE"}},
        {"scheduling": {**SPOT, "automaticRestart": True}},
        {"scheduling": {"instanceTerminationAction": "DELETE"}},
        {"scheduling": {"maxRunDuration": {"seconds": "3600"}}},
        {"scheduling": {**SPOT, "preemptionNoticeDuration": {"seconds": "121"}}},
        {"scheduling": {"preemptionNoticeDuration": {"seconds": "120"}}},
        {"serviceAccounts": [{"email": f"nobody@{PROJECT}.iam.gserviceaccount.com", "scopes": [ALL]}]},
        {"resourcePolicies": [f"projects/{PROJECT}/regions/us-central1/resourcePolicies/none"]},
        {"labels": {"Upper": "x"}},
    ]
    for change in wrong:
        assert gce.refused("POST", f"{HERE}/instances", one(**change))[0] == 400, change
    assert gce.refused("POST", f"{HOME}/zones/mars-a/instances", one()) == (404, "notFound")
    assert gce.refused("GET", "/compute/v1/projects/nobodys/zones") == (404, "notFound")
    assert Client(cloud, "").refused("GET", HOME) == (401, "authError")
    assert Client(cloud, "guessed").refused("GET", HOME) == (401, "authError")
    assert not cloud.left()


def test_calls_fail_as_ordered(cloud: GceCloud, gce: Client) -> None:
    cloud.faults.throttle("projects.get", times=1)
    assert gce.refused("GET", HOME) == (429, "rateLimitExceeded")
    assert gce.get(HOME)["name"] == PROJECT
    number = cloud.faults.internal_error(for_s=30.0)
    assert gce.refused("GET", HOME) == (500, "backendError")
    cloud.faults.clear(number)

    cloud.faults.slow("instances.insert", slow_s=1.0, times=1)
    begun = time.monotonic()
    cloud.faults.lose_replies("instances.insert")
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        gce.ask("POST", f"{HERE}/instances", one())
    (instance,) = cloud.left().instances
    cloud.machine(instance).wait_running()
    assert time.monotonic() - begun > 1.0

    cloud.faults.unauthorized("instances.delete")
    assert gce.refused("DELETE", f"{HERE}/instances/one") == (403, "forbidden")
    asked = {"permissions": ["compute.instances.delete", "compute.instances.get"]}
    assert gce.ask("POST", f"{HERE}/instances/one/testIamPermissions", asked)[1] == {
        "permissions": ["compute.instances.get"]
    }
    everywhere = gce.ask("POST", f"/v1/projects/{PROJECT}:testIamPermissions", asked)
    assert everywhere == (200, {"permissions": ["compute.instances.get"]})
    cloud.faults.listing_lag(600.0)
    assert gce.names(f"{HERE}/instances") == []
    assert gce.get(f"{HERE}/instances/one")["name"] == "one"
    assert cloud.calls()["instances.insert"] == 1


def test_a_real_client_signs_in_with_the_service_account(cloud: GceCloud) -> None:
    google = pytest.importorskip("google.auth")
    from google.auth.transport.urllib3 import AuthorizedHttp

    credentials, project = google.default(scopes=[ALL])
    assert project == PROJECT
    answer = AuthorizedHttp(credentials).request("GET", f"{cloud.endpoint}{HOME}")
    assert json.loads(answer.data)["name"] == PROJECT
