"""SageMaker's errors, mapped once, by code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stoker.model.errors import AuthDenied, InvalidRequest, NoSuchResource, NotFound, ProviderError, QuotaExceeded
from stoker.providers.cloud_errors import first_line
from stoker.providers.ec2 import errors as aws

T = TypeVar("T")

# Fields of the job file, by words in the message that refuses them: SageMaker has one code for all.
_FIELDS = (
    ("role", "resources.sagemaker.role"),
    ("subnet", "resources.sagemaker.subnets"),
    ("security group", "resources.sagemaker.security_groups"),
    ("kms", "resources.sagemaker.kms_key"),
    ("image", "environment.container.image"),
    ("instance type", "resources.machine"),
)
# Fields of the job file, by words in the name of a quota that does not count machines.
_QUOTAS = (
    ("run time", "limits.max_runtime"),
    ("keep alive", "resources.sagemaker.keep_alive"),
    ("keep-alive", "resources.sagemaker.keep_alive"),
    ("warm pool", "resources.sagemaker.keep_alive"),
)
_ADVICE: dict[type[ProviderError], str] = {
    QuotaExceeded: "; ask for more in Service Quotas: `stoker check sagemaker` shows which",
    AuthDenied: "; `stoker check sagemaker` shows which permission, `stoker iam sagemaker` prints the policies",
}


class NameTaken(InvalidRequest):
    """A training job of this name exists, or existed: another governor has launched this claim."""


class TrainingJobEnded(InvalidRequest):
    """The training job has ended, and cannot be stopped any more."""


def calling(what: str, call: Callable[[], T]) -> T:
    """Call SageMaker. `what` begins the message of an error."""
    return aws.call_aws(what, call, mapped)


def mapped(what: str, response: Any) -> ProviderError:
    """The error of an unsuccessful response of SageMaker's."""
    error = response.get("Error", {})
    code = str(error.get("Code", ""))
    message = first_line(str(error.get("Message", "")) or "no reason given")
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    kind = _kind(code, message.lower(), status)
    field = ""
    if kind is InvalidRequest:
        field = next((field for word, field in _FIELDS if word in message.lower()), "")
        kind = NoSuchResource if field else kind
    if kind is QuotaExceeded:
        field = next((field for word, field in _QUOTAS if word in message.lower()), "")
    return kind(f"{field or what}: {message} ({code}){_ADVICE.get(kind, '')}")


def _kind(code: str, message: str, status: int) -> type[ProviderError]:
    # SageMaker has no code of its own for an unknown training job.
    if code == "ResourceNotFound" or (code == "ValidationException" and "resource not found" in message):
        return NotFound
    if code == "ValidationException" and "training job is in status" in message:
        return TrainingJobEnded
    if code == "ResourceInUse":
        return NameTaken
    return aws.error_type(code, status)
