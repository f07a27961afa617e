"""Failures in Google's queue: which end the wait, and which say no more than that there are no machines yet."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.errors import AuthDenied, InvalidRequest, NoSuchResource, ProviderError, QuotaExceeded
from stoker.providers.gce import queue_errors

H100S = "a3-highgpu-8g"
# https://github.com/GoogleCloudPlatform/bank-of-anthos/issues/1234
NOT_IN_ZONE = (
    "Invalid value for field 'resource.machineType': 'https://compute.googleapis.com/compute/v1/projects/p/zones/"
    "europe-west8-a/machineTypes/n1-standard-1'. Machine type with name 'n1-standard-1' does not exist in zone "
    "'europe-west8-a'."
)


def failed(code: str, message: str, **quota: Any) -> dict[str, Any]:
    error: dict[str, Any] = {"code": code, "message": message}
    if quota:
        error["errorDetails"] = [{"quotaInfo": quota}]
    return {"error": {"errors": [error]}}


def lasting(failure: dict[str, Any], nodes: int = 2) -> ProviderError | None:
    return queue_errors.lasting(H100S, failure, H100S, nodes)


def over_quota(limit: float, metric: str = "PREEMPTIBLE_NVIDIA_H100_GPUS", **more: Any) -> dict[str, Any]:
    message = f"Quota '{metric}' exceeded.  Limit: {limit} in region us-central1."
    return failed("QUOTA_EXCEEDED", message, metricName=f"compute.googleapis.com/{metric.lower()}", limit=limit, **more)


@pytest.mark.parametrize(
    ("failure", "kind", "told"),
    [
        (failed("INVALID_FIELD_VALUE", NOT_IN_ZONE), InvalidRequest, "does not exist in zone"),
        (
            failed("RESOURCE_NOT_FOUND", "The resource 'projects/p/zones/z/machineTypes/a3-highgpu-8g' was not found"),
            InvalidRequest,
            "resources.machine",
        ),
        (
            failed("RESOURCE_NOT_FOUND", "The resource 'projects/p/global/images/x' was not found"),
            NoSuchResource,
            "resources.image",
        ),
        (failed("UNSUPPORTED_OPERATION", "Flex-start is not supported."), InvalidRequest, "not supported"),
        (
            failed("CONDITION_NOT_MET", "Constraint constraints/compute.vmExternalIpAccess violated for project 42."),
            InvalidRequest,
            "vmExternalIpAccess",
        ),
        (failed("PERMISSIONS_ERROR", "Required 'compute.instances.create' permission"), AuthDenied, "permission"),
        # 16 GPUs never fit.
        (over_quota(8.0), QuotaExceeded, "Limit: 8.0"),
        (over_quota(0.0, "PREEMPTIBLE_CPUS"), QuotaExceeded, "PREEMPTIBLE_CPUS"),
        (over_quota(0.0, "SOMETHING_NEW"), QuotaExceeded, "SOMETHING_NEW"),
        # Without details the limit is in the text.
        (
            failed("QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."),
            QuotaExceeded,
            "GPUS_ALL",
        ),
    ],
)
def test_a_mistake_ends_the_wait(failure: dict[str, Any], kind: type[ProviderError], told: str) -> None:
    found = lasting(failure)
    assert type(found) is kind and told in str(found)


@pytest.mark.parametrize(
    "failure",
    [
        {},
        # Others have used it up, and give it back.
        over_quota(16.0),
        over_quota(1.0, "SOMETHING_NEW"),
        # It is being raised at this moment.
        over_quota(8.0, futureLimit=64.0, rolloutStatus="IN_PROGRESS"),
        failed("QUOTA_EXCEEDED", "A quota is exceeded."),
        failed("ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources available."),
        failed("RESOURCE_NOT_FOUND", "The resource 'projects/p/zones/z/instances/i' was not found"),
        failed("REQUEST_EXPIRED", "The request was not fulfilled in its valid duration."),
        failed("CONDITION_NOT_MET", "The resource was changed meanwhile."),
        failed("INTERNAL_ERROR", "Internal error."),
    ],
)
def test_nothing_else_does(failure: dict[str, Any]) -> None:
    assert lasting(failure) is None


def test_one_machine_may_fit_where_two_do_not() -> None:
    assert lasting(over_quota(8.0), nodes=1) is None


def test_google_s_words_are_told() -> None:
    assert queue_errors.said("Google says:", {}) == ""
    said = queue_errors.said("Google says:", over_quota(16.0))
    assert said.startswith("Google says: Quota 'PREEMPTIBLE_NVIDIA_H100_GPUS' exceeded.")
