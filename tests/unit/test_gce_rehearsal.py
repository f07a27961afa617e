"""What a job names is looked at before it is submitted: one line for what is not there, and nothing else in the way."""

from __future__ import annotations

from typing import Any

import pytest
from google_project import BASE, EMAIL, LINK, NETWORK, PLACE, PROJECT, REGION, STORE, ZONE, Google, connected

from stoker.model.errors import AuthDenied, NoSuchResource, NotFound, ProviderError, Throttled, Transient
from stoker.model.offerings import Offering
from stoker.model.resources import GceResources, Resources
from stoker.model.spec import Spec
from stoker.providers.base import LaunchOrder, SupportsPreflight
from stoker.providers.gce import identity, images, permissions
from stoker.providers.gce.errors import response_error


def rehearse(google: Google, nodes: int = 1, image: str | None = None, **gce: Any) -> list[str]:
    """What was asked."""
    provider = connected(google)
    resources = Resources(provider="gce", image=image, gce=GceResources(**gce))
    spec = Spec(name="gpt", run="true", nodes=nodes, resources=resources)
    offering = Offering("gce", "c2-standard-4", ZONE, False, region=PLACE, cpus=4)
    order = LaunchOrder("gpt-ab12", "gpt", 2, nodes, 1, STORE, spec, "jane", offering)
    google.called.clear()
    provider.preflight(provider.build(order))
    return google.called


def test_a_subnetwork_of_another_region_is_not_this_ones_namesake(google: Google) -> None:
    link = "projects/vision-1/regions/europe-west4/subnetworks/gpus"
    assert "gpus is a subnetwork in europe-west4, the machines will be in us-central1" in refusal(google, network=link)
    rehearse(google, network=f"projects/vision-1/regions/{REGION}/subnetworks/gpus")


def test_what_several_launches_name_is_looked_at_once(google: Google) -> None:
    provider = connected(google)
    resources = Resources(provider="gce", spot="prefer", gce=GceResources(reservation="blokc-7"))
    spec = Spec(name="gpt", run="true", resources=resources)
    launches = []
    for spot in (True, False):
        offering = Offering("gce", "c2-standard-4", ZONE, spot, region=PLACE, cpus=4)
        launches.append(provider.build(LaunchOrder("gpt-ab12", "gpt", 2, 1, 1, STORE, spec, "jane", offering)))
    google.called.clear()
    provider.preflight(launches[0])
    assert google.called == ["compute.networks.get"], "spot machines consume no reservation"
    google.called.clear()
    with pytest.raises(NoSuchResource, match="there is no reservation blokc-7"):
        provider.preflight(*launches)
    assert google.called.count("compute.networks.get") == 1


def refusal(google: Google, **asked: Any) -> str:
    with pytest.raises(NoSuchResource) as raised:
        rehearse(google, **asked)
    (line,) = str(raised.value).splitlines()
    return line


WHOLE: dict[str, Any] = {
    "image": "vision-1/ours",
    "network": "subnet:gpus",
    "placement_policy": "close",
    "reservation": "block-7",
    "service_account": "trainer",
}
TRAINER = EMAIL.replace("stoker-node", "trainer")


@pytest.fixture
def google() -> Google:
    """A project that has all of WHOLE."""
    google = Google()
    google.let("GET", f"{BASE}/global/images/ours", {"name": "ours"})
    google.let("GET", f"{BASE}/regions/{REGION}/subnetworks/gpus", {"name": "gpus"})
    google.let("GET", f"/v1/projects/{PROJECT}/serviceAccounts/{TRAINER}", {"email": TRAINER})
    return google


def test_it_is_a_provider_that_rehearses(google: Google) -> None:
    assert isinstance(connected(google), SupportsPreflight)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("image", [None, "debian/12", "dlvm/pytorch-2.7", "family:debian-cloud/debian-13"])
def test_a_job_that_names_nothing_costs_one_call(google: Google, image: str | None, nodes: int) -> None:
    """Nor is the policy asked about that several nodes get: it is not made yet."""
    assert rehearse(google, nodes, image) == ["compute.networks.get"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_each_name_is_asked_about_once(google: Google, nodes: int) -> None:
    called = {*rehearse(google, nodes, **WHOLE)}
    # A reservation takes two: it does not say itself whether it is of calendar mode.
    assert len(google.called) == len(called) == 5
    google.let("GET", f"{BASE}/global/images/family/torch", {"name": "torch-7"})
    assert {*called, *rehearse(google, image="family:vision-1/torch")} == permissions.methods(permissions.PREFLIGHT)


NETWORK_FIX = "set resources.gce.network to one that is there, or leave it out for the default one"
IMAGE_FIX = "set resources.image to one that is there, or to an alias such as ubuntu/24.04"
POLICY_FIX = "leave it out: several nodes get one of their own"
LINKED = f"projects/vision-1/regions/{REGION}/resourcePolicies/clsoe"


@pytest.mark.parametrize(
    ("wrong", "told", "fix"),
    [
        ({"network": "subnet:gpsu"}, "gce.network: there is no subnetwork gpsu in us-central1", NETWORK_FIX),
        ({"network": "training"}, "gce.network: there is no network training in vision-1", NETWORK_FIX),
        ({"image": "family:deb/deb-99"}, "image: there is no image family deb-99 in deb", IMAGE_FIX),
        ({"image": "uors"}, "image: there is no image uors in vision-1", IMAGE_FIX),
        (
            {"placement_policy": "clsoe"},
            "gce.placement_policy: there is no placement policy clsoe in us-central1",
            POLICY_FIX,
        ),
        (
            {"placement_policy": LINKED},
            "gce.placement_policy: there is no placement policy clsoe in us-central1",
            POLICY_FIX,
        ),
        (
            {"reservation": "block-8"},
            "gce.reservation: there is no reservation block-8 in vision-1/us-central1",
            "set resources.gce.reservation to one of this project and zone, or leave it out",
        ),
        (
            {"service_account": "trianer"},
            "gce.service_account: there is no trianer@vision-1.iam.gserviceaccount.com",
            "set resources.gce.service_account to one that is there; `stoker iam gce` describes one",
        ),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_what_is_not_there(google: Google, wrong: dict[str, Any], told: str, fix: str, nodes: int) -> None:
    assert refusal(google, nodes=nodes, **WHOLE | wrong) == f"resources.{told}; {fix}"


def test_a_project_without_the_default_network(google: Google) -> None:
    google.let("GET", f"{BASE}/global/networks/default", NotFound("none"))
    assert refusal(google) == (
        "resources.gce.network: there is no network default in vision-1; gcloud compute networks create default "
        "--project vision-1, or set resources.gce.network to one that is there"
    )


def test_a_custom_network_needs_a_subnetworks_name(google: Google) -> None:
    """The insert would be refused: only of networks with subnetworks of Google's making does it choose one."""
    links = [f"{LINK}/regions/{region}/subnetworks/{name}" for region, name in ((REGION, "a"), ("us-east1", "b"))]
    made = {"name": "gpus", "selfLink": NETWORK, "autoCreateSubnetworks": False, "subnetworks": links}
    google.let("GET", f"{BASE}/global/networks/gpus", made)
    told = "resources.gce.network: gpus is a custom network, of which a subnetwork is needed"
    assert refusal(google, network="gpus") == f"{told}; in us-central1 it has subnet:a"
    google.let("GET", "/compute/v1/projects/host-1/global/networks/shared", made)
    assert refusal(google, network="projects/host-1/global/networks/shared").endswith("it has subnet:a")
    made["subnetworks"] = [link.replace(PROJECT, "host-1") for link in links]
    line = refusal(google, network="projects/host-1/global/networks/shared")
    assert line.endswith(f"it has projects/host-1/regions/{REGION}/subnetworks/a")
    made["autoCreateSubnetworks"] = True
    assert rehearse(google, network="gpus") == ["compute.networks.get"]


def test_anothers_reservation_is_looked_at_there(google: Google) -> None:
    theirs = {"items": {f"zones/{ZONE}": {"reservations": [{"name": "held"}]}}}
    google.let("GET", "/compute/v1/projects/host-1/aggregated/reservations", theirs)
    rehearse(google, reservation="projects/host-1/reservations/held")
    assert "in host-1/us-central1" in refusal(google, reservation="projects/host-1/reservations/block-7")


@pytest.mark.parametrize("reservation", ["any", "none"])
def test_what_is_no_name_is_not_asked_about(google: Google, reservation: str) -> None:
    asked = rehearse(google, reservation=reservation, service_account="default")
    assert asked == ["compute.networks.get"]


def test_overrides_are_looked_at_too(google: Google) -> None:
    overrides: dict[str, Any] = {
        "networkInterfaces": [{"network": "global/networks/default"}, {"network": "global/networks/other"}],
        "resourcePolicies": [f"{LINK}/regions/{REGION}/resourcePolicies/close"],
    }
    assert "there is no network other" in refusal(google, overrides=overrides)
    overrides["networkInterfaces"] = [{"network": "global/networks/default"}, {"networkAttachment": "x"}]
    assert rehearse(google, overrides=overrides) == ["compute.networks.get", "compute.resourcePolicies.get"]
    overrides["resourcePolicies"] = ["far"]
    assert "there is no placement policy far" in refusal(google, overrides=overrides)


@pytest.mark.parametrize("kind", [AuthDenied, Transient, Throttled])
def test_what_cannot_be_asked_is_left_to_the_launch(google: Google, kind: type[ProviderError]) -> None:
    google.answers.insert(0, ("GET", ".*", kind("not now, or not you")))
    assert len(rehearse(google, **WHOLE)) == 4
    # The others are asked all the same.
    google.answers[0] = ("GET", ".*/subnetworks/.*", kind("not now, or not you"))
    assert "placement policy clsoe" in refusal(google, **WHOLE | {"placement_policy": "clsoe"})


def test_a_zone_that_gives_no_answer_may_have_the_reservation(google: Google) -> None:
    silent = {"items": {f"zones/{ZONE}": {"warning": {"code": "UNREACHABLE"}}}}
    google.let("GET", f"{BASE}/aggregated/reservations", silent)
    rehearse(google, reservation="block-7")


def test_a_name_that_nothing_can_have(google: Google) -> None:
    told = response_error("resources.gce.placement_policy", 400, {"error": {"message": "Invalid value for field 'x'"}})
    google.let("GET", f"{BASE}/regions/{REGION}/resourcePolicies/x", told)
    assert "resources.gce.placement_policy: Invalid value" in refusal(google, placement_policy="x")


# ── What is meant ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("email", "project"),
    [
        (EMAIL, PROJECT),
        ("a@vision.example.com.iam.gserviceaccount.com", "example.com:vision"),
        ("4242-compute@developer.gserviceaccount.com", "4242"),
        ("vision-1@appspot.gserviceaccount.com", "-"),
        ("jane@example.com", "-"),
    ],
)
def test_an_account_is_looked_for_in_its_project(email: str, project: str) -> None:
    """Where nobody names the project, IAM says 403 of an account that is not there."""
    assert identity.path(email) == f"/v1/projects/{project}/serviceAccounts/{email}"


def test_images_that_an_alias_stands_for() -> None:
    for alias in images.ALIASES:
        if "VERSION" not in alias:
            assert images.is_known(images.find(alias, "x86_64").source), alias
    assert images.is_known(images.find("debian/12", "arm64").source)
    for other in ("family:debian-cloud/debian-99", "family:vision-1/debian-12", "debian-12", "debian-cloud/debian-12"):
        assert not images.is_known(images.find(other, "x86_64").source), other
