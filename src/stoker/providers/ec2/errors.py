"""EC2's errors, mapped once, by code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stoker.model.errors import (
    AuthDenied,
    InvalidRequest,
    Misnamed,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Transient,
)

T = TypeVar("T")

_CODES: dict[str, type[ProviderError]] = {
    code: kind
    for kind, codes in {
        NotFound: (
            "EC2InstanceNotFoundException",
            "InvalidInstanceID.NotFound",
            "InvalidPlacementGroup.Unknown",
            "InvalidVolume.NotFound",
            "NoSuchEntity",
            "NoSuchResourceException",
            "ResourceNotFoundException",
        ),
        NoCapacity: (
            "InsufficientCapacity",
            "InsufficientCapacityOnOutpost",
            "InsufficientFreeAddressesInSubnet",
            "InsufficientHostCapacity",
            "InsufficientInstanceCapacity",
            "InsufficientReservedInstanceCapacity",
            "ReservationCapacityExceeded",
            "SpotMaxPriceTooLow",
        ),
        QuotaExceeded: (
            "AddressLimitExceeded",
            "InstanceLimitExceeded",
            "MaxSpotInstanceCountExceeded",
            "PendingVerification",
            "PlacementGroupLimitExceeded",
            "RequestResourceCountExceeded",
            "ResourceCountExceeded",
            "ServiceQuotaExceededException",
            "VcpuLimitExceeded",
            "VolumeLimitExceeded",
        ),
        AuthDenied: (
            "AccessDenied",
            "AccessDeniedException",
            "AuthException",
            "AuthFailure",
            "Blocked",
            "IncompleteSignature",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "MissingAuthenticationToken",
            "OptInRequired",
            "SignatureDoesNotMatch",
            "UnauthorizedOperation",
            "UnrecognizedClientException",
        ),
        Throttled: (
            "BandwidthLimitExceeded",
            "EC2ThrottledException",
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestThrottledException",
            "SlowDown",
            "Throttling",
            "ThrottlingException",
            "TooManyRequestsException",
        ),
        # Somebody renews them, and the same request succeeds.
        Transient: ("ExpiredToken", "ExpiredTokenException", "RequestExpired"),
    }.items()
    for code in codes
}
# The request is at fault, whatever exactly is wrong with it.
_AT_FAULT = ("Invalid", "Malformed", "Missing", "Unsupported", "Unknown", "Incorrect", "Incompatible", "Validation")


# What a person named in the job file, by the beginning of the code that says it will not do.
_FIELDS = (
    ("InvalidAMIID", "resources.image"),
    ("InvalidCapacityReservation", "resources.ec2.reservation"),
    ("InvalidGroup", "resources.ec2.security_groups"),
    ("InvalidKeyPair", "resources.ec2.key"),
    ("InvalidPlacementGroup", "resources.ec2.placement_group"),
    ("InvalidSecurityGroup", "resources.ec2.security_groups"),
    ("InvalidSubnet", "resources.ec2.subnet"),
    ("NoSuchEntity", "resources.ec2.profile"),
)
# What to do about what only a person can change.
_ADVICE: dict[type[ProviderError], str] = {
    QuotaExceeded: "; ask for more in Service Quotas: `stoker check ec2` shows which",
    AuthDenied: "; `stoker check ec2` shows which permission, `stoker iam ec2` prints the policies",
}


def calling(what: str, call: Callable[[], T], means: Callable[[str, Any], ProviderError] | None = None) -> T:
    """Call AWS. `what` begins the message of whatever goes wrong, for people. `means` is for services beside EC2."""
    # Imported by now by whoever made the client.
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError
    from botocore.parsers import ResponseParserError

    try:
        return call()
    except ClientError as error:
        raise (means or mapped)(what, error.response) from error
    except NoCredentialsError as error:
        raise Transient(f"{what}: no AWS credentials here; `aws configure`, or set AWS_PROFILE") from error
    except ParamValidationError as error:
        raise InvalidRequest(f"{what}: {' '.join(str(error).split())[:400]}") from error
    except (BotoCoreError, ResponseParserError) as error:
        # No answer at all, or none that can be understood.
        raise Transient(f"{what}: {first_line(error)}") from error


def mapped(what: str, response: Any) -> ProviderError:
    """The error that an answer of EC2's means."""
    told = response.get("Error", {})
    code = str(told.get("Code", ""))
    message = first_line(str(told.get("Message", "")) or "no reason given")
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    kind = kind_of(code, status)
    field = next((field for start, field in _FIELDS if code.startswith(start)), "")
    if not field and "iam instance profile" in message.lower():
        field = "resources.ec2.profile"
    if field and kind is InvalidRequest:
        kind = Misnamed
    return kind(f"{field or what}: {message} ({code}){_ADVICE.get(kind, '')}")


def kind_of(code: str, status: int = 0) -> type[ProviderError]:
    found = _CODES.get(code) or _CODES.get(code.partition(".")[0])
    if found is not None:
        return found
    if code.endswith("LimitExceeded"):
        return QuotaExceeded
    # An answer that blames the request will be the same tomorrow. A token that was used before is no fault.
    blames = 400 <= status < 500 and status not in (408, 429) and not code.startswith("Idempotent")
    return InvalidRequest if blames or (status < 400 and code.startswith(_AT_FAULT)) else Transient


def first_line(error: object) -> str:
    """An error's first line, short enough to be one."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:400]
