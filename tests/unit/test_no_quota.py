"""GPUs of which the account may have none are refused before anything is written; what is not sure is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from google_project import BASE, PLACE, PROJECT, REGION, STORE, Google, connected, limit

from stoker.model.errors import AuthDenied, QuotaExceeded, UserError
from stoker.model.offerings import Offering, Reservation
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.base import LaunchOrder
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.ec2.quotas import needed
from stoker.providers.gce.errors import response_error
from stoker.providers.registry import Context
from stoker.store.base import open_store
from stoker.submit import prepare

SPOT = Offering("gce", "a2-highgpu-1g", f"{REGION}-a", True, region=PLACE, cpus=12, gpu="A100-40GB", gpus=1)
FULL = replace(SPOT, spot=False)
LARGE = replace(FULL, machine="a2-ultragpu-1g", gpu="A100-80GB")
PAGE = f"https://console.cloud.google.com/iam-admin/quotas?project={PROJECT}"


def project(*limits: tuple[str, float], everywhere: float = 8) -> Google:
    google = Google()
    google.let("GET", BASE, {"quotas": [limit("GPUS_ALL_REGIONS", everywhere)]})
    google.let("GET", f"{BASE}/regions/{REGION}", {"quotas": [limit(*each) for each in limits]})
    return google


def test_a_quota_of_zero_for_every_offering_is_refused_with_the_page_to_ask_at() -> None:
    google = project(("NVIDIA_A100_GPUS", 0), ("PREEMPTIBLE_NVIDIA_A100_GPUS", 0))
    with pytest.raises(UserError) as raised:
        connected(google).check_quota((SPOT, FULL), 1)
    assert str(raised.value) == (
        f"{PROJECT} may have no A100-40GB: its quota NVIDIA_A100_GPUS in us-central1 is 0; ask for more at {PAGE}"
    )
    assert google.called == ["compute.projects.get", "compute.regions.get"]
    nowhere = project(("NVIDIA_A100_GPUS", 8), everywhere=0)
    with pytest.raises(UserError, match="its quota GPUS_ALL_REGIONS is 0"):
        connected(nowhere).check_quota((SPOT, FULL), 1)


@pytest.mark.parametrize(
    ("offerings", "limits"),
    [
        # Spot has quota of its own, or the other machine has.
        ((SPOT, FULL), (("NVIDIA_A100_GPUS", 0), ("PREEMPTIBLE_NVIDIA_A100_GPUS", 1))),
        ((FULL, LARGE), (("NVIDIA_A100_GPUS", 0), ("NVIDIA_A100_80GB_GPUS", 1))),
        # Too few are told by the launch: somebody may be about to get more.
        ((FULL,), (("NVIDIA_A100_GPUS", 0.5),)),
        # Not told at all.
        ((FULL,), ()),
    ],
)
def test_what_may_be_had_is_tried(offerings: tuple[Offering, ...], limits: Any) -> None:
    connected(project(*limits)).check_quota(offerings, 1)


def test_machines_without_gpus_cost_no_call_and_whoever_may_not_look_is_not_in_the_way() -> None:
    google = Google()
    connected(google).check_quota((Offering("gce", "n2-standard-2", "z", True, region=PLACE, cpus=2),), 1)
    assert google.called == []
    google.let("GET", BASE, AuthDenied("no"))
    connected(google).check_quota((FULL,), 1)


def test_a_launch_that_meets_a_quota_names_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    google = Google()
    told = {"error": {"errors": [{"reason": "quotaExceeded"}], "message": "Quota 'CPUS' exceeded."}}
    google.let("POST", ".*/instances", response_error("n2-standard-4", 403, told))
    provider = connected(google)
    spec = Spec(name="gpt", run="true", resources=Resources(provider="gce"))
    offering = Offering("gce", "n2-standard-4", f"{REGION}-a", False, region=PLACE, cpus=4)
    with pytest.raises(QuotaExceeded) as raised:
        provider.launch(provider.build(LaunchOrder("gpt-ab12", "gpt", 2, 1, 1, STORE, spec, "jane", offering)))
    assert str(raised.value) == f"n2-standard-4: Quota 'CPUS' exceeded. (quotaExceeded); ask for more at {PAGE}"


# ── EC2 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

P4 = Offering("ec2", "p4d.24xlarge", "us-east-1a", False, region="us-east-1", cpus=96, gpu="A100-40GB", gpus=8)


class Quotas:
    """Service Quotas. What is no number is refused with that code."""

    def __init__(self, **values: Any) -> None:
        self.values = values
        self.asked: list[str] = []

    def get_service_quota(self, QuotaCode: str, **_: Any) -> Any:
        self.asked.append(QuotaCode)
        value = self.values[QuotaCode.replace("-", "_")]
        if isinstance(value, str):
            raise ClientError({"Error": {"Code": value, "Message": "no"}}, "GetServiceQuota")
        return {"Quota": {"Value": float(value)}}


def limits_of(monkeypatch: pytest.MonkeyPatch, told: Quotas, *offerings: Offering) -> list[str]:
    provider = Ec2Provider(Context(store="s3://b/t"))
    monkeypatch.setattr(provider.clients, "get", lambda *_, **__: told)
    provider.check_quota(offerings, 1)
    return told.asked


def test_on_ec2_too(monkeypatch: pytest.MonkeyPatch) -> None:
    both = (P4, replace(P4, spot=True))
    with pytest.raises(UserError) as raised:
        limits_of(monkeypatch, Quotas(L_417A185B=0, L_7212CCBC=0), *both)
    line = str(raised.value)
    assert "quota of on-demand P machines (L-417A185B) is 0 and spot P machines up to P4 (L-7212CCBC) is 0" in line
    assert "--region us-east-1 --service-code ec2 --quota-code L-417A185B --desired-value 96" in line
    assert limits_of(monkeypatch, Quotas(L_417A185B=96), *both) == ["L-417A185B"]
    assert len(limits_of(monkeypatch, Quotas(L_417A185B=0, L_7212CCBC=96), *both)) == 2
    limits_of(monkeypatch, Quotas(L_417A185B="AccessDeniedException"), *both)
    assert limits_of(monkeypatch, Quotas(), replace(P4, machine="c7i.large", gpu=None, gpus=0)) == []


def test_a_reservation_needs_no_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """An account that bought a capacity block mostly has a quota of 0 for such machines on demand. The block is what
    the account may have."""
    reserved = replace(P4, reservation=Reservation("cr-1"))
    assert limits_of(monkeypatch, Quotas(L_417A185B=0, L_7212CCBC=0), reserved, replace(P4, spot=True)) == []
    assert needed([reserved], 2) == {} and needed([P4], 2) == {"L-417A185B": 192}


# ── Submitting ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Forbidding:
    name = "local"

    def __init__(self) -> None:
        self.capabilities = registry.capabilities("local")

    def offerings(self, _: Resources) -> tuple[Offering, ...]:
        return (replace(FULL, provider="local"),)

    def check_quota(self, offerings: Any, nodes: int) -> None:
        assert (len(offerings), nodes) == (1, 2)
        raise UserError("none of these")


@pytest.mark.parametrize("offline", [False, True])
def test_it_is_said_before_anything_is_written_and_a_dry_run_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    monkeypatch.setattr(prepare, "connect", lambda *_, **__: Forbidding())
    (tmp_path / "code").mkdir()
    spec = Spec(name="job", run="true", nodes=2, resources=Resources())
    store = open_store(str(tmp_path / "store"))
    if offline:
        with prepare.prepare(spec, store, folder=tmp_path / "code", offline=True):
            return
    with pytest.raises(UserError, match="none of these"):
        prepare.prepare(spec, store, folder=tmp_path / "code")
    assert not (tmp_path / "store").exists()
