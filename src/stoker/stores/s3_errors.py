"""What obstore's errors on S3 mean. Mapped here, once."""

from __future__ import annotations

import re

from obstore.exceptions import PermissionDeniedError, PreconditionError, UnauthenticatedError

from stoker.errors import NoCredentials, StoreDenied, StoreError, StoreUnavailable

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
# Client errors that pass by themselves: timeout, conflict, too early, too many requests.
_PASSING = frozenset({408, 409, 425, 429})


def translated(error: Exception, url: str) -> StoreError:
    """The store's error for one of obstore's, other than an absent object."""
    text = str(error)
    answered = status(error)
    code = match[1] if (match := _CODE.search(text)) else ""
    if code == "NoSuchBucket":
        bucket = url.removeprefix("s3://").partition("/")[0]
        return StoreDenied(f"the bucket {bucket} does not exist; create it, or name another store")
    if isinstance(error, PreconditionError):
        return StoreUnavailable(f"{url}: the object was overwritten while it was read")
    if "Received redirect" in text:
        return StoreDenied(f"{url} is in another region; set AWS_REGION to the bucket's")
    if "169.254.169.254" in text or "169.254.170." in text:
        return NoCredentials(
            f"{url}: no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE "
            "with boto3 installed"
        )
    why = reason(error)
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return StoreDenied(f"{url} refused: {why}")
    if answered is not None and 400 <= answered < 500 and answered not in _PASSING:
        return StoreDenied(f"{url} refused: {why}")
    return StoreUnavailable(f"{url} did not answer: {why}")


def status(error: Exception) -> int | None:
    """The HTTP status that was answered, if anything was."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def first_line(error: Exception) -> str:
    """What is fit for a person: obstore appends a page of its own internals."""
    lines = str(error).split("\n\nDebug source", 1)[0].splitlines()
    return lines[0][:300] if lines else type(error).__name__


def reason(error: Exception) -> str:
    text = str(error)
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code:
        return f"{code[1]}: {message[1]}" if message else code[1]
    return first_line(error)
