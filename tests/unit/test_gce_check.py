"""What a project lacks for a job, by what Google says of it; and that the table of permissions is what is called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google_project import (
    BASE,
    EMAIL,
    INTERNAL,
    LINK,
    NETWORK,
    PLACE,
    PROJECT,
    REGION,
    STORE,
    SUBNET,
    ZONE,
    Google,
    bucket,
    connected,
    limit,
    machine,
)

from stoker.cli import check as cli_check
from stoker.model.errors import (
    AuthDenied,
    NotFound,
    ProviderError,
    QuotaExceeded,
    StoreDenied,
    Transient,
    UserError,
)
from stoker.model.offerings import Offering
from stoker.model.resources import GceResources, Resources
from stoker.model.spec import Spec
from stoker.providers import check_results
from stoker.providers.base import CheckResult
from stoker.providers.gce import check, network, permissions, quotas, verdicts
from stoker.providers.gce.errors import response_error


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_COMPUTE_REGION", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    return Google()


def spec(nodes: int = 1, region: str | None = REGION, **resources: Any) -> Spec:
    asked = {"provider": "gce", "region": region, "machine": ("n2-standard-4",), "spot": "never"} | resources
    return Spec(name="check", run="true", nodes=nodes, resources=Resources(**asked))


def found(google: Google, wanted: Spec | None = None, store: str = STORE) -> dict[str, CheckResult]:
    return {each.name: each for each in check.check_account(connected(google), wanted or spec(), store)}


def test_where_all_is_well_nothing_is_said_to_fail(google: Google) -> None:
    told = found(google)
    assert {name: each.ok for name, each in told.items() if each.ok is not True} == {}
    assert told["credentials"].detail == "jane@example.com"
    assert told["offers"].detail.startswith("1 offerings; first gce/n2-standard-4")
    assert told["quota of N2_CPUS"].detail == "4 of 24 vCPUs, 4 in use"
    assert told["image"].detail == "the default is ubuntu-2404-noble-amd64-v20261101"
    assert set(permissions.names(permissions.GOVERNOR)) < set(told)


def error(status: int, reason: str, message: str) -> ProviderError:
    return response_error("", status, {"error": {"errors": [{"reason": reason}], "message": message}})


OFF = "Compute Engine API has not been used in project 123 before or it is disabled."


def test_what_ends_the_look(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    google.let("GET", BASE, error(403, "accessNotConfigured", OFF))
    told = found(google)
    assert list(told) == ["credentials", "project"]
    assert told["project"].fix == f"gcloud services enable compute.googleapis.com --project {PROJECT}"
    google.answers = [("GET", BASE, NotFound("there is no such project"))]
    assert "gcloud projects list" in found(google)["project"].fix
    google.answers = [("GET", BASE, Transient("Google's credentials cannot be used: expired"))]
    told = found(google)
    assert list(told) == ["credentials"] and told["credentials"].ok is None and "login" in told["credentials"].fix
    google.answers = []
    assert "us-central1" in found(google, spec(region=None))["place"].detail
    google.project = None
    assert "resources.gce.project" in found(google)["place"].detail

    def none() -> str:
        raise Transient("no Google credentials here; `gcloud auth application-default login`, or set …")

    monkeypatch.setattr(google, "identity", none)
    told = found(google)
    assert told["credentials"].detail == "no Google credentials here" and told["credentials"].ok is False


def test_without_the_extra_one_line_says_so(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise UserError("resources.provider: gce needs httpx and google.auth; pip install 'stoker[gcp]'")

    monkeypatch.setattr(check, "check_installed", missing)
    (only,) = check.check_account(connected(google), spec(), STORE)
    assert (only.name, only.ok, only.detail) == ("stoker[gcp]", False, "gce needs httpx and google.auth")
    assert only.fix == "pip install 'stoker[gcp]'"


def test_a_project_that_may_not_be_looked_at_is_no_obstacle(google: Google) -> None:
    google.let("GET", BASE, error(403, "forbidden", "Required 'compute.projects.get' permission"))
    told = found(google)
    assert told["project"].ok is None and told["project"].fix == "allow compute.projects.get to learn it"
    assert told["region"].ok and told["network"].ok and "quota of CPUS_ALL_REGIONS" not in told


def test_a_region_that_is_none(google: Google) -> None:
    google.let("GET", f"{BASE}/regions/{REGION}", NotFound("none"))
    assert found(google)["region"].ok is False


def test_each_permission_that_is_missing_is_named(google: Google) -> None:
    google.denied = {"compute.instances.create", "compute.disks.delete"}
    told = found(google)
    assert {name for name, each in told.items() if each.ok is False} == google.denied
    assert told["compute.instances.create"].detail == "denied: launch machines"
    assert "stoker iam gce" in told["compute.instances.create"].fix


def test_what_is_allowed_on_this_stores_machines_alone_counts(google: Google) -> None:
    google.denied = {"compute.instances.delete"}
    google.granted_on_machine = {"compute.instances.delete"}
    assert found(google)["compute.instances.delete"].ok is False
    google.machines = [machine(google)]
    told = found(google)
    assert told["region"].detail == f"{REGION} answers; 1 machine of this store"
    assert told["compute.instances.delete"].ok is True


def test_without_resource_manager_permissions_are_not_told(google: Google) -> None:
    path = f"/v1/projects/{PROJECT}:testIamPermissions"
    google.let("POST", path, error(403, "SERVICE_DISABLED", "Cloud Resource Manager API is off"))
    told = found(google)
    untold = [each for name, each in told.items() if name in permissions.names(permissions.GOVERNOR)]
    assert {each.ok for each in untold} == {None} and len({(each.detail, each.fix) for each in untold}) == 1
    assert untold[0].fix == f"gcloud services enable cloudresourcemanager.googleapis.com --project {PROJECT}"


def test_the_service_account(google: Google) -> None:
    path = f"/v1/projects/{PROJECT}/serviceAccounts/{EMAIL}"
    google.denied = {permissions.ACT_AS}
    told = found(google)
    assert told["service account"].ok and told[permissions.ACT_AS].ok is False
    assert f"add-iam-policy-binding {EMAIL}" in told[permissions.ACT_AS].fix
    google.let("GET", path, {"email": EMAIL, "disabled": True})
    assert "enable" in found(google)["service account"].fix
    google.answers = [("GET", path, AuthDenied("no"))]
    assert found(google)["service account"].ok is None
    other = found(google, spec(gce=GceResources(service_account="trainer")))["service account"]
    assert other.ok is False and f"there is no trainer@{PROJECT}.iam.gserviceaccount.com" in other.detail
    default = spec(gce=GceResources(service_account="default"))
    assert found(google, default)["service account"].ok is None
    google.let("GET", BASE, {"defaultServiceAccount": EMAIL.replace("stoker-node", "123-compute")})
    assert "123-compute@" in found(google, default)["service account"].detail


def test_thebucket(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(google)["bucket"].detail == "my-bucket in us-central1, with uniform access"
    google.let("GET", "/storage/v1/b/my-bucket", bucket(uniform=False))
    assert "--uniform-bucket-level-access" in found(google)["bucket"].fix
    google.answers = [("GET", "/storage/v1/b/my-bucket", bucket(kept_s=604800))]
    kept = found(google)["bucket"]
    assert kept.ok is None and "7 days" in kept.detail
    # Who may use it may not be allowed to ask.
    google.answers = [("GET", "/storage/v1/b/my-bucket", AuthDenied("no"))]
    assert "bucket" not in found(google)
    assert found(google, store="s3://x")["bucket"].ok is False


# ── Quotas ────────────────────────────────────────────────────────────────────────────────────────────────────────────

N2 = Offering("gce", "n2-standard-4", ZONE, False, region=PLACE, cpus=4)
T4 = Offering("gce", "n1-standard-8+nvidia-tesla-t4:2", ZONE, False, region=PLACE, cpus=8, gpu="T4", gpus=2)
A100 = Offering("gce", "a2-highgpu-1g", ZONE, True, region=PLACE, cpus=12, gpu="A100-40GB", gpus=1)
C4 = Offering("gce", "c4-standard-8", ZONE, False, region=PLACE, cpus=8)
KNOWN = quotas.limits(
    {"quotas": [limit("CPUS", 24), limit("N2_CPUS", 8), limit("NVIDIA_T4_GPUS", 4), limit("NVIDIA_A100_GPUS", 0)]},
    {"quotas": [limit("GPUS_ALL_REGIONS", 1), limit("CPUS_ALL_REGIONS", 12)]},
)


@pytest.mark.parametrize(
    ("offering", "needs"),
    [
        (N2, {"N2_CPUS": 8, "CPUS_ALL_REGIONS": 8}),
        (replace(N2, spot=True), {"CPUS": 8}),
        (T4, {"CPUS": 16, "NVIDIA_T4_GPUS": 4, "GPUS_ALL_REGIONS": 4, "CPUS_ALL_REGIONS": 16}),
        (A100, {"CPUS": 24, "NVIDIA_A100_GPUS": 2, "GPUS_ALL_REGIONS": 2}),
        (C4, {"CPUS_ALL_REGIONS": 16}),
        (replace(N2, cpus=None), {}),
    ],
)
def test_what_two_nodes_take_of_the_limits(offering: Offering, needs: dict[str, int]) -> None:
    assert quotas.needs(offering, 2, KNOWN) == needs


def test_spot_machines_have_limits_of_their_own_where_there_are_any() -> None:
    own = KNOWN | quotas.limits({"quotas": [limit("PREEMPTIBLE_CPUS", 100), limit("PREEMPTIBLE_NVIDIA_A100_GPUS", 8)]})
    assert set(quotas.needs(A100, 1, own)) == {"PREEMPTIBLE_CPUS", "PREEMPTIBLE_NVIDIA_A100_GPUS", "GPUS_ALL_REGIONS"}
    none = KNOWN | quotas.limits({"quotas": [limit("PREEMPTIBLE_CPUS", 0)]})
    assert "CPUS" in quotas.needs(A100, 1, none)


def test_the_least_that_would_do() -> None:
    assert quotas.smallest_needs([N2, T4], 1, KNOWN)["CPUS_ALL_REGIONS"] == 4
    assert quotas.any_fits([T4, N2], 1, KNOWN) and not quotas.any_fits([T4, A100], 1, KNOWN)


def test_a_limit_that_is_too_low_fails_only_where_nothing_else_would_do(google: Google) -> None:
    short = found(google, spec(nodes=8))["quota of N2_CPUS"]
    assert short.ok is False and short.detail == f"24 vCPUs in {REGION}, 4 in use, and this job needs 32"
    assert f"iam-admin/quotas?project={PROJECT}" in short.fix
    # Spot machines would do: they take of another limit.
    google.let("GET", f"{BASE}/regions/{REGION}", {"quotas": [limit("N2_CPUS", 4), limit("PREEMPTIBLE_CPUS", 999)]})
    either = found(google, spec(nodes=8, spot="prefer"))
    assert either["quota of N2_CPUS"].ok is None and either["quota of PREEMPTIBLE_CPUS"].ok
    google.answers = [("GET", f"{BASE}/regions/{REGION}", {"quotas": [limit("N2_CPUS", 24, 22)]})]
    busy = found(google)["quota of N2_CPUS"]
    assert busy.ok is None and busy.fix.startswith("wait for what is in use")


# ── Image and network ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_image(google: Google) -> None:
    told = found(google, spec(image="family:my-images/torch"))["image"]
    assert told.ok is False and "resources.image" in told.fix
    google.let("GET", ".*/my-images/global/images/family/torch", {"name": "torch-7"})
    assert found(google, spec(image="family:my-images/torch"))["image"].detail == "family:my-images/torch is torch-7"
    google.let("GET", f"{BASE}/global/images/mine", {"name": "mine"})
    assert found(google, spec(image="mine"))["image"].ok
    assert found(google, spec(image="ubuntu/7"))["image"].ok is False


def test_the_network(google: Google) -> None:
    google.let("GET", f"{BASE}/global/networks/default", NotFound("none"))
    told = found(google)["network"]
    assert told.ok is False and "gcloud compute networks create default" in told.fix
    named = found(google, spec(gce=GceResources(network="subnet:gpus")))["network"]
    assert named.ok is False and "there is no subnetwork gpus" in named.detail
    assert "resources.gce.network" in named.fix
    google.let("GET", f"{BASE}/regions/{REGION}/subnetworks/gpus", SUBNET | {"name": "gpus"})
    assert found(google, spec(gce=GceResources(network="subnet:gpus")))["network"].ok
    shared = f"projects/host-1/regions/{REGION}/subnetworks/gpus"
    hosts = NETWORK.replace(PROJECT, "host-1")
    google.let("GET", f"/compute/v1/{shared}", SUBNET | {"network": hosts})
    google.let("GET", "/compute/v1/projects/host-1/global/firewalls", {"items": [INTERNAL | {"network": hosts}]})
    told = found(google, spec(gce=GceResources(network=shared), nodes=2))
    assert told["network"].ok and told["between nodes"].ok


@pytest.mark.parametrize(
    ("path", "permission"),
    [
        ("global/networks/default", "compute.networks.get"),
        (f"regions/{REGION}/subnetworks", "compute.subnetworks.list"),
    ],
)
def test_a_network_that_may_not_be_looked_at_is_no_obstacle(google: Google, path: str, permission: str) -> None:
    """A missing permission says nothing against the project in which it is missing."""
    google.let("GET", f"{BASE}/{path}", error(403, "forbidden", f"Required '{permission}' permission for '{PROJECT}'"))
    told = found(google)["network"]
    assert told.ok is None and told.fix == f"allow {permission} to learn it"


def test_a_custom_network_needs_a_subnetworks_name(google: Google) -> None:
    made = {"name": "gpus", "selfLink": f"{LINK}/global/networks/gpus", "autoCreateSubnetworks": False}
    google.let("GET", f"{BASE}/global/networks/gpus", made)
    told = found(google, spec(gce=GceResources(network="gpus")))["network"]
    assert told.ok is False and "custom network" in told.detail and f"it has none in {REGION}" in told.detail


def test_the_placement_policy(google: Google) -> None:
    assert "placement policy" not in found(google)
    assert found(google, spec(gce=GceResources(placement_policy="close")))["placement policy"].ok
    told = found(google, spec(gce=GceResources(placement_policy="clsoe")))["placement policy"]
    assert told.ok is False and "there is no placement policy clsoe in us-central1" in told.detail
    assert told.fix == "leave it out: several nodes get one of their own"
    google.let("GET", f"{BASE}/regions/{REGION}/resourcePolicies/.*", AuthDenied("no"))
    told = found(google, spec(gce=GceResources(placement_policy="close")))["placement policy"]
    assert told.ok is None and told.fix == "allow compute.resourcePolicies.get to learn it"


def test_the_reservation(google: Google) -> None:
    for none in (None, "any", "none"):
        assert "reservation" not in found(google, spec(gce=GceResources(reservation=none)))
    held = spec(gce=GceResources(reservation="block-7"))
    assert found(google, held)["reservation"].detail == f"block-7 ({ZONE})"
    # Also where the job would rather have spot machines, whose requests do not name it.
    told = found(google, spec(spot="prefer", gce=GceResources(reservation="blokc-7")))["reservation"]
    assert told.ok is False and "there is no reservation blokc-7 in vision-1/us-central1" in told.detail
    assert told.fix.startswith("set resources.gce.reservation")
    google.reserved = {"block-7": f"{REGION}-f"}
    told = found(google, held)["reservation"]
    assert told.ok is False and told.fix == f"set resources.zones to [{REGION}-f]"
    google.reserved = {"block-7": "us-east1-b"}
    assert found(google, held)["reservation"].ok is False
    silent = {"items": {f"zones/{ZONE}": {"warning": {"code": "UNREACHABLE"}}}}
    google.let("GET", f"{BASE}/aggregated/reservations", silent)
    assert found(google, held)["reservation"].ok is None


def test_overrides(google: Google) -> None:
    assert "overrides" not in found(google, spec(gce=GceResources(overrides={"minCpuPlatform": "x"})))
    told = found(google, spec(gce=GceResources(overrides={"minCpuPlatfrm": "x"})))["overrides"]
    assert told.ok is False and told.detail.endswith("did you mean minCpuPlatform?")


def test_the_way_to_storage(google: Google) -> None:
    google.let("GET", f"{BASE}/regions/{REGION}/subnetworks", {"items": [SUBNET | {"privateIpGoogleAccess": False}]})
    assert found(google)["way to storage"].ok
    closed = found(google, spec(gce=GceResources(public_ip=False)))["way to storage"]
    assert closed.ok is None and "--enable-private-ip-google-access" in closed.fix


def rule(**about: Any) -> dict[str, Any]:
    return INTERNAL | about


def ports(*given: str) -> list[dict[str, Any]]:
    return [{"IPProtocol": "tcp", "ports": list(given)}]


DENIED = {"allowed": [], "denied": [{"IPProtocol": "all"}]}


@pytest.mark.parametrize(
    ("rules", "open_"),
    [
        ([INTERNAL], "all"),
        ([rule(allowed=[{"IPProtocol": "all"}])], "all"),
        ([rule(allowed=[{"IPProtocol": "tcp"}])], "all"),
        ([rule(allowed=ports("29500"))], "port"),
        ([rule(allowed=ports("22", "29000-30000"))], "port"),
        ([rule(allowed=ports("22"))], "closed"),
        ([rule(allowed=[{"IPProtocol": "udp"}])], "closed"),
        ([rule(sourceRanges=["10.128.0.0/24"])], "closed"),
        ([rule(sourceRanges=["0.0.0.0/0"])], "all"),
        ([rule(sourceTags=["gpu"])], "closed"),
        ([rule(targetTags=["gpu"])], "closed"),
        ([rule(direction="EGRESS")], "closed"),
        ([rule(disabled=True)], "closed"),
        ([INTERNAL, rule(priority=1000, **DENIED)], "closed"),
        ([INTERNAL, rule(priority=65534, **DENIED)], "closed"),
        ([rule(priority=100), rule(priority=1000, **DENIED)], "all"),
        ([INTERNAL, rule(priority=10, allowed=[], denied=ports("25"))], "port"),
        ([], "closed"),
    ],
)
def test_what_nodes_let_in_from_one_another(rules: list[dict[str, Any]], open_: str) -> None:
    assert network.node_traffic(rules, 29500, "10.128.0.0/20") == open_


def test_a_closed_network_fails_for_several_nodes_alone(google: Google) -> None:
    google.let("GET", f"{BASE}/global/firewalls", {"items": [INTERNAL | {"network": f"{NETWORK}-other"}]})
    assert found(google)["between nodes"].ok is None
    several = found(google, spec(nodes=2))["between nodes"]
    assert several.ok is False and "--source-ranges 10.128.0.0/20" in several.fix


# ── Verdicts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_advice_to_check_is_not_given_by_the_check() -> None:
    told = error(403, "forbidden", "Required 'compute.instances.list' permission")
    assert "stoker check gce" in str(told) and "stoker check gce" not in verdicts.error_text(told)
    spent = error(403, "quotaExceeded", "Quota 'CPUS' exceeded")
    assert isinstance(spent, QuotaExceeded) and verdicts.error_text(spent).endswith("(quotaExceeded)")
    assert check_results.check_ok(spent) is False and check_results.check_ok(Transient("x")) is None


# ── What people see ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_permissions_are_one_line_and_each_that_is_missing_another(capsys: pytest.CaptureFixture[str]) -> None:
    fine = [CheckResult(name, True, "allowed") for name in ("compute.instances.create", "iam.serviceAccounts.actAs")]
    missing = CheckResult("compute.disks.delete", False, "denied: remove disks", "add it")
    assert {cli_check._kind(each) for each in (*fine, missing)} == {"may"}
    assert cli_check._kind(CheckResult("stoker[gcp]", False, "")) == "stoker[gcp]"
    cli_check._print_together([*fine, missing])
    assert capsys.readouterr().out.splitlines() == [
        "✓ may: 2 of the 3 that a governor needs",
        "✗ compute.disks.delete: denied: remove disks",
        "    add it",
    ]


def test_what_the_store_lacks_as_well_is_told_once() -> None:
    class Refusing:
        url = STORE

        def create(self, *_: Any) -> bool:
            raise StoreDenied(f"{self.url} refused: no")

        get = create

    class Looking:
        name = "gce"

        def check_account(self, _spec: Any) -> Any:
            return iter([CheckResult("stoker[gcp]", False, "gce needs httpx", "pip install 'stoker[gcp]'")])

    told = {each.name: each for each in cli_check._findings(Refusing(), Looking(), ())}  # type: ignore[arg-type]
    assert told["store"].ok is None and told["store"].detail == f"{STORE} cannot be tried without stoker[gcp]"
