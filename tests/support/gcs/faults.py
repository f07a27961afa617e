"""What a test can make go wrong with the fake Cloud Storage."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.fault_book import FaultBook


@dataclass(frozen=True)
class Fault:
    """What befalls a request of one of these methods (none named: of any) for a name that begins so.

    `status` is answered instead, or the reply is lost after all was done; so often, or for so long, or until cleared.
    """

    status: int = 500
    code: str = "InternalError"
    methods: tuple[str, ...] = ()
    prefix: str = ""
    times: int | None = None
    for_s: float | None = None
    lose_reply: bool = False


class Faults(FaultBook[Fault]):
    """Those that are set, and what meets them."""

    def meet(self, method: str, name: str) -> Fault | None:
        """The first that this request runs into; it counts as met."""
        with self._lock:
            for number, fault in self._in_force():
                if name.startswith(fault.prefix) and (not fault.methods or method in fault.methods):
                    self._use(number)
                    return fault
        return None
