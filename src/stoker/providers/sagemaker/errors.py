"""SageMaker's errors, mapped once, by code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stoker.model.errors import AuthDenied, InvalidRequest, Misnamed, NotFound, ProviderError, QuotaExceeded
from stoker.providers.ec2 import errors as aws

T = TypeVar("T")

first_line = aws.first_line

# What a person named in the job file, by words in the message that says it will not do: SageMaker has one code for all.
_FIELDS = (
    ("role", "resources.sagemaker.role"),
    ("subnet", "resources.sagemaker.subnets"),
    ("security group", "resources.sagemaker.security_groups"),
    ("kms", "resources.sagemaker.kms_key"),
    ("image", "environment.container.image"),
    ("instance type", "resources.machine"),
)
# And by words in the name of a quota that is not about machines.
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
    """There is, or was, a training job of this name: somebody finished this claim before."""


class Ended(InvalidRequest):
    """The training job has ended, and takes no more orders."""


def calling(what: str, call: Callable[[], T]) -> T:
    """Call SageMaker. `what` begins the message of whatever goes wrong, for people."""
    return aws.calling(what, call, mapped)


def mapped(what: str, response: Any) -> ProviderError:
    """The error that an answer of SageMaker's means."""
    told = response.get("Error", {})
    code = str(told.get("Code", ""))
    message = first_line(str(told.get("Message", "")) or "no reason given")
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    kind = _kind(code, message.lower(), status)
    field = ""
    if kind is InvalidRequest:
        field = next((field for word, field in _FIELDS if word in message.lower()), "")
        kind = Misnamed if field else kind
    if kind is QuotaExceeded:
        field = next((field for word, field in _QUOTAS if word in message.lower()), "")
    return kind(f"{field or what}: {message} ({code}){_ADVICE.get(kind, '')}")


def _kind(code: str, message: str, status: int) -> type[ProviderError]:
    # An unknown training job has no code of its own.
    if code == "ResourceNotFound" or (code == "ValidationException" and "resource not found" in message):
        return NotFound
    if code == "ValidationException" and "training job is in status" in message:
        return Ended
    if code == "ResourceInUse":
        return NameTaken
    return aws.kind_of(code, status)
