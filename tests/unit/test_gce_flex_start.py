"""Flex-start on Compute Engine: what is offered, what is asked for, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.model.errors import InvalidRequest, NoCapacity, NoSuchResource, NotFound, UserError
from stoker.model.offerings import Offering
from stoker.model.resources import GceResources, Gpus, Resources
from stoker.model.spec import Limits, Spec
from stoker.providers.base import HttpRequest, LaunchOrder
from stoker.providers.gce import flex_group, flex_start, launch, names, offers, owners, quotas, request
from stoker.providers.gce.capabilities import CAPABILITIES
from stoker.providers.gce.client import AggregatedList
from stoker.providers.gce.instances import StoreInstances
from stoker.providers.gce.places import ProjectRegion

PLACE = ProjectRegion("vision-1", "us-central1")
FLEX = GceResources(flex_start=True)
H100 = Offering(
    "gce", "a3-highgpu-1g", "us-central1-a", False, str(PLACE), 11, 11, "test", 26, 234 << 30, "H100", 1, queued=True
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))


def spec(limits: Limits | None = None, nodes: int = 1, **resources: Any) -> Spec:
    asked = Resources(provider="gce", **{"gce": FLEX, **resources})
    return Spec(name="gpt", run="x", nodes=nodes, resources=asked, limits=limits or Limits())


def order(limits: Limits | None = None, max_life_s: float | None = None, **resources: Any) -> LaunchOrder:
    return LaunchOrder(
        job="gpt-7f3k",
        name="gpt",
        claim=4,
        nodes=1,
        attempt=1,
        store="gs://bucket/team",
        spec=spec(limits, **resources),
        submitter="jane@laptop",
        offering=H100,
        max_life_s=max_life_s,
        bundles={"cp311-x86_64": "d" * 64},
    )


class TestOffers:
    def test_one_gpu_is_to_be_had_without_seven_idle_ones(self) -> None:
        """a3-highgpu-1g is sold as spot and by flex-start alone: https://cloud.google.com/compute/docs/gpus#h100-gpus"""
        found = offers.offline(spec(gpus=Gpus("H100", 1)).resources, PLACE)
        usable = [each for each in found if not each.spot]
        assert usable and {(each.machine, each.gpus, each.kind) for each in usable} == {
            ("a3-highgpu-1g", 1, "flex-start")
        }
        assert not offers.smaller_machines(spec(gpus=Gpus("H100", 1)).resources)
        (line,) = offers.smaller_machines(Resources(provider="gce", gpus=Gpus("H100", 1)))
        assert line == (
            "resources.gpus: a3-highgpu-1g has 1 × H100; it is sold with resources.spot: prefer or "
            "resources.gce.flex_start: true"
        )

    def test_its_price_is_that_of_on_demand_at_most(self) -> None:
        """So that a limit on the cost holds: flex-start is discounted, by an amount that no packaged table has."""
        asked = spec(machine=("a2-highgpu-1g",)).resources
        first, usual = (
            next(each for each in offers.offline(one, PLACE) if not each.spot)
            for one in (asked, replace(asked, gce=None))
        )
        assert (first.kind, usual.kind) == ("flex-start", "on-demand")
        assert first.price == usual.price and first.price_source.endswith(", on demand")
        # The lack of one says nothing about the other.
        assert first.key != usual.key

    def test_spot_first_then_the_queue(self) -> None:
        found = offers.offline(spec(gpus=Gpus("A100", 1), spot="prefer").resources, PLACE)
        assert {each.kind for each in found} == {"spot", "flex-start"}

    @pytest.mark.parametrize("machine", ["n2-standard-8", "n1-standard-8+nvidia-tesla-t4:1", "g4-standard-48"])
    def test_what_is_not_sold_so_is_said_by_its_name(self, machine: str) -> None:
        """ "all accelerator-optimized machine types (except A4X and G4) and H4D machine types"
        https://cloud.google.com/compute/docs/instances/about-flex-start-vms"""
        resources = spec(machine=(machine,)).resources
        assert not [each for each in offers.offline(resources, PLACE) if not each.spot]
        assert offers.why_none(resources).startswith(f"resources.gce.flex_start: {machine} is not sold by flex-start")


class TestTheRequest:
    def test_it_is_what_the_documentation_shows(self) -> None:
        """https://cloud.google.com/compute/docs/instances/create-flex-start-vm, where the discovery document has
        `requestValidForDuration` in `params`."""
        (asked,) = request.build(order(max_life_s=14400.0))
        assert asked.body["scheduling"] == {
            "automaticRestart": False,
            "provisioningModel": "FLEX_START",
            "onHostMaintenance": "TERMINATE",
            "maxRunDuration": {"seconds": "14400"},
            "instanceTerminationAction": "DELETE",
        }
        assert asked.body["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
        assert asked.body["params"] == {"requestValidForDuration": {"seconds": "600"}}

    @pytest.mark.parametrize(("life_s", "seconds"), [(None, 604800), (1e9, 604800), (60.0, 600), (3600.0, 3600)])
    def test_it_lives_between_ten_minutes_and_seven_days(self, life_s: float | None, seconds: int) -> None:
        """ "The value must be between 10 minutes and seven days." The machine itself knows its end, too."""
        (asked,) = request.build(order(max_life_s=life_s))
        assert asked.body["scheduling"]["maxRunDuration"] == {"seconds": str(seconds)}
        script = next(each["value"] for each in asked.body["metadata"]["items"] if each["key"] == "startup-script")
        assert f"\nlife={seconds}\n" in script

    @pytest.mark.parametrize(
        ("zones", "max_wait_s", "seconds"),
        [((), None, 600), (("us-central1-a",), None, 3000), (("us-central1-a",), 1200.0, 1200), ((), 5.0, 90)],
    )
    def test_it_waits_within_max_wait_and_takes_turns_between_zones(
        self, zones: tuple[str, ...], max_wait_s: float | None, seconds: int
    ) -> None:
        """ "must be at least 90 and less or equal to 7200 seconds" """
        limits = Limits(max_wait_s=max_wait_s)
        assert flex_start.queue_s(order(limits, zones=zones)) == seconds
        assert 90 <= seconds <= 7200
        # A repeated request has to be recognised for as long as it waits.
        assert seconds < CAPABILITIES.token_lifetime_s

    def test_its_quota_is_that_of_spot_machines(self) -> None:
        """ "Flex-start: […] Consumes preemptible quota."
        https://cloud.google.com/ai-hypercomputer/docs/consumption-models"""
        known = quotas.limits(
            {"quotas": [{"metric": name, "limit": 8} for name in ("NVIDIA_H100_GPUS", "PREEMPTIBLE_NVIDIA_H100_GPUS")]}
        )
        assert quotas.needs(H100, 1, known) == {"PREEMPTIBLE_NVIDIA_H100_GPUS": 1}
        assert quotas.needs(replace(H100, queued=False), 1, known) == {"NVIDIA_H100_GPUS": 1}


class TestSeveral:
    """https://cloud.google.com/compute/docs/instance-groups/create-resize-requests-mig, and for the names of machines
    `--instances` of `gcloud beta compute instance-groups managed resize-requests create`."""

    def asked(self, **resources: Any) -> tuple[HttpRequest, ...]:
        wanted = order(max_life_s=14400.0, **resources)
        return request.build(replace(wanted, nodes=2, spec=replace(wanted.spec, nodes=2)))

    def test_the_requests_are_what_the_discovery_document_has(self) -> None:
        pytest.importorskip("googleapiclient")
        from tests.support.gce import check_request

        for each in self.asked():
            assert check_request(each.method, each.path, body=each.body) == []
        where = [each.path.partition("?")[0].removeprefix("/compute/v1/projects/vision-1/") for each in self.asked()]
        name = names.base(order())
        assert where == [
            "regions/us-central1/instanceTemplates",
            "zones/us-central1-a/instanceGroupManagers",
            f"zones/us-central1-a/instanceGroupManagers/{name}/resizeRequests",
        ]

    def test_the_group_is_empty_and_makes_nothing_by_itself(self) -> None:
        """ "targetSize": 0, "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"}"""
        template, group, resize = self.asked()
        assert group.body["targetSize"] == 0
        assert group.body["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}
        assert group.body["updatePolicy"] == {"type": "OPPORTUNISTIC"}
        link = f"projects/vision-1/regions/us-central1/instanceTemplates/{template.body['name']}"
        assert group.body["versions"] == [{"instanceTemplate": link}]
        # The machines have Stoker's names, by which a node knows its rank.
        assert resize.body["instances"] == [{"name": f"{names.base(order())}-{rank}"} for rank in range(2)]
        assert "resizeBy" not in resize.body
        assert {each.body["name"] for each in self.asked()} == {names.base(order())}
        assert len({each.path.partition("?")[2] for each in self.asked()}) == 3

    def test_the_template_is_of_flex_start_machines_and_names_no_placement(self) -> None:
        template, _, resize = self.asked()
        properties = template.body["properties"]
        assert properties["scheduling"]["provisioningModel"] == "FLEX_START"
        assert properties["scheduling"]["maxRunDuration"] == {"seconds": "14400"}
        assert properties["scheduling"]["instanceTerminationAction"] == "DELETE"
        assert properties["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
        assert resize.body["requestedRunDuration"] == {"seconds": "14400"}
        assert "resourcePolicies" not in properties and "params" not in properties
        # Bare names: a template has no zone.
        assert properties["machineType"] == "a3-highgpu-1g"

    def test_what_the_job_names_is_looked_up_before_the_submission(self) -> None:
        from google_project import Google as Project

        from stoker.providers.gce import preflight

        project: Any = Project()
        project.let("GET", ".*/regions/us-central1/subnetworks/gpus", NotFound("gone"))
        with pytest.raises(NoSuchResource, match=r"resources\.gce\.network"):
            preflight.check_requests(project, self.asked(gce=replace(FLEX, network="subnet:gpus")))

    @pytest.mark.parametrize(
        "missing", ["regions/us-central1/instanceTemplates", "zones/us-central1-a/instanceGroupManagers"]
    )
    def test_its_own_template_or_group_that_google_does_not_see_yet_is_no_bad_request(self, missing: str) -> None:
        _, group, resize = self.asked()
        sent = group if "Templates" in missing else resize
        self.refused(sent, f"projects/vision-1/{missing}/{names.base(order())}", NoCapacity)
        self.refused(sent, f"projects/vision-1/{missing}/another", InvalidRequest)

    def test_what_a_governor_with_another_policy_began_is_finished(self) -> None:
        """The length of a life depends on the policy: under the same id it makes a different request."""
        from google_project import Google as Project

        project: Any = Project()
        used = InvalidRequest(
            "a3: Invalid value for field 'requestId': '4711'. It was used for another request. (invalid)"
        )
        project.let("POST", ".*/instanceTemplates", used)
        project.let("POST", ".*", {"status": "DONE"})
        with pytest.raises(NoCapacity, match="was withdrawn"):
            launch.launch(project, StoreInstances(project, "store"), self.asked())
        assert "compute.instanceGroupManagerResizeRequests.insert" in project.called

    def refused(self, sent: HttpRequest, missing: str, told: type[Exception]) -> None:
        from google_project import Google as Project

        project: Any = Project()
        project.let(
            "POST", sent.path.partition("?")[0], NotFound(f"a3: The resource '{missing}' was not found (notFound)")
        )
        project.let("POST", ".*", {"status": "DONE"})
        with pytest.raises(told, match="was not found"):
            launch.launch(project, StoreInstances(project, "store"), self.asked())

    def test_a_request_knows_its_turn_and_its_owner(self) -> None:
        for zones, seconds in (((), 600), (("us-central1-a",), 3000)):
            template, group, resize = self.asked(zones=zones)
            assert flex_group.turn_s(resize) == seconds
            found = {owners.from_description(each.body["description"]) for each in (template, group, resize)}
            assert found == {owners.Owner.of_order(order())}
        with pytest.raises(InvalidRequest, match="not a request of the gce provider"):
            flex_group.turn_s(replace(resize, body={}))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"spot": "only"}, "resources.gce.flex_start: is instead of on-demand machines"),
        ({"gce": replace(FLEX, reservation="block-7")}, "resources.gce.flex_start: flex-start machines use no res"),
        (
            {"nodes": 2, "gce": replace(FLEX, placement_policy="close")},
            "resources.gce.flex_start: Google places flex-start machines itself; leave out resources.gce.placement_po",
        ),
        ({"nodes": 1001}, "resources.gce.flex_start: one request is for 1,000 machines at most"),
        (
            {"gce": replace(FLEX, overrides={"params": {"requestValidForDuration": {"seconds": "7200"}}})},
            "resources.gce.overrides.params.requestValidForDuration: is Stoker's own",
        ),
    ],
)
def test_contradictions_are_refused_before_anything_is_sent(wrong: dict[str, Any], told: str) -> None:
    request.check(spec())
    with pytest.raises(UserError) as raised:
        request.check(spec(**wrong))
    assert str(raised.value).startswith(told)


def test_the_plan_says_what_is_different() -> None:
    assert flex_start.remarks(spec(gce=None)) == ()
    bound, endless = flex_start.remarks(spec())
    assert "runs for 7 d at most" in bound and "limits.max_wait" in endless
    (bound, longer) = flex_start.remarks(spec(Limits(max_wait_s=3600.0, max_runtime_s=10 * 86400.0)))
    assert "goes on from its checkpoint on another machine" in longer


class Google:
    """Compute Engine after a request in its queue has expired: the insert has ended, and the machine is not there.

    "Otherwise, you encounter an error and Compute Engine deletes the Flex-start VM."
    https://cloud.google.com/compute/docs/instances/create-flex-start-vm
    """

    def __init__(self, insert: HttpRequest, error: Mapping[str, Any] | None, left: str) -> None:
        self._target = f"{insert.path.partition('?')[0]}/{insert.body['name']}"
        self._insert = self._operation("insert") | (
            {"error": {"errors": [error]}, "httpErrorStatusCode": 400} if error else {}
        )
        self._left = (("us-central1-a", self._operation(left)),) if left else ()

    def _operation(self, kind: str) -> dict[str, Any]:
        link = f"https://compute.googleapis.com{self._target}"
        return {"operationType": kind, "status": "DONE", "targetId": "4711", "targetLink": link}

    def send(self, *_: object, **__: object) -> Mapping[str, Any]:
        return self._insert

    def get(self, path: str) -> Mapping[str, Any]:
        raise NotFound(f"{path} is not there")

    def scoped(self, _: str, kind: str, __: object) -> AggregatedList:
        return AggregatedList(self._left if kind == "operations" else (), frozenset())


def launched(error: Mapping[str, Any] | None, left: str = "", queued: bool = True) -> None:
    wanted = order(gce=FLEX if queued else None)
    (insert,) = request.build(replace(wanted, offering=replace(H100, queued=queued)))
    google: Any = Google(insert, error, left)
    launch.launch(google, StoreInstances(google, "store"), (insert,))


class TestExpired:
    @pytest.mark.parametrize("left", ["", "delete", "compute.instances.deferredDelete"])
    def test_it_is_no_lost_machine_whatever_record_it_leaves(self, left: str) -> None:
        with pytest.raises(NoCapacity, match="flex-start found no machine in time"):
            launched(None, left)

    @pytest.mark.parametrize(
        "error",
        [
            {"code": "REQUEST_EXPIRED", "message": "The request was not fulfilled in its valid duration."},
            {"code": "RESOURCE_NOT_FOUND", "message": "The resource 'projects/p/zones/z/instances/i' was not found"},
        ],
    )
    def test_its_failure_in_the_queue_is_no_bad_request(self, error: Mapping[str, Any]) -> None:
        with pytest.raises(NoCapacity):
            launched(error)
        with pytest.raises(InvalidRequest):
            launched(error, queued=False)

    def test_a_machine_type_that_the_zone_does_not_have_is_not_waited_for(self) -> None:
        told = "The resource 'projects/p/zones/z/machineTypes/a3-highgpu-1g' was not found"
        with pytest.raises(InvalidRequest, match=r"resources\.machine: The resource"):
            launched({"code": "RESOURCE_NOT_FOUND", "message": told})

    def test_a_resource_that_does_not_exist_is_said_by_its_field(self) -> None:
        error = {"code": "RESOURCE_NOT_FOUND", "message": "The resource 'projects/p/global/images/x' was not found"}
        with pytest.raises(NoSuchResource, match=r"resources\.image"):
            launched(error)
