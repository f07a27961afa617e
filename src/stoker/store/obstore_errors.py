"""Map errors of obstore to errors of the store. The modules of each cloud map their own special cases."""

from __future__ import annotations

import json
import re

from obstore.exceptions import InvalidPathError, PermissionDeniedError, PreconditionError, UnauthenticatedError

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store.base import ObjectChanged, ObjectNamesUnusable

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
# Google names the account and the permission here, and not in the message.
_DETAILS = re.compile(r"<Details>([^<]+)</Details>")
# The two messages that a listing can cause: an invalid segment, and an empty one.
_BAD_NAME = re.compile(r'Path "(.*?)"(?:: | contained )', re.DOTALL)
# Temporary client errors: timeout, conflict, too early, too many requests.
_PASSING = frozenset({408, 409, 425, 429})
_LONGEST = 300


def translated(error: Exception, url: str) -> StoreError:
    """Map an error of obstore, other than an absent object, to an error of the store."""
    answered = status(error)
    if code(error) == "NoSuchBucket":
        bucket = url.partition("://")[2].partition("/")[0]
        return StoreDenied(f"the bucket {bucket} does not exist; check its name, or create it")
    if isinstance(error, PreconditionError):
        return ObjectChanged(f"{url}: the object was overwritten while it was read")
    if isinstance(error, InvalidPathError):
        # Requested keys were checked before, so this name was found in a listing.
        named = _BAD_NAME.search(str(error))
        name = json.dumps(named[1])[1:-1] if named else "?"
        return ObjectNamesUnusable(f"{url}: an object there is called {name}, which cannot be the path of a file")
    why = reason(error)
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return StoreDenied(f"{url} refused: {why}")
    if answered is not None and 400 <= answered < 500 and answered not in _PASSING:
        return StoreDenied(f"{url} refused: {why}")
    return StoreUnavailable(f"{url} did not answer: {why}")


def status(error: Exception) -> int | None:
    """The HTTP status of the response, if there was one."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def code(error: Exception) -> str:
    """The cloud's error code, if it gave one."""
    match = _CODE.search(str(error))
    return match[1] if match else ""


def first_line(error: Exception) -> str:
    """The first line of the message: obstore appends a page of internals."""
    lines = str(error).split("\n\nDebug source", 1)[0].splitlines()
    return lines[0][:_LONGEST] if lines else type(error).__name__


def reason(error: Exception) -> str:
    """The reason in one line."""
    text = str(error)
    if not code(error):
        return first_line(error)
    text_found = _DETAILS.search(text) or _MESSAGE.search(text)
    return f"{code(error)}: {' '.join(text_found[1].split())}"[:_LONGEST] if text_found else code(error)
