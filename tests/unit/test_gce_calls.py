"""The table of permissions for Compute Engine is what is called, and nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google_project import BASE, LINK, NUMBER, PLACE, REGION, STORE, ZONE, Google, connected, machine

from stoker.model.errors import NoCapacity, NotFound, StillQueued, Transient
from stoker.model.offerings import Leftover, Offering
from stoker.model.resources import GceResources, Resources
from stoker.model.spec import Spec
from stoker.providers.base import HttpRequest, LaunchOrder, ShellRequest
from stoker.providers.gce import check, permissions, ssh_login
from stoker.providers.gce.provider import GceProvider

GROUP = "instanceGroupManagers/stoker-a"


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_COMPUTE_REGION", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    return Google()


def spec(nodes: int = 1, **resources: Any) -> Spec:
    asked = {"provider": "gce", "region": REGION, "machine": ("n2-standard-4",), "spot": "never"} | resources
    return Spec(name="check", run="true", nodes=nodes, resources=Resources(**asked))


def checked(google: Google, wanted: Spec) -> None:
    list(check.check_account(connected(google), wanted, STORE))


def order(nodes: int) -> LaunchOrder:
    offering = Offering("gce", "c2-standard-4", ZONE, True, region=PLACE, cpus=4)
    return LaunchOrder("gpt-ab12", "gpt", 1, nodes, 1, STORE, spec(nodes), "jane", offering)


def queued_order(nodes: int) -> LaunchOrder:
    offering = Offering("gce", "g2-standard-4", ZONE, False, region=PLACE, gpu="L4", gpus=1, queued=True)
    return replace(order(nodes), offering=offering)


def pending(path: str) -> dict[str, Any]:
    return {"status": "RUNNING", "selfLink": f"{LINK}/{path}/operations/op-1"}


def ready(google: Google) -> GceProvider:
    zone, region = f"zones/{ZONE}", f"regions/{REGION}"
    done = {
        "status": "DONE",
        "operationType": "insert",
        "targetId": NUMBER,
        "targetLink": f"{LINK}/{zone}/instances/x-0",
    }
    groups = f"{zone}/instanceGroupManagers"
    for path in (f"{zone}/instances", f"{zone}/instances/{NUMBER}/setMetadata", groups, f"{groups}/.*"):
        google.let("POST", f"{BASE}/{path}", pending(zone))
    google.let("POST", f"{BASE}/{zone}/instances/{NUMBER}/simulateMaintenanceEvent", pending(zone))
    for path in (f"{region}/instances/bulkInsert", f"{region}/resourcePolicies", f"{region}/instanceTemplates"):
        google.let("POST", f"{BASE}/{path}", pending(region))
    google.let("POST", f"{BASE}/.*/operations/op-1/wait", done)
    below = (f"{zone}/instances/{NUMBER}", f"{zone}/disks/d", f"{groups}/g")
    for path in (*below, f"{region}/resourcePolicies/p", f"{region}/instanceTemplates/t"):
        google.let("DELETE", f"{BASE}/{path}", {"status": "DONE"})
    google.let("GET", f"{BASE}/{zone}/instances/{NUMBER}", machine(google, scheduling={"preemptible": True}))
    google.let("GET", f"{BASE}/{zone}/instances/{NUMBER}/serialPort", {"contents": "boot"})
    for what in ("operations", "disks", "acceleratorTypes", "instanceGroupManagers"):
        google.let("GET", f"{BASE}/aggregated/{what}", {})
    for what in ("resourcePolicies", "instanceTemplates"):
        google.let("GET", f"{BASE}/{region}/{what}", {})
    return connected(google)


def test_a_governor_may_call_what_it_calls_and_nothing_else(google: Google) -> None:
    provider = ready(google)
    one, gang = provider.build(order(1)), provider.build(order(2))
    assert len(gang) == 2
    for asked in (one, gang):
        # Its answers are about another machine, which is not taken for ours.
        with pytest.raises(Transient, match="not listed yet"):
            provider.launch(asked)
    flex = provider.build(queued_order(2))
    assert len(flex) == 3
    with pytest.raises(NoCapacity):
        provider.launch(flex)
    # It was requested long ago, cannot be cancelled, and gets its machines at last, of which one is gone already.
    born = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    states = iter(["ACCEPTED", "ACCEPTED", "SUCCEEDED"])
    group = f"{BASE}/zones/{ZONE}/instanceGroupManagers/stoker-[^/]+/resizeRequests/stoker-[^/]+"
    google.let("GET", group, lambda _: {**born, "state": next(states)})
    with pytest.raises(StillQueued):
        provider.launch(flex)
    with pytest.raises(NoCapacity):
        provider.launch(flex)
    instance = f"{ZONE}.{NUMBER}"
    held = GceResources(reservation="block-7")
    provider.offerings(Resources(region=PLACE, machine=("n1-standard-8+nvidia-tesla-t4:1",), gce=held))
    provider.list_instances(PLACE)
    provider.state([instance], PLACE)
    provider.end_reason(instance, PLACE)
    provider.console(instance, PLACE)
    provider.terminate(instance, PLACE)
    member = machine(google, metadata={"items": [{"key": "created-by", "value": f"projects/42/zones/{ZONE}/{GROUP}"}]})
    google.answers.insert(0, ("GET", f"{BASE}/zones/{ZONE}/instances/{NUMBER}", member | {"name": "stoker-a-0"}))
    provider.terminate(instance, PLACE)
    provider.list_leftovers(PLACE)
    left = (("disk", f"{ZONE}/d"), ("placement-policy", "p"), ("instance-template", "t"))
    google.let("GET", f"{BASE}/zones/{ZONE}/instanceGroupManagers/g/resizeRequests/g", NotFound("gone"))
    for kind, name in (*left, ("instance-group", f"{ZONE}/g")):
        provider.remove(Leftover(kind, name, "gce", "gpt-ab12", 1, PLACE, None))
    assert set(google.called) == permissions.methods(permissions.GOVERNOR)


def test_a_governor_may_name_in_a_launch_what_it_names() -> None:
    """What stands in a request needs permissions of its own."""
    implied = {
        "labels": "compute.instances.setLabels",
        "metadata": "compute.instances.setMetadata",
        "serviceAccounts": "compute.instances.setServiceAccount",
        "disks": "compute.disks.create",
        "networkInterfaces": "compute.subnetworks.use",
        "resourcePolicies": "compute.resourcePolicies.use",
    }
    plain = {"machineType", "scheduling"}
    given = set(permissions.names(permissions.GOVERNOR))
    last: HttpRequest = ready(Google()).build(order(2))[-1]
    named = set(last.body["instanceProperties"])
    assert named - plain == set(implied)
    assert {implied[each] for each in named - plain} <= given
    assert "labels" in last.body["instanceProperties"]["disks"][0]["initializeParams"]
    assert "accessConfigs" in last.body["instanceProperties"]["networkInterfaces"][0]
    assert {"compute.disks.setLabels", "compute.subnetworks.useExternalIp"} <= given


def test_a_person_may_call_what_they_call_and_nothing_else(
    google: Google, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    ready(google)
    path = f"{BASE}/zones/{ZONE}/instances/{NUMBER}"
    (tmp_path / "ssh").write_text("#!/bin/sh\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def always(_: Any) -> bool:
        return True

    with ssh_login.shell_command(google, path, ShellRequest(), spec(), answers=always, accepts_key=always):  # type: ignore[arg-type]
        pass
    assert set(google.called) == permissions.methods(permissions.SHELL)
    google.called.clear()
    connected(google).interrupt(f"{ZONE}.{NUMBER}", 0.0, PLACE)
    assert set(google.called) <= permissions.methods((*permissions.INTERRUPT, *permissions.SHELL))
    assert set(google.called) >= permissions.methods(permissions.INTERRUPT)
    google.called.clear()
    google.machines = [machine(google)]
    checked(google, spec(image="mine"))
    checked(google, spec(gce=GceResources(network="subnet:gpus", placement_policy="close", reservation="block-7")))
    planned = permissions.methods(permissions.PLAN) | {"compute.instances.testIamPermissions"}
    assert set(google.called) - planned == permissions.methods(permissions.CHECK)


@pytest.mark.parametrize(
    ("about", "by_group"),
    [
        ({"name": "stoker-a-0", "link": f"projects/42/zones/{ZONE}/{GROUP}"}, True),
        ({"name": "stoker-a-0", "link": f"https://compute.example/compute/v1/projects/42/zones/{ZONE}/{GROUP}"}, True),
        # Metadata may be anybody's, and must not lead to another group.
        ({"name": "stoker-b-0", "link": f"projects/42/zones/{ZONE}/{GROUP}"}, False),
        ({"name": "stoker-a-0", "link": f"projects/42/regions/{REGION}/{GROUP}"}, False),
        ({"name": "stoker-a-0", "link": ""}, False),
    ],
)
def test_a_machine_is_deleted_by_its_own_group_alone(google: Google, about: dict[str, str], by_group: bool) -> None:
    provider = ready(google)
    found = machine(google, name=about["name"], metadata={"items": [{"key": "created-by", "value": about["link"]}]})
    google.answers.insert(0, ("GET", f"{BASE}/zones/{ZONE}/instances/{NUMBER}", found))
    assert provider.terminate(f"{ZONE}.{NUMBER}", PLACE) == ("requested" if by_group else "gone")
    assert ("compute.instanceGroupManagers.deleteInstances" in google.called) is by_group
    assert ("compute.instances.delete" in google.called) is not by_group
