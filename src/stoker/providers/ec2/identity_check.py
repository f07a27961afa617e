"""Check boto3, the region and the credentials, before anything else is asked of AWS."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from stoker.model.errors import ProviderError, StokerError, UserError
from stoker.providers.base import CheckResult
from stoker.providers.check_results import TRY_LATER
from stoker.providers.ec2.client import INSTALL, Clients, installed
from stoker.providers.ec2.errors import call_aws
from stoker.providers.ec2.verdicts import answer_of, aws_message

CREDENTIALS = "`aws configure`, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_RENEW = "`aws sso login`, or get new ones as you got these"
_CONNECT = "connect this computer to the internet, or set HTTPS_PROXY; check the name of the region too"
_CLOCK = "set this computer's clock: AWS refuses what was signed at another time"
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException"})
# Of a signature that is too old, AWS says "Signature expired" or "Signature not yet current".
_CLOCK_WORDS = ("signature expired", "not yet current", "request has expired")


def check_identity(
    provider: str, clients: Clients, region: str | None
) -> Generator[CheckResult, None, tuple[str, Mapping[str, Any]] | None]:
    """Check boto3, the region and the credentials. Returns the region and the caller; None where one is missing."""
    if not installed():
        yield CheckResult("boto3", False, f"{provider} needs boto3", INSTALL)
        return None
    try:
        region = region or clients.default_region()
        if region is None:
            yield CheckResult("region", False, "none is named", "set resources.region, or AWS_REGION")
            return None
        identity = call_aws("sts", clients.get("sts", region).get_caller_identity)
    except (ProviderError, UserError) as error:
        yield _explain(error)
        return None
    yield CheckResult("credentials", True, f"{identity['Arn']} in account {identity['Account']}")
    return region, identity


def _explain(error: StokerError) -> CheckResult:
    """Say whether the network, the credentials or AWS itself is the problem."""
    from botocore import exceptions

    cause = error.__cause__
    if isinstance(cause, exceptions.NoCredentialsError):
        return CheckResult("credentials", False, "there are none here", CREDENTIALS)
    # No address, no connection, no answer, a wrong certificate, a proxy that refuses.
    if isinstance(cause, (exceptions.HTTPClientError, exceptions.ConnectionError)):
        return CheckResult("network", False, f"AWS cannot be reached from here: {_first_words(cause)}", _CONNECT)
    answer = answer_of(error)
    code, said = (str(answer.get("Error", {}).get(part, "")) for part in ("Code", "Message"))
    if any(words in said.lower() for words in _CLOCK_WORDS) or code in ("RequestExpired", "RequestTimeTooSkewed"):
        return CheckResult("credentials", False, aws_message(error), _CLOCK)
    if code in _EXPIRED:
        return CheckResult("credentials", False, f"they have expired ({code})", _RENEW)
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 400 if answer else 0))
    if answer and (status >= 500 or status == 429 or "Throttl" in code):
        return CheckResult("credentials", None, f"not known: {aws_message(error)}", TRY_LATER)
    if code == "InvalidClientTokenId":
        # The answer of a region that the account has not enabled, too.
        return CheckResult(
            "credentials", False, f"AWS does not know them ({code})", f"{CREDENTIALS}; or enable this region first"
        )
    return CheckResult("credentials", False, aws_message(error), CREDENTIALS)


def _first_words(cause: BaseException) -> str:
    return " ".join(str(cause).split())[:200]
