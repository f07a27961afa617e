"""What is asked of Compute Engine: built purely, and never by surprise. `STOKER_GOLDEN=1` writes the requests anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.model import codec
from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import GceResources, Resources
from stoker.model.spec import Spec
from stoker.providers.base import HttpRequest, LaunchOrder
from stoker.providers.gce import identity, images, names, owners, request, startup

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[2]
PLACE = "vision-1/us-central1"
E2 = Offering("gce", "e2-standard-4", "us-central1-a", False, PLACE, 0.13, 0.13, "test", 4, 16 << 30)
T4 = Offering(
    "gce", "n1-standard-8+nvidia-tesla-t4:1", "us-central1-a", True, PLACE, 0.28, 0.73, "test", 8, 30 << 30, "T4", 1
)
A100 = Offering("gce", "a2-highgpu-8g", "us-central1-b", True, PLACE, 14.4, 29.4, "test", 96, 680 << 30, "A100-40GB", 8)

H100 = Offering(
    "gce", "a3-highgpu-1g", "us-central1-a", False, PLACE, 11, 11, "test", 26, 234 << 30, "H100", 1, queued=True
)


def order(
    offering: Offering = E2, nodes: int = 1, tagged: dict[str, str] | None = None, **resources: Any
) -> LaunchOrder:
    spec = Spec(
        name="gpt",
        run="python train.py",
        nodes=nodes,
        resources=Resources(provider="gce", **resources),
        tags=tagged or {},
    )
    return LaunchOrder(
        job="gpt-7f3k",
        name="gpt",
        claim=4,
        nodes=nodes,
        attempt=2,
        store="gs://bucket/team",
        spec=spec,
        submitter="jane@laptop",
        offering=offering,
        max_life_s=14400.0,
        bundles={"cp311-x86_64": "d" * 64},
    )


def machine_of(found: LaunchOrder) -> dict[str, Any]:
    """What the machines of an order are like, in either kind of request."""
    body = request.build(found)[-1].body
    properties: dict[str, Any] = body.get("instanceProperties", body)
    return properties


WHOLE = GceResources(
    project="vision-1",
    service_account="trainer@vision-1.iam.gserviceaccount.com",
    scopes=("storage-rw", "compute-rw", "https://www.googleapis.com/auth/logging.write"),
    network="subnet:training",
    public_ip=False,
    placement_policy="close",
    reservation="block-7",
    overrides={"labels": {"cost-centre": "7"}, "tags": {"items": ["training"]}},
)
ORDERS = {
    "one-standard": order(),
    "one-on-spot": order(
        T4, tagged={"project": "vision", "Team": "A/B"}, disk_bytes=200_000_000_000, image="debian/12"
    ),
    "gang-on-spot": order(A100, nodes=2, disk_bytes=500_000_000_000),
    "flex-start": order(H100, gce=GceResources(flex_start=True)),
    "everything": order(image="family:vision-1/our-image", gce=WHOLE),
}


def dumped(requests: tuple[HttpRequest, ...]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [codec.dump(each) for each in requests]
    for each in found:
        for item in each["body"].get("instanceProperties", each["body"]).get("metadata", {}).get("items", ()):
            if item["key"].endswith("-script"):
                # Its own tests read it; here it would only hide what is asked for.
                item["value"] = "…"
    return found


class TestTheRequest:
    @pytest.mark.parametrize("name", ORDERS)
    def test_it_is_the_golden_one(self, name: str) -> None:
        built = dumped(request.build(ORDERS[name]))
        path = GOLDEN / f"gce-{name}.json"
        if os.environ.get("STOKER_GOLDEN"):
            path.write_text(json.dumps(built, indent=2) + "\n")
        assert built == json.loads(path.read_text())

    @pytest.mark.parametrize("name", ORDERS)
    def test_google_would_understand_it(self, name: str) -> None:
        pytest.importorskip("googleapiclient")
        from tests.support.gce.discovery import check_request

        for each in request.build(ORDERS[name]):
            assert check_request(each.method, each.path, body=each.body) == []

    def test_building_is_pure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = request.build(ORDERS["gang-on-spot"])
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "somebody-else")
        monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", "mars-1")
        assert request.build(ORDERS["gang-on-spot"]) == first

    def test_its_id_is_the_claims_own(self) -> None:
        one = request.request_id(order())
        assert uuid.UUID(one).version == 5
        assert one == request.request_id(replace(order(A100, nodes=8), submitter="joe"))
        assert one != request.request_id(replace(order(), claim=5))
        assert one != request.request_id(replace(order(), store="gs://another"))
        policy, bulk = request.build(ORDERS["gang-on-spot"])
        assert policy.path.partition("requestId=")[2] != bulk.path.partition("requestId=")[2] == one

    def test_one_node_is_put_into_its_zone(self) -> None:
        (insert,) = request.build(order())
        assert (insert.service, insert.method, insert.region) == ("compute", "POST", PLACE)
        assert insert.path.startswith("/compute/v1/projects/vision-1/zones/us-central1-a/instances?requestId=")
        assert insert.body["name"] == names.machine(order(), 0)

    def test_a_gang_comes_whole_and_in_the_zone_of_its_offering(self) -> None:
        policy, bulk = request.build(order(A100, nodes=3))
        assert bulk.path.startswith("/compute/v1/projects/vision-1/regions/us-central1/instances/bulkInsert?requestId=")
        assert (bulk.body["count"], bulk.body["minCount"]) == ("3", "3")
        assert list(bulk.body["perInstanceProperties"]) == [names.machine(order(A100, nodes=3), n) for n in range(3)]
        location = bulk.body["locationPolicy"]
        assert location["targetShape"] == "ANY_SINGLE_ZONE"
        told = {zone: each["preference"] for zone, each in location["locations"].items()}
        assert [zone for zone, preference in told.items() if preference == "ALLOW"] == ["zones/us-central1-b"]
        assert set(told) == {f"zones/us-central1-{letter}" for letter in "abcf"}
        assert policy.path.startswith("/compute/v1/projects/vision-1/regions/us-central1/resourcePolicies?requestId=")

    def test_a_policy_says_whose_it_is(self) -> None:
        policy, bulk = request.build(order(A100, nodes=2))
        assert policy.body["groupPlacementPolicy"] == {"collocation": "COLLOCATED"}
        told = owners.from_description(policy.body["description"])
        assert told == owners.Owner("gs_3a_2f_2fbucket_2fteam", "gpt-7f3k", 4)
        assert bulk.body["instanceProperties"]["resourcePolicies"] == [policy.body["name"]]

    @pytest.mark.parametrize(
        ("machine", "policies"), [("e2-standard-4", 0), ("n1-standard-8", 0), ("c3-standard-8", 1)]
    )
    def test_machines_that_cannot_be_close_are_not_asked_to_be(self, machine: str, policies: int) -> None:
        found = request.build(order(replace(E2, machine=machine), nodes=2))
        assert len(found) == policies + 1
        assert ("resourcePolicies" in found[-1].body["instanceProperties"]) == bool(policies)

    def test_a_policy_of_the_persons_own(self) -> None:
        mine = {"gce": GceResources(placement_policy="close")}
        (bulk,) = request.build(order(A100, nodes=2, **mine))
        assert bulk.body["instanceProperties"]["resourcePolicies"] == ["close"]
        link = "projects/vision-1/regions/us-central1/resourcePolicies/close"
        assert machine_of(order(A100, **mine))["resourcePolicies"] == [link]


class TestTheMachine:
    def test_a_spot_machine_is_deleted_and_asks_for_notice(self) -> None:
        assert machine_of(order(T4))["scheduling"] == {
            "provisioningModel": "SPOT",
            "preemptible": True,
            "automaticRestart": False,
            "onHostMaintenance": "TERMINATE",
            "instanceTerminationAction": "DELETE",
            "preemptionNoticeDuration": {"seconds": "120"},
            "maxRunDuration": {"seconds": "14400"},
        }

    def test_a_standard_machine_moves_unless_it_has_gpus(self) -> None:
        plain = machine_of(order())["scheduling"]
        assert plain == {
            "provisioningModel": "STANDARD",
            "automaticRestart": False,
            "onHostMaintenance": "MIGRATE",
            "maxRunDuration": {"seconds": "14400"},
            "instanceTerminationAction": "DELETE",
        }
        for offering in (T4, A100, replace(E2, machine="a9-maxgpu-8g"), replace(E2, machine="h3-standard-88")):
            found = machine_of(order(replace(offering, spot=False)))["scheduling"]
            assert found["onHostMaintenance"] == "TERMINATE", offering.machine

    @pytest.mark.parametrize(("life_s", "seconds"), [(0.5, "30"), (100.2, "101"), (1e9, "10368000")])
    def test_its_longest_life_is_one_that_google_takes(self, life_s: float, seconds: str) -> None:
        scheduling = machine_of(replace(order(), max_life_s=life_s))["scheduling"]
        assert scheduling["maxRunDuration"] == {"seconds": seconds}

    def test_without_a_bound_there_is_none(self) -> None:
        scheduling = machine_of(replace(order(), max_life_s=None))["scheduling"]
        assert "maxRunDuration" not in scheduling and "instanceTerminationAction" not in scheduling

    def test_things_of_a_zone_are_linked_in_one_and_named_in_the_other(self) -> None:
        one, many = machine_of(order(T4)), machine_of(order(T4, nodes=2))
        zone = "projects/vision-1/zones/us-central1-a"
        assert one["machineType"] == f"{zone}/machineTypes/n1-standard-8"
        assert many["machineType"] == "n1-standard-8"
        assert one["guestAccelerators"] == [
            {"acceleratorType": f"{zone}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}
        ]
        assert many["guestAccelerators"] == [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}]
        assert one["disks"][0]["initializeParams"]["diskType"] == f"{zone}/diskTypes/pd-balanced"
        assert many["disks"][0]["initializeParams"]["diskType"] == "pd-balanced"

    def test_gpus_that_are_built_in_are_not_attached(self) -> None:
        assert "guestAccelerators" not in machine_of(order(A100))

    @pytest.mark.parametrize(
        ("machine", "kind"),
        [
            ("e2-standard-4", "pd-balanced"),
            ("a2-highgpu-1g", "pd-balanced"),
            ("a3-highgpu-8g", "pd-balanced"),
            ("a3-ultragpu-8g", "hyperdisk-balanced"),
            ("a4-highgpu-8g", "hyperdisk-balanced"),
            ("c4-standard-8", "hyperdisk-balanced"),
            ("c4a-standard-8", "hyperdisk-balanced"),
            ("n4-standard-8", "hyperdisk-balanced"),
            ("t2a-standard-8", "pd-balanced"),
            ("n2d-standard-8", "pd-balanced"),
        ],
    )
    def test_a_disk_that_the_machine_can_have(self, machine: str, kind: str) -> None:
        found = machine_of(order(replace(E2, machine=machine)))["disks"][0]["initializeParams"]["diskType"]
        assert found.rpartition("/")[2] == kind

    def test_a_disk_goes_with_its_machine_and_is_as_large_as_it_says(self) -> None:
        for size, expected in ((200_000_000_000, "200"), (64 << 30, "64"), (10_500_000_000, "10")):
            (disk,) = machine_of(order(disk_bytes=size))["disks"]
            assert disk["autoDelete"] is True and disk["boot"] is True
            assert disk["initializeParams"]["diskSizeGb"] == expected
        (disk,) = machine_of(order(tagged={"project": "vision"}))["disks"]
        assert disk["initializeParams"]["labels"] == machine_of(order(tagged={"project": "vision"}))["labels"]

    def test_a_public_address_unless_it_is_refused(self) -> None:
        """Without one, a machine of a new project reaches neither the bucket nor an index."""
        for gce, public in ((None, True), (GceResources(public_ip=True), True), (GceResources(public_ip=False), False)):
            (interface,) = machine_of(order(gce=gce))["networkInterfaces"]
            assert ("accessConfigs" in interface) is public

    @pytest.mark.parametrize(
        ("network", "expected"),
        [
            (None, {"network": "projects/vision-1/global/networks/default"}),
            ("training", {"network": "projects/vision-1/global/networks/training"}),
            ("subnet:training", {"subnetwork": "projects/vision-1/regions/us-central1/subnetworks/training"}),
            ("projects/host/global/networks/shared", {"network": "projects/host/global/networks/shared"}),
            (
                "projects/host/regions/us-central1/subnetworks/shared",
                {"subnetwork": "projects/host/regions/us-central1/subnetworks/shared"},
            ),
        ],
    )
    def test_networks(self, network: str | None, expected: dict[str, str]) -> None:
        (interface,) = machine_of(order(gce=GceResources(network=network, public_ip=False)))["networkInterfaces"]
        assert interface == expected

    def test_who_it_is(self) -> None:
        (account,) = machine_of(order())["serviceAccounts"]
        assert account == {
            "email": "stoker-node@vision-1.iam.gserviceaccount.com",
            "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        }
        assert identity.email("example.com:vision", "stoker-node") == (
            "stoker-node@vision.example.com.iam.gserviceaccount.com"
        )
        assert identity.email("vision-1", "default") == "default"
        assert identity.scope("storage-rw") == "https://www.googleapis.com/auth/devstorage.read_write"

    def test_a_reservation_is_for_standard_machines(self) -> None:
        reserved = {"gce": GceResources(reservation="block-7")}
        assert machine_of(order(**reserved))["reservationAffinity"] == {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": ["block-7"],
        }
        assert "reservationAffinity" not in machine_of(order(T4, **reserved))
        none = machine_of(order(gce=GceResources(reservation="none")))["reservationAffinity"]
        assert none == {"consumeReservationType": "NO_RESERVATION"}

    def test_what_can_only_be_reserved_lives_with_its_reservation(self) -> None:
        b200 = replace(E2, machine="a4-highgpu-8g", gpu="B200", gpus=8)
        found = machine_of(order(b200, gce=GceResources(reservation="block-7")))["scheduling"]
        assert (found["provisioningModel"], found["onHostMaintenance"]) == ("RESERVATION_BOUND", "TERMINATE")

    def test_its_scripts(self) -> None:
        items = {item["key"]: item["value"] for item in machine_of(order())["metadata"]["items"]}
        assert items["startup-script"] == startup.startup_script(order())
        assert items["shutdown-script"] == startup.shutdown_script()
        assert "install-nvidia-driver" not in items
        with_gpus = {item["key"]: item["value"] for item in machine_of(order(T4))["metadata"]["items"]}
        assert with_gpus["install-nvidia-driver"] == "True"


class TestImages:
    @pytest.mark.parametrize(
        ("wanted", "source"),
        [
            ("debian/12", "projects/debian-cloud/global/images/family/debian-12"),
            ("ubuntu/24.04", "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"),
            (
                "dlvm/pytorch",
                "projects/deeplearning-platform-release/global/images/family/pytorch-2-9-cu129-ubuntu-2404-nvidia-580",
            ),
            ("family:rocky-linux-cloud/rocky-linux-9", "projects/rocky-linux-cloud/global/images/family/rocky-linux-9"),
            ("family:our-image", "global/images/family/our-image"),
            ("vision-1/our-image-v7", "projects/vision-1/global/images/our-image-v7"),
            ("our-image-v7", "global/images/our-image-v7"),
            ("projects/vision-1/global/images/family/ours", "projects/vision-1/global/images/family/ours"),
            ("global/images/ours", "global/images/ours"),
            (
                "https://www.googleapis.com/compute/v1/projects/debian-cloud/global/images/debian-12-v1",
                "projects/debian-cloud/global/images/debian-12-v1",
            ),
        ],
    )
    def test_what_is_meant(self, wanted: str, source: str) -> None:
        assert images.find(wanted, "x86_64") == images.GceImage(source)

    def test_arm_has_its_own(self) -> None:
        found = machine_of(order(replace(E2, machine="t2a-standard-4")))["disks"][0]["initializeParams"]["sourceImage"]
        assert found.endswith("/ubuntu-2404-lts-arm64")
        assert images.find("debian/13", "arm64").source.endswith("/debian-13-arm64")

    def test_machines_with_gpus_get_drivers_and_others_need_none(self) -> None:
        for offering, part in ((T4, "deeplearning-platform-release"), (E2, "ubuntu-os-cloud")):
            assert part in machine_of(order(offering))["disks"][0]["initializeParams"]["sourceImage"]

    @pytest.mark.parametrize("wanted", ["ubuntu/23.04", "debian/11", "dlvm/pytorch-1.0", "ami-0123/4/5", "Our image"])
    def test_what_is_none(self, wanted: str) -> None:
        with pytest.raises(UserError) as raised:
            request.check(order(image=wanted).spec)
        assert str(raised.value).startswith(f"resources.image: there is no {wanted}; known are dlvm/pytorch, ")

    def test_the_python_that_an_image_brings(self) -> None:
        assert images.python_of(None, 0) == images.python_of(None, 8) == (3, 12)
        assert images.python_of("debian/12", 0) == (3, 11)
        assert images.python_of("dlvm/pytorch-2.7", 1) == (3, 10)
        assert images.python_of("vision-1/ours", 0) is None


class TestOverrides:
    def test_they_win_part_by_part(self) -> None:
        overrides = {
            "labels": {"cost-centre": "7"},
            "metadata": {"items": [{"key": "enable-oslogin", "value": "TRUE"}]},
            "disks": [
                {"boot": True, "autoDelete": True, "initializeParams": {"diskType": "pd-ssd"}},
                {"source": "projects/vision-1/zones/us-central1-a/disks/data", "mode": "READ_ONLY"},
                {"initializeParams": {"diskSizeGb": "900"}, "autoDelete": True},
            ],
            "scheduling": {"onHostMaintenance": "TERMINATE"},
            "tags": {"items": ["a", "b"]},
        }
        request.check(order(gce=GceResources(overrides=overrides)).spec)
        found = machine_of(order(gce=GceResources(overrides=overrides)))
        assert found["labels"]["cost-centre"] == "7" and found["labels"]["stoker-job"] == "gpt-7f3k"
        assert {item["key"] for item in found["metadata"]["items"]} == {
            "startup-script",
            "shutdown-script",
            "enable-oslogin",
        }
        boot, data, scratch = found["disks"]
        assert boot["initializeParams"]["diskType"] == "pd-ssd" and "sourceImage" in boot["initializeParams"]
        assert data["mode"] == "READ_ONLY" and scratch["initializeParams"]["diskSizeGb"] == "900"
        # Whatever is made with the machine is found by its labels, should it be left behind.
        assert scratch["initializeParams"]["labels"]["stoker-job"] == "gpt-7f3k"
        assert found["scheduling"]["onHostMaintenance"] == "TERMINATE"
        assert found["scheduling"]["automaticRestart"] is False
        assert found["tags"] == {"items": ["a", "b"]}

    def test_a_gang_has_them_too(self) -> None:
        gce = GceResources(overrides={"tags": {"items": ["a"]}})
        assert machine_of(order(A100, nodes=2, gce=gce))["tags"] == {"items": ["a"]}

    @pytest.mark.parametrize(
        ("overrides", "said"),
        [
            ({"name": "x"}, "resources.gce.overrides.name: is Stoker's own"),
            ({"machineType": "x"}, "machineType: is Stoker's own"),
            ({"deletionProtection": True}, "deletionProtection: is Stoker's own"),
            ({"scheduling": {"provisioningModel": "STANDARD"}}, "scheduling.provisioningModel: is Stoker's own"),
            ({"scheduling": {"instanceTerminationAction": "STOP"}}, "scheduling.instanceTerminationAction: is"),
            ({"scheduling": {"maxRunDuration": {"seconds": "9"}}}, "scheduling.maxRunDuration: is Stoker's own"),
            ({"scheduling": None}, "scheduling.automaticRestart: is Stoker's own"),
            ({"labels": {"stoker-job": "x"}}, "labels.stoker-job: is Stoker's own"),
            ({"labels": None}, "labels: must be a mapping"),
            ({"metadata": {"items": [{"key": "startup-script", "value": "x"}]}}, "startup-script is Stoker's own"),
            ({"metadata": {"items": {"a": "b"}}}, "metadata.items: must be a list"),
            ({"metadata": []}, "metadata: must be a mapping"),
            ({"disks": {}}, "disks: must be a list"),
            ({"disks": [{"boot": True, "autoDelete": False}]}, "needs `autoDelete: true`"),
            ({"disks": [{"initializeParams": {"diskSizeGb": "9"}}]}, "needs `autoDelete: true`"),
        ],
    )
    def test_they_cannot_take_a_machine_out_of_our_hands(self, overrides: dict[str, Any], said: str) -> None:
        with pytest.raises(UserError) as raised:
            request.check(order(gce=GceResources(overrides=overrides)).spec)
        assert said in str(raised.value)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("resources", "said"),
        [
            ({"region": "us-central1-a"}, "resources.region: Compute Engine has no region"),
            ({"region": "vision-1/us-central1", "zones": ("us-east1-b",)}, "resources.zones: us-east1-b is not in"),
            ({"disk_bytes": 5_000_000_000}, "resources.disk: Compute Engine's disks have 10GB at least"),
            ({"gce": GceResources(project="My Project")}, "resources.gce.project: 'My Project' is no project"),
            ({"gce": GceResources(network="my network")}, "resources.gce.network: 'my network' is none"),
            ({"gce": GceResources(service_account="a b")}, "resources.gce.service_account: 'a b' is no account"),
            ({"gce": GceResources(scopes=("a b",))}, "resources.gce.scopes: 'a b' is no scope"),
            ({"spot": "only", "gce": GceResources(reservation="x")}, "resources.gce.reservation: holds standard"),
        ],
    )
    def test_before_anybody_is_asked(self, resources: dict[str, Any], said: str) -> None:
        with pytest.raises(UserError) as raised:
            request.check(order(**resources).spec)
        assert said in str(raised.value)

    def test_a_tag_that_does_not_fit(self) -> None:
        with pytest.raises(UserError, match=r"^tags\.project: the value has 66 characters"):
            request.check(order(tagged={"project": "É" * 11}).spec)

    def test_the_orders_here_are_fine(self) -> None:
        for each in ORDERS.values():
            request.check(each.spec)


@pytest.mark.slow
class TestDryRun:
    JOB = """
name: gpt
run: python train.py
nodes: {nodes}
resources: {{provider: gce, gpus: L4:1, spot: true, region: us-central1}}
"""
    # Whatever of Google's were imported would be missing, and whoever is asked does not answer.
    PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(("httpx", "google.auth", "google.cloud", "boto3")))
from stoker.cli import main
main(sys.argv[1:])
"""

    def run(self, folder: Path, *words: str, nodes: int = 1) -> str:
        (folder / "train.py").write_text("")
        (folder / "stoker.yaml").write_text(self.JOB.format(nodes=nodes))
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "user"),
            "STOKER_HOME": str(folder / "home"),
            "GOOGLE_CLOUD_PROJECT": "vision-1",
        }
        words = ("run", "--dry-run", "--store", "gs://bucket/team", *words)
        command = [sys.executable, "-c", self.PROGRAM, *words]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_the_request_is_shown_without_cloud_store_or_credentials(self, tmp_path: Path) -> None:
        told = json.loads(self.run(tmp_path, "--json"))
        assert told["offering"]["machine"] == "g2-standard-4"
        assert told["offering"]["region"] == PLACE
        (insert,) = told["requests"]
        assert (insert["service"], insert["method"]) == ("compute", "POST")
        assert insert["path"].startswith("/compute/v1/projects/vision-1/zones/us-central1-a/instances?requestId=")
        assert insert["body"]["scheduling"]["provisioningModel"] == "SPOT"
        items = {item["key"]: item["value"] for item in insert["body"]["metadata"]["items"]}
        assert items["startup-script"].startswith("#!/bin/bash")

    def test_people_are_not_shown_the_script(self, tmp_path: Path) -> None:
        told = self.run(tmp_path, nodes=2)
        assert "compute POST /compute/v1/projects/vision-1/regions/us-central1/resourcePolicies?requestId=" in told
        assert "compute POST /compute/v1/projects/vision-1/regions/us-central1/instances/bulkInsert?" in told
        assert "kB of startup-script; --json shows it)" in told
        assert "STOKER_BOOT_PYZ" not in told
