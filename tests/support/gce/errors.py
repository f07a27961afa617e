"""What Compute Engine answers when it does not do what it was asked, at once or at the end of an operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


class Failure(Exception):
    """A request that is refused at once."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    def body(self) -> Json:
        """The error as Google writes it."""
        one = {"message": self.message, "domain": "global", "reason": self.reason}
        return {"error": {"code": self.status, "message": self.message, "errors": [one]}}


class OperationFailed(Exception):
    """An operation that was begun, and ended with errors: each a code, a message and perhaps details."""

    def __init__(self, errors: Sequence[Json], status: int, message: str) -> None:
        super().__init__(str(errors))
        self.errors = list(errors)
        self.status = status
        self.message = message


def not_found(path: str) -> Failure:
    """`path` is "projects/…", here as below."""
    return Failure(404, "notFound", f"The resource '{path}' was not found")


def already_exists(path: str) -> Failure:
    return Failure(409, "alreadyExists", f"The resource '{path}' already exists")


def in_use(kind: str, path: str, user: str) -> Failure:
    told = f"The {kind} resource '{path}' is already being used by '{user}'"
    return Failure(400, "resourceInUseByAnotherResource", told)


def forbidden(permission: str, path: str) -> Failure:
    return Failure(403, "forbidden", f"Required '{permission}' permission for '{path}'")


def invalid(field: str, value: object, why: str) -> Failure:
    return Failure(400, "invalid", f"Invalid value for field '{field}': '{value}'. {why}")


def bad_request(message: str, reason: str = "badRequest") -> Failure:
    return Failure(400, reason, message)
