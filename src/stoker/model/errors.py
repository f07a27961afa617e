"""Every error Stoker raises on purpose.

    StokerError
    ├─ UserError              the person's mistake: one clear line, exit code 2
    │   ├─ NoSuchJob          a name that no job has
    │   ├─ WrongKeyword       a keyword that a function or `Job` does not have; a TypeError too
    │   └─ SpecError          … in a job file: names the field and, where known, the line
    ├─ CodecError             bytes that do not decode to what they should be
    ├─ StoreError             the bucket
    │   ├─ StoreDenied        it answered: not allowed; exit code 2
    │   └─ StoreUnavailable   it did not answer, or not now: try again
    │       └─ NoCredentials  nobody to ask as: perhaps not yet; exit code 2
    └─ ProviderError          the cloud; mapped once, by code, in each provider
        ├─ NotFound           the thing asked for is positively not there
        ├─ NoCapacity         this offering is dry; the next one may not be
        ├─ QuotaExceeded      the account may not have more of it: tell, do not loop
        ├─ AuthDenied         the account may not do this: tell, do not loop; exit code 2
        ├─ InvalidRequest     the request can never succeed as it is; exit code 2
        ├─ Throttled          asked too often: try again later
        └─ Transient          anything else that may pass: try again later

Expected outcomes are return values; these are for what a caller cannot plan for.
"""

from __future__ import annotations

# What a bug raises, or something absurd that somebody's machine or job file says. At the edge of a loop over jobs it
# concerns that job alone. No AssertionError: where one fails, nothing may go on.
STUMBLES = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)


class StokerError(Exception):
    """The root. `exit_code` is what the command line exits with: 2 for what a person can put right."""

    exit_code = 3


class UserError(StokerError):
    """Something the person can put right. The message says what is wrong and what to do, in one line."""

    exit_code = 2


class NotInstalled(UserError):
    """A part of Stoker needs packages that are not there; the message says how to have them."""


class NoSuchJob(UserError):
    """No job of the store is called that. `text` is what was asked for."""

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(problem)
        self.text = text


class WrongKeyword(UserError, TypeError):
    """A call from Python names an argument that there is not; the message names the nearest."""


class SpecError(UserError):
    """A job file, flag or setting that is wrong; the message names the field and what to do."""


class CodecError(StokerError):
    """Data that is not what it claims to be. `path` names the offending part, such as `offering.price`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


class StoreError(StokerError):
    """The bucket refused or failed."""


class StoreDenied(StoreError):
    """The bucket answered that this is not allowed. Trying again does not help."""

    exit_code = 2


class StoreUnavailable(StoreError):
    """The bucket did not answer, or answered that it cannot now. Says nothing about what it holds."""


class NoCredentials(StoreUnavailable):
    """There are no credentials to ask the bucket with. A machine may get its own in a moment; a person has to."""

    exit_code = 2


class ProviderError(StokerError):
    """The cloud refused or failed."""


class NotFound(ProviderError):
    """Positively not there: an answer, not a silence."""


class NoCapacity(ProviderError):
    """This offering cannot be had now; another may be."""


class QuotaExceeded(ProviderError):
    """The account's limit is reached. A person must raise it or free something."""


class AuthDenied(ProviderError):
    """The credentials may not do this. A person must change that."""

    exit_code = 2


class InvalidRequest(ProviderError):
    """The cloud will never accept this request."""

    exit_code = 2


class Misnamed(InvalidRequest):
    """The job names something that is not there, wherever its machines would be: no other offering will do."""


class Throttled(ProviderError):
    """Too many calls. Later."""


class Transient(ProviderError):
    """An unclear or passing failure. Nothing may be concluded from it."""


def in_words(error: BaseException) -> str:
    """One line: the message of an error that was meant, the kind of one that was not."""
    return str(error) if isinstance(error, StokerError) else f"{type(error).__name__}: {error}"


class SetupFailed(StokerError):
    """Something before the training failed for good. `user`: it was the user's set-up, not ours."""

    def __init__(self, reason: str, *, user: bool, code: int | None = None) -> None:
        super().__init__(reason)
        self.user = user
        self.code = code
