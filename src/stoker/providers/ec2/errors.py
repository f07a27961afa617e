"""Map EC2's errors to `stoker.model.errors`, once and by code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stoker.model.errors import (
    AuthDenied,
    InvalidRequest,
    NoCapacity,
    NoSuchResource,
    NotFound,
    ProviderError,
    QuotaExceeded,
    SubnetFull,
    Throttled,
    Transient,
)
from stoker.providers.cloud_errors import by_code, first_line

T = TypeVar("T")

_CODES = by_code(
    {
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
            "InsufficientHostCapacity",
            "InsufficientInstanceCapacity",
            "InsufficientReservedInstanceCapacity",
            # ".PendingActivation: Your Capacity Block is not active yet." EC2 documents no other one, and a reservation
            # that is delayed or just over has states, too. The next look-up finds out which never has machines again.
            "InvalidCapacityReservationState",
            "ReservationCapacityExceeded",
            "SpotMaxPriceTooLow",
        ),
        # "The specified subnet does not contain enough free private IP addresses to fulfill your request."
        SubnetFull: ("InsufficientFreeAddressesInSubnet",),
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
            "ForbiddenException",
            "IncompleteSignature",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "MissingAuthenticationToken",
            "OptInRequired",
            "SignatureDoesNotMatch",
            "UnauthorizedException",
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
        # The same request succeeds after the credentials are renewed.
        Transient: ("ExpiredToken", "ExpiredTokenException", "RequestExpired"),
    }
)
# Prefixes of codes that blame the request.
_AT_FAULT = ("Invalid", "Malformed", "Missing", "Unsupported", "Unknown", "Incorrect", "Incompatible", "Validation")


# The field of the job file by the prefix of the code that rejects it.
_FIELDS = (
    ("InsufficientFreeAddressesInSubnet", "resources.ec2.subnet"),
    ("InvalidAMIID", "resources.image"),
    ("InvalidCapacityReservation", "resources.ec2.reservation"),
    ("InvalidGroup", "resources.ec2.security_groups"),
    ("InvalidKeyPair", "resources.ec2.key"),
    ("InvalidPlacementGroup", "resources.ec2.placement_group"),
    ("InvalidSecurityGroup", "resources.ec2.security_groups"),
    ("InvalidSubnet", "resources.ec2.subnet"),
    ("NoSuchEntity", "resources.ec2.profile"),
    # SsmInvalidParameter, for a parameter that is not of the type aws:ec2:image:
    # https://github.com/aws/aws-cdk/issues/26712
    ("SsmInvalid", "resources.image"),
)
# Advice on problems that only the user can solve.
_ADVICE: dict[type[ProviderError], str] = {
    SubnetFull: "; name a larger subnet, or end machines in this one",
    QuotaExceeded: "; ask for more in Service Quotas: `stoker check ec2` shows which",
    AuthDenied: "; `stoker check ec2` shows which permission, `stoker iam ec2` prints the policies",
}


def call_aws(what: str, call: Callable[[], T], means: Callable[[str, Any], ProviderError] | None = None) -> T:
    """Call AWS and map its errors. `what` starts the message of an error. `means` maps errors of services beside
    EC2."""
    # boto3 is imported already: the caller has a client.
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError
    from botocore.parsers import ResponseParserError

    try:
        return call()
    except ClientError as error:
        raise (means or map_error)(what, error.response) from error
    except NoCredentialsError as error:
        raise Transient(f"{what}: no AWS credentials here; `aws configure`, or set AWS_PROFILE") from error
    except ParamValidationError as error:
        raise InvalidRequest(f"{what}: {' '.join(str(error).split())[:400]}") from error
    except (BotoCoreError, ResponseParserError) as error:
        # No answer, or one that cannot be parsed.
        raise Transient(f"{what}: {first_line(error)}") from error


def map_error(what: str, response: Any) -> ProviderError:
    """The error that an answer of EC2 stands for."""
    details = response.get("Error", {})
    code = str(details.get("Code", ""))
    message = first_line(str(details.get("Message", "")) or "no reason given")
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    kind = error_type(code, status)
    field = next((field for start, field in _FIELDS if code.startswith(start)), "")
    if not field and "iam instance profile" in message.lower():
        field = "resources.ec2.profile"
    if not field and "ssm parameter" in message.lower():
        field = "resources.image"
    if not field and "smaller than snapshot" in message:
        field = "resources.disk"
    if field and kind is InvalidRequest:
        kind = NoSuchResource
    return kind(f"{field or what}: {message} ({code}){_ADVICE.get(kind, '')}")


def error_type(code: str, status: int = 0) -> type[ProviderError]:
    found = _CODES.get(code) or _CODES.get(code.partition(".")[0])
    if found is not None:
        return found
    if code.endswith("LimitExceeded"):
        return QuotaExceeded
    # An answer that blames the request will be the same tomorrow. A token that was used before is not a fault.
    blames = 400 <= status < 500 and status not in (408, 429) and not code.startswith("Idempotent")
    return InvalidRequest if blames or (status < 400 and code.startswith(_AT_FAULT)) else Transient
