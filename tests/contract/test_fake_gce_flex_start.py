"""The Compute Engine for tests queues flex-start requests as Google documents it."""

from __future__ import annotations

import time
from typing import Any

import compute_client
import pytest
from compute_client import HERE, Client, one

from tests.support.gce import GceCloud, why_no_gce
from tests.support.servers import isolated, pytest_isolated

# Fixtures that all tests of this Compute Engine share.
shared, cloud, gce = compute_client.shared, compute_client.cloud, compute_client.gce

if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


FLEX = {
    "provisioningModel": "FLEX_START",
    "onHostMaintenance": "TERMINATE",
    "automaticRestart": False,
    "maxRunDuration": {"seconds": "3600"},
    "instanceTerminationAction": "DELETE",
}


def flex(wait_s: int = 7200, **scheduling: Any) -> dict[str, Any]:
    return {
        **one(machineType="zones/us-central1-a/machineTypes/g2-standard-4", scheduling={**FLEX, **scheduling}),
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
        "params": {"requestValidForDuration": {"seconds": str(wait_s)}},
    }


def queued(cloud: GceCloud) -> str:
    (found,) = cloud.left().instances
    return found


def test_a_request_waits_as_pending_until_there_is_capacity(cloud: GceCloud, gce: Client) -> None:
    """ "the VM state changes to PENDING. In this state, Compute Engine attempts to acquire the necessary resources".

    https://cloud.google.com/compute/docs/instances/instance-lifecycle
    """
    number = cloud.faults.scarce()
    operation = gce.begin("POST", f"{HERE}/instances", flex())
    found = gce.get(f"{HERE}/instances/one")
    # "Input only": https://cloud.google.com/compute/docs/reference/rest/v1/instances
    assert found["status"] == "PENDING" and "params" not in found
    assert [each["name"] for each in gce.get(f"{HERE}/instances")["items"]] == ["one"]
    cloud.faults.clear(number)
    assert "error" not in gce.finish(operation)
    assert gce.get(f"{HERE}/instances/one")["status"] in ("STAGING", "RUNNING")


def test_a_request_that_waited_in_vain_is_an_error_or_disappears(cloud: GceCloud, gce: Client) -> None:
    """ "Otherwise, you encounter an error and Compute Engine deletes the Flex-start VM." """
    cloud.faults.scarce()
    operation = gce.begin("POST", f"{HERE}/instances", flex())
    cloud.machine(queued(cloud)).expire_request()
    assert "error" in gce.finish(operation)
    assert not cloud.left()
    cloud.faults.clear()
    cloud.faults.scarce(silent=True)
    assert "error" not in gce.do("POST", f"{HERE}/instances", flex())
    assert gce.get(f"{HERE}/instances/one")["status"] == "PENDING"
    cloud.machine(queued(cloud)).expire_request()
    until_s = time.monotonic() + 20
    while cloud.left() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not cloud.left()


def test_a_request_can_be_deleted_while_it_waits(cloud: GceCloud, gce: Client) -> None:
    """ "You can optionally delete the Flex-start VM before the wait time ends if you no longer need the VM." """
    cloud.faults.scarce()
    gce.begin("POST", f"{HERE}/instances", flex())
    gce.do("DELETE", f"{HERE}/instances/one")
    assert not cloud.left()


def test_what_flex_start_does_not_take(cloud: GceCloud, gce: Client) -> None:
    for wrong in (
        flex(60),
        flex(7201),
        flex(maxRunDuration={"seconds": "300"}),
        flex(maxRunDuration={"seconds": str(8 * 86400)}),
        flex(onHostMaintenance="MIGRATE"),
        {**flex(), "reservationAffinity": {"consumeReservationType": "ANY_RESERVATION"}},
        {**flex(), "machineType": "zones/us-central1-a/machineTypes/n2-standard-2"},
        # Neither is it for others.
        {**one(), "params": {"requestValidForDuration": {"seconds": "600"}}},
        # Sold as spot and by flex-start alone.
        one(
            machineType="zones/us-central1-a/machineTypes/a3-highgpu-1g", scheduling={"onHostMaintenance": "TERMINATE"}
        ),
    ):
        assert gce.refused("POST", f"{HERE}/instances", wrong)[0] == 400, wrong
    assert not cloud.left()
