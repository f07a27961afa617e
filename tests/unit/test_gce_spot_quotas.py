"""Limits for spot on Compute Engine that a project was never given: what that means is told, with what to do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from stoker.model.offerings import Offering
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers.base import CheckResult
from stoker.providers.gce import check, quotas
from stoker.providers.gce.places import ProjectRegion

PLACE = ProjectRegion("vision-1", "us-central1")
N2 = Offering("gce", "n2-standard-4", "us-central1-a", True, region=str(PLACE), cpus=4)
H100 = Offering("gce", "a3-highgpu-1g", "us-central1-a", True, region=str(PLACE), cpus=26, gpu="H100", gpus=1)


def limit(metric: str, most: float) -> dict[str, Any]:
    return {"metric": metric, "limit": most, "usage": 0.0}


def told(offerings: tuple[Offering, ...], *limits: dict[str, Any], nodes: int = 1) -> dict[str, CheckResult]:
    spec = Spec(name="check", run="true", nodes=nodes, resources=Resources(provider="gce"))
    checks = check._Checks(SimpleNamespace(api=None), spec, "gs://bucket", PLACE, {})  # type: ignore[arg-type]
    checks._region, checks._offered = {"quotas": list(limits)}, offerings
    return {each.name: each for each in checks.limits()}


def test_spot_takes_of_the_others_and_says_so() -> None:
    found = told((N2,), limit("CPUS", 24), limit("PREEMPTIBLE_CPUS", 0))
    spot = found["quota of PREEMPTIBLE_CPUS"]
    assert spot.ok and spot.detail == "none is given, so spot takes of CPUS"
    assert found["quota of CPUS"].ok and found["quota of CPUS"].detail == "4 of 24 vCPUs"


def test_where_the_others_are_too_few_either_can_be_asked_for() -> None:
    found = told((N2,), limit("CPUS", 8), limit("PREEMPTIBLE_CPUS", 0), nodes=3)["quota of CPUS"]
    assert found.ok is False and "this job needs 12" in found.detail
    assert found.fix.endswith("quotas?project=vision-1: of CPUS, or of PREEMPTIBLE_CPUS for spot alone")


def test_where_there_are_no_others_a_limit_of_zero_is_the_limit() -> None:
    found = told((H100,), limit("PREEMPTIBLE_NVIDIA_H100_GPUS", 0))["quota of PREEMPTIBLE_NVIDIA_H100_GPUS"]
    assert found.ok is False and found.detail == "0 GPUs in us-central1, 0 in use, and this job needs 1"
    assert "ask for more at https://console.cloud.google.com" in found.fix


def test_who_takes_no_spot_needs_no_limit_for_it() -> None:
    found = told((replace(N2, spot=False),), limit("N2_CPUS", 24), limit("PREEMPTIBLE_CPUS", 0))
    assert list(found) == ["quota of N2_CPUS"]
    assert (
        quotas.borrowed_limits([replace(N2, spot=False)], quotas.limits({"quotas": [limit("PREEMPTIBLE_CPUS", 0)]}))
        == {}
    )
