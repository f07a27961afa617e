"""Operations: what was asked for and takes a while. They are remembered as long as the cloud lives."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from tests.support.gce.errors import Failure, Json, OperationFailed, bad_request
from tests.support.gce.links import Links

# Google writes the time of its home, whatever the season here.
_HOME = timezone(timedelta(hours=-7))

# The longest that `wait` waits.
_WAIT_S = 110.0


def now() -> datetime:
    """The time, as Google writes it."""
    return datetime.now(_HOME)


def stamp(when: datetime) -> str:
    """A time as Google writes it."""
    return when.isoformat(timespec="milliseconds")


class Numbers:
    """Ids of things. None is given out twice, and later ones are not larger."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: set[str] = set()

    def new(self) -> str:
        while True:
            found = str(10**18 + secrets.randbelow(8 * 10**18))
            with self._lock:
                if found not in self._given:
                    self._given.add(found)
                    return found


@dataclass
class Operation:
    """One operation. `place` is "zones/Z", "regions/R" or "global"; `target` is "projects/…"."""

    id: str
    name: str
    project: str
    place: str
    kind: str
    target: str
    target_id: str
    user: str
    request_id: str = ""
    group: str = ""
    inserted: datetime = field(default_factory=now)
    started: datetime | None = None
    ended: datetime | None = None
    status_message: str = ""
    failed: OperationFailed | None = None
    per_location: Json | None = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def status(self) -> str:
        if self.done.is_set():
            return "DONE"
        return "PENDING" if self.started is None else "RUNNING"

    @property
    def path(self) -> str:
        return f"projects/{self.project}/{self.place}/operations/{self.name}"

    def resource(self, links: Links) -> Json:
        """It as Google tells it now."""
        status = self.status
        found: Json = {
            "kind": "compute#operation",
            "id": self.id,
            "name": self.name,
            "operationType": self.kind,
            "targetLink": links.to(self.target),
            "status": status,
            "user": self.user,
            "progress": {"PENDING": 0, "RUNNING": 50, "DONE": 100}[status],
            "insertTime": stamp(self.inserted),
            "selfLink": links.to(self.path),
        }
        where, _, place = self.place.partition("/")
        if place:
            found["zone" if where == "zones" else "region"] = links.to(f"projects/{self.project}/{self.place}")
        more = {
            "targetId": self.target_id,
            "clientOperationId": self.request_id,
            "operationGroupId": self.group,
            "statusMessage": self.status_message,
        }
        found |= {name: value for name, value in more.items() if value}
        if self.started is not None:
            found["startTime"] = stamp(self.started)
        if self.per_location is not None:
            found["instancesBulkInsertOperationMetadata"] = {"perLocationStatus": self.per_location}
        if status == "DONE":
            found["endTime"] = stamp(self.ended or now())
            if self.failed is not None:
                found["error"] = {"errors": self.failed.errors}
                found["httpErrorStatusCode"] = self.failed.status
                found["httpErrorMessage"] = self.failed.message
        return found


class Operations:
    """All operations there were. Each takes at least `takes_s`. Safe to use from many threads."""

    def __init__(self, numbers: Numbers, takes_s: float) -> None:
        self.takes_s = takes_s
        self._numbers = numbers
        self._lock = threading.Lock()
        self._all: dict[str, Operation] = {}
        self._asked: dict[tuple[str, str], tuple[str, Operation]] = {}

    def begin(
        self,
        operation: Operation,
        work: Callable[[Operation], None],
        *,
        slow_s: float = 0.0,
    ) -> Operation:
        """Do `work` in a while, in a thread. It may raise OperationFailed."""
        with self._lock:
            self._all[operation.name] = operation
        takes_s = self.takes_s + slow_s

        def run() -> None:
            time.sleep(takes_s / 2)
            operation.started = now()
            time.sleep(takes_s / 2)
            try:
                work(operation)
            except OperationFailed as failed:
                operation.failed = failed
            except Exception as error:  # whoever waits for it must be told
                told = {"code": "INTERNAL_ERROR", "message": f"Internal error: {error!r}"}
                operation.failed = OperationFailed([told], 500, "INTERNAL SERVER ERROR")
                raise
            finally:
                operation.ended = now()
                operation.done.set()

        threading.Thread(target=run, daemon=True).start()
        return operation

    def new(
        self, project: str, place: str, kind: str, target: str, target_id: str, user: str, group: str = ""
    ) -> Operation:
        """An operation that was not begun yet."""
        number = self._numbers.new()
        name = f"operation-{int(time.time() * 1000)}-{secrets.token_hex(6)}-{secrets.token_hex(4)}-{number[-8:]}"
        return Operation(number, name, project, place, kind, target, target_id, user, group=group)

    def record(self, project: str, place: str, kind: str, target: str, target_id: str, message: str) -> None:
        """Something that Compute Engine did by itself."""
        operation = self.new(project, place, kind, target, target_id, "system")
        operation.name = operation.name.replace("operation-", "systemevent-")
        operation.started = operation.ended = operation.inserted
        operation.status_message = message
        operation.done.set()
        with self._lock:
            self._all[operation.name] = operation

    def asked_before(self, project: str, request_id: str, fingerprint: str) -> Operation | None:
        """The operation that this request led to already. Raises Failure where the id was used for another request."""
        with self._lock:
            known = self._asked.get((project, request_id))
        if known is None:
            return None
        if known[0] != fingerprint:
            raise bad_request(
                f"Invalid value for field 'requestId': '{request_id}'. It was used for another request.", "invalid"
            )
        return known[1]

    def remember(self, project: str, request_id: str, fingerprint: str, operation: Operation) -> None:
        operation.request_id = request_id
        with self._lock:
            self._asked[project, request_id] = (fingerprint, operation)

    def find(self, project: str, place: str, name: str) -> Operation:
        """By its name or its number. Raises Failure (404)."""
        with self._lock:
            for operation in self._all.values():
                here = (operation.project, operation.place) == (project, place)
                if here and name in (operation.name, operation.id):
                    return operation
        raise Failure(404, "notFound", f"The resource 'projects/{project}/{place}/operations/{name}' was not found")

    def wait(self, operation: Operation) -> None:
        """Return when it is done, or after the while that Google waits."""
        operation.done.wait(timeout=_WAIT_S)

    def all(self, project: str) -> list[Operation]:
        with self._lock:
            return [operation for operation in self._all.values() if operation.project == project]
