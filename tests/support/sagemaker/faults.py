"""What goes wrong with a call to SageMaker."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.fault_book import FaultBook

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/CommonErrors.html
_STATUS = {"InternalFailure": 500, "ServiceUnavailable": 503}
_MESSAGES = {
    "ThrottlingException": "Rate exceeded",
    "AccessDeniedException": (
        "User: arn:aws:sts::123456789012:assumed-role/test/test is not authorized to perform this operation because"
        " no identity-based policy allows it"
    ),
    "InternalFailure": "An internal error has occurred.",
    "ServiceUnavailable": "The service is temporarily unavailable.",
    "ResourceLimitExceeded": (
        "The account-level service limit '{machine} for training job usage' is 0 Instances, with current utilization"
        " of 0 Instances and a request delta of {count} Instances. Please use AWS Service Quotas to request an"
        " increase for this quota."
    ),
}


class Failure(Exception):
    """An error that SageMaker answers."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def invalid(message: str) -> Failure:
    return Failure("ValidationException", message)


def missing() -> Failure:
    """As SageMaker tells of a training job that it does not know: no code of its own."""
    return invalid("Requested resource not found.")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. Empty fields match everything; `code` is empty where only the reply is lost.

    `machine` and `spot` are matched against what a training job asks for. It ends after `times` calls, after `for_s`
    seconds, or when it is cleared.
    """

    code: str = ""
    operations: tuple[str, ...] = ()
    machine: str = ""
    spot: bool | None = None
    times: int | None = None
    for_s: float | None = None
    message: str = ""
    # The call happens, and the client sees its connection break.
    lose_reply: bool = False

    def failure(self, machine: str, count: int) -> Failure:
        """What the caller is told."""
        told = self.message or _MESSAGES.get(self.code, f"injected: {self.code}")
        return Failure(self.code, told.replace("{machine}", machine).replace("{count}", str(count)), self._status)

    @property
    def _status(self) -> int:
        return _STATUS.get(self.code, 400)


class Faults(FaultBook[Fault]):
    """The faults in force, what meets them, and the ones that tests want most."""

    def meet(self, operation: str, machine: str, spot: bool) -> Fault | None:
        """The first fault that such a call meets. Counts as one of its `times`."""
        with self._lock:
            for number, fault in self._in_force():
                if fault.operations and operation not in fault.operations:
                    continue
                if (fault.machine and fault.machine != machine) or (fault.spot is not None and fault.spot != spot):
                    continue
                self._use(number)
                return fault
        return None

    def limit(self, machine: str = "", *, spot: bool | None = None, times: int | None = None) -> int:
        """CreateTrainingJob is refused with ResourceLimitExceeded."""
        return self.add(Fault("ResourceLimitExceeded", ("CreateTrainingJob",), machine, spot, times))

    def throttle(self, *operations: str, times: int | None = None) -> int:
        """ThrottlingException for these operations, or for all."""
        return self.add(Fault("ThrottlingException", operations, times=times))

    def unauthorized(self, *operations: str, times: int | None = None) -> int:
        """AccessDeniedException for these operations, or for all."""
        return self.add(Fault("AccessDeniedException", operations, times=times))

    def internal_error(self, *operations: str, for_s: float | None = None, times: int | None = None) -> int:
        """HTTP 500 for these operations, or for all."""
        return self.add(Fault("InternalFailure", operations, times=times, for_s=for_s))

    def lose_replies(self, *operations: str, times: int | None = 1) -> int:
        """The call happens; its client sees the connection break."""
        return self.add(Fault(operations=operations, times=times, lose_reply=True))
