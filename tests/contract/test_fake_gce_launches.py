"""The Compute Engine for tests launches once for a request, one or several together, or says why it does not."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import compute_client
import pytest
from compute_client import HERE, HOME, SPOT, ZONE, Client, one, several

from tests.support.gce import GceCloud, why_no_gce
from tests.support.servers import isolated, pytest_isolated

# Fixtures that all tests of this Compute Engine share.
shared, cloud, gce = compute_client.shared, compute_client.cloud, compute_client.gce

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


def codes(operation: Any) -> list[str]:
    return [each["code"] for each in operation.get("error", {}).get("errors", [])]


def test_a_request_id_is_good_for_one_request(cloud: GceCloud, gce: Client) -> None:
    request = str(uuid.uuid4())
    path = f"{HERE}/instances?requestId={request}"
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: gce.begin("POST", path, one()), range(4)))
    assert len({answer["id"] for answer in answers}) == 1
    assert answers[0]["clientOperationId"] == request
    assert len(cloud.left().instances) == 1
    assert gce.refused("POST", path, one("two")) == (400, "invalid")
    assert gce.refused("POST", f"{HERE}/instances?requestId={uuid.UUID(int=0)}", one("two")) == (400, "invalid")
    assert gce.refused("POST", f"{HERE}/instances?requestId=mine", one("two")) == (400, "invalid")
    # Also when it is long over and the machine is gone: nothing is made twice.
    gce.finish(answers[0])
    gce.do("DELETE", f"{HERE}/instances/one")
    assert gce.begin("POST", path, one())["id"] == answers[0]["id"]
    # A failure is remembered as well.
    cloud.faults.no_capacity(times=1)
    again = f"{HERE}/instances?requestId={uuid.uuid4()}"
    assert gce.do("POST", again, one("dry"))["error"] == gce.begin("POST", again, one("dry"))["error"]
    assert not cloud.left()


def test_a_dry_zone_is_told_when_the_operation_ends(cloud: GceCloud, gce: Client) -> None:
    cloud.faults.no_capacity(zone=ZONE, lifecycle="spot")
    cloud.faults.slow("instances.insert", slow_s=2.0, times=1)
    operation = gce.begin("POST", f"{HERE}/instances", one(scheduling=SPOT))
    assert gce.get(f"{HERE}/instances/one")["status"] == "PROVISIONING"
    done = gce.finish(operation)
    assert codes(done) == ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    assert (done["httpErrorStatusCode"], done["status"]) == (503, "DONE")
    assert not cloud.left()
    assert gce.refused("GET", f"{HERE}/instances/one") == (404, "notFound")
    cloud.faults.clear()
    cloud.faults.no_capacity(machine="e2-medium", details=True, times=1)
    assert codes(gce.do("POST", f"{HERE}/instances", one())) == ["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    cloud.faults.refuse_launch(times=1)
    done = gce.do("POST", f"{HERE}/instances", one())
    assert (codes(done), done["httpErrorStatusCode"]) == (["QUOTA_EXCEEDED"], 403)
    cloud.faults.no_quota(times=1)
    assert gce.refused("POST", f"{HERE}/instances", one()) == (403, "quotaExceeded")
    assert not cloud.left()


def test_several_come_together_or_not_at_all(cloud: GceCloud, gce: Client) -> None:
    path = f"{HOME}/regions/us-central1/instances/bulkInsert"
    cloud.faults.no_capacity(zone=ZONE)
    others = {f"zones/us-central1-{letter}": {"preference": "DENY"} for letter in "bcf"}
    only = {"targetShape": "ANY_SINGLE_ZONE", "locations": others}
    done = gce.do("POST", path, several(2, locationPolicy=only))
    assert codes(done) == ["VM_MIN_COUNT_NOT_REACHED", "ZONE_RESOURCE_POOL_EXHAUSTED"]
    assert not cloud.left()
    # Some are there, but too few: those that came go again.
    cloud.faults.clear()
    cloud.faults.no_capacity(zone=ZONE, available=1)
    done = gce.do("POST", path, several(2, locationPolicy=only))
    assert codes(done) == ["VM_MIN_COUNT_NOT_REACHED"]
    group = done["operationGroupId"]
    children = gce.get(f"{HERE}/operations", filter=f'operationGroupId = "{group}"')["items"]
    assert sorted(map(codes, children)) == [[], ["ZONE_RESOURCE_POOL_EXHAUSTED"]]
    assert not cloud.left()
    # Another zone has enough.
    done = gce.do("POST", path, several(2))
    assert codes(done) == []
    status = done["instancesBulkInsertOperationMetadata"]["perLocationStatus"]
    assert status == {
        "zones/us-central1-b": {
            "status": "DONE",
            "targetVmCount": 2,
            "createdVmCount": 2,
            "failedToCreateVmCount": 0,
            "deletedVmCount": 0,
        }
    }
    everywhere = gce.get(f"{HOME}/aggregated/operations", filter=f'operationGroupId = "{done["operationGroupId"]}"')
    kinds = [each["operationType"] for scope in everywhere["items"].values() for each in scope.get("operations", [])]
    assert sorted(kinds) == ["bulkInsert", "insert", "insert"]
    assert gce.names(f"{HOME}/zones/us-central1-b/instances") == ["m-0", "m-1"]
    # Their names are taken there, so nothing is made.
    there = {"targetShape": "ANY_SINGLE_ZONE", "zones": [{"zone": "zones/us-central1-b"}]}
    assert codes(gce.do("POST", path, several(3, locationPolicy=there))) == ["RESOURCE_ALREADY_EXISTS"]
    # Fewer are enough.
    zonal = several(2, least=1)
    del zonal["locationPolicy"], zonal["perInstanceProperties"]
    zonal["namePattern"] = "n-##"
    assert codes(gce.do("POST", f"{HERE}/instances/bulkInsert", zonal)) == []
    assert gce.names(f"{HERE}/instances") == ["n-01"]
    assert len(cloud.left().instances) == 3


def test_bulk_requests_that_make_no_sense(cloud: GceCloud, gce: Client) -> None:
    path = f"{HOME}/regions/us-central1/instances/bulkInsert"
    for wrong in (
        several(0),
        several(2, least=3),
        {**several(2), "count": "3"},
        {**several(2), "namePattern": "a-#"},
        several(2, locationPolicy={"locations": {"zones/mars-a": {"preference": "DENY"}}}),
        {"count": "1", "namePattern": "a-#"},
    ):
        assert gce.refused("POST", path, wrong)[0] == 400, wrong
