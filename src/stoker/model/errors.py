"""Every error Stoker raises on purpose.

    StokerError
    ├─ UserError              the person's mistake: one clear line, exit code 2
    │   ├─ NoSuchJob          a name that no job has
    │   ├─ NoSuchProvider     a name that no provider has
    │   ├─ WrongKeyword       a keyword that a function or `Job` does not have; a TypeError too
    │   └─ SpecError          … in a job file: names the field and, where known, the line
    ├─ NotGoverned            the job is in the store, and no governor could be started for it
    ├─ CodecError             bytes that do not decode to what they should be
    ├─ StoreError             the bucket
    │   ├─ StoreDenied        answered: not allowed; exit code 2
    │   └─ StoreUnavailable   no answer, or not now: try again
    │       └─ NoCredentials  no credentials, perhaps not yet; exit code 2
    └─ ProviderError          the cloud; mapped once, by code, in each provider
        ├─ NotFound           the requested thing positively does not exist
        ├─ NoCapacity         this offering is dry; the next one may not be
        ├─ SubnetFull         the network of this zone has no free address; another zone's may have
        ├─ QuotaExceeded      the account's limit is reached: report, do not loop
        ├─ AuthDenied         a permission is missing: report, do not loop; exit code 2
        ├─ InvalidRequest     the request can never succeed as it is; exit code 2
        ├─ Throttled          too many requests: try again later
        └─ Transient          any other passing failure: try again later
            └─ StillQueued    the request waits in the cloud's queue: repeat it

Expected outcomes are return values; exceptions are for cases that a caller cannot plan for.
"""

from __future__ import annotations


class StokerError(Exception):
    """The root. `exit_code` is the exit code of the command line: 2 for errors that a person can correct."""

    exit_code = 3


class UserError(StokerError):
    """An error that the person can correct. The message says in one line what is wrong and what to do."""

    exit_code = 2


class PolicyRefused(UserError):
    """The policy refuses a job, or has mistakes itself. `problems` has one line for each: rule, field, what to do."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class NotInstalled(UserError):
    """A part of Stoker needs packages that are not installed; the message says how to install them."""


class NoSuchJob(UserError):
    """No job of the store has this name. `text` is the requested name."""

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(problem)
        self.text = text


class NoSuchProvider(UserError):
    """No installed provider has this name."""


class WrongKeyword(UserError, TypeError):
    """A call from Python names an unknown argument; the message names the nearest known one."""


class SpecError(UserError):
    """A wrong job file, flag or setting; the message names the field and what to do."""


class NotGoverned(StokerError):
    """The job was submitted, and no governor could be started for it. Do not submit it again: start a governor."""


class CodecError(StokerError):
    """Data that does not decode as expected. `path` names the offending part, such as `offering.price`."""

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
    """The bucket did not answer, or is temporarily unable. Says nothing about its contents."""


class NoCredentials(StoreUnavailable):
    """No credentials for the bucket. A machine may get its own in a moment; a person has to provide them."""

    exit_code = 2


class ProviderError(StokerError):
    """The cloud refused or failed."""


class NotFound(ProviderError):
    """The cloud answered that the thing does not exist; never raised for a missing answer."""


class NoCapacity(ProviderError):
    """This offering has no capacity now; another may have."""


class SubnetFull(ProviderError):
    """The network of this zone has too few free addresses, for whatever machines. Another zone's may have more."""


class QuotaExceeded(ProviderError):
    """The account's limit is reached. A person must raise it or release resources."""


class AuthDenied(ProviderError):
    """The credentials lack a permission. A person must grant it."""

    exit_code = 2


class InvalidRequest(ProviderError):
    """The cloud will never accept this request."""

    exit_code = 2


class NoSuchResource(InvalidRequest):
    """The job names a resource that does not exist in any zone or region: no other offering will help."""


class Throttled(ProviderError):
    """Too many calls; try again later."""


class Transient(ProviderError):
    """An unclear or passing failure, from which nothing may be concluded."""


class StillQueued(Transient):
    """The request waits in the cloud's queue for its machines. Repeating it tells whether they came."""


def describe_error(error: BaseException) -> str:
    """Describe an error in one line: Stoker's own by its message, any other by its type and message."""
    return str(error) if isinstance(error, StokerError) else f"{type(error).__name__}: {error}"


class SetupFailed(StokerError):
    """A step before the training failed permanently. `user`: the user's own set-up failed, not Stoker's."""

    def __init__(self, reason: str, *, user: bool, code: int | None = None) -> None:
        super().__init__(reason)
        self.user = user
        self.code = code
