"""The clone chain of an external training job: the job itself, called the origin, and its clones, with one log. Pure.

The log is append-only, like a job's. It holds only what Stoker did or intends to do, and why; the state of the training
jobs is read from SageMaker each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar, Literal

# The step after a stop: none, a clone with the same request, or a clone without spot.
After = Literal["", "restart", "on-demand"]


@dataclass(frozen=True)
class JobSeen:
    """A training job of the chain was observed for the first time. `in_progress`: it had not ended by then."""

    kind: ClassVar[str] = "seen"
    job: str
    in_progress: bool
    created_at: datetime | None = None


@dataclass(frozen=True)
class RuleWarning:
    """A rule is broken, and only a warning follows. `code` identifies the warning, so that it is given once."""

    kind: ClassVar[str] = "warned"
    job: str
    rule: str
    code: str


@dataclass(frozen=True)
class Stopping:
    """SageMaker will be asked to stop the job, by this rule. Written before the request. `after` is the next step."""

    kind: ClassVar[str] = "stopping"
    job: str
    rule: str
    after: After = ""


@dataclass(frozen=True)
class StopAccepted:
    """SageMaker accepted the request to stop a job that is to be cloned: so its owner did not stop it."""

    kind: ClassVar[str] = "stop-accepted"
    job: str


@dataclass(frozen=True)
class StopUnanswered:
    """SageMaker did not confirm the request to stop a job that is to be cloned: if the job ends now, its owner may have
    stopped it."""

    kind: ClassVar[str] = "stop-unanswered"
    job: str


@dataclass(frozen=True)
class StopCancelled:
    """An intended stop has not happened, and no rule wants it any more. The job's end is not attributed to it."""

    kind: ClassVar[str] = "stop-cancelled"
    job: str


@dataclass(frozen=True)
class Cloning:
    """A clone will be created under this name. Written before the request, so that any governor can finish it."""

    kind: ClassVar[str] = "cloning"
    of: str
    name: str
    number: int
    rule: str
    spot: bool


@dataclass(frozen=True)
class Cloned:
    """SageMaker has the clone."""

    kind: ClassVar[str] = "cloned"
    of: str
    name: str


@dataclass(frozen=True)
class GaveUp:
    """The job has ended, and will not be cloned. `meant`: a clone was intended before."""

    kind: ClassVar[str] = "gave-up"
    job: str
    rule: str
    meant: bool = False


@dataclass(frozen=True)
class JobEnded:
    """A training job has ended, with its totals for the chain."""

    kind: ClassVar[str] = "ended"
    job: str
    status: str
    trained_s: float = 0.0
    cost: float | None = None
    interruptions: int = 0


ChainEvent = (
    JobSeen
    | RuleWarning
    | Stopping
    | StopAccepted
    | StopUnanswered
    | StopCancelled
    | Cloning
    | Cloned
    | GaveUp
    | JobEnded
)


@dataclass(frozen=True)
class ChainRecord:
    """One object of the log, as it is written. See `stoker.model.log_entries.Record`."""

    token: str
    by: str
    reason: str
    event: ChainEvent
    # The digest of the policy by which it was decided.
    policy: str = ""
    version: int = 1


@dataclass(frozen=True)
class ChainEntry:
    """A record with its place in the log and the store's time of writing."""

    seq: int
    at: datetime
    record: ChainRecord


@dataclass(frozen=True)
class CloneChain:
    """The state of a clone chain, folded from its log. Of two entries about the same thing the first counts. An entry
    about a job does not count for a later job that reuses its name."""

    origin: str
    seq: int = 0
    seen: dict[str, JobSeen] = field(default_factory=dict)
    # Warnings that were given, as job and code.
    warned: frozenset[tuple[str, str]] = frozenset()
    # Intended stops by job, and when each was written, by the store's clock.
    stops: dict[str, Stopping] = field(default_factory=dict)
    stops_at: dict[str, datetime] = field(default_factory=dict)
    # Jobs whose stop SageMaker has accepted, and jobs whose stop it has not confirmed.
    accepted_stops: frozenset[str] = frozenset()
    unanswered_stops: frozenset[str] = frozenset()
    # Intended clones, by the job that they clone; and the names of those that exist.
    clones: dict[str, Cloning] = field(default_factory=dict)
    made: frozenset[str] = frozenset()
    gave_up: dict[str, GaveUp] = field(default_factory=dict)
    ended: dict[str, JobEnded] = field(default_factory=dict)

    def holds(self, job: str) -> bool:
        """Return whether this training job is in the chain: the origin, or a clone that the log names."""
        return job == self.origin or any(clone.name == job for clone in self.clones.values())

    def is_another(self, job: str, created_at: datetime | None) -> bool:
        """Return whether this is a later job with the origin's name: SageMaker's names may be used again."""
        seen = self.seen.get(job)
        if job != self.origin or seen is None or seen.created_at is None or created_at is None:
            return False
        return abs((created_at - seen.created_at).total_seconds()) >= 1

    def others(self, job: str) -> tuple[JobEnded, ...]:
        """The ended jobs of the chain, without this one."""
        return tuple(ended for name, ended in self.ended.items() if name != job)


def fold(origin: str, entries: Iterable[ChainEntry], state: CloneChain | None = None) -> CloneChain:
    """Fold the entries into a state, starting from `state`."""
    chain = state or CloneChain(origin)
    for entry in entries:
        chain = replace(_with(chain, entry.record.event, entry.at), seq=entry.seq)
    return chain


def _with(chain: CloneChain, event: ChainEvent, at: datetime) -> CloneChain:
    match event:
        case JobSeen():
            if chain.is_another(event.job, event.created_at):
                return CloneChain(chain.origin, seen={event.job: event})
            return replace(chain, seen={event.job: event, **chain.seen})
        case RuleWarning():
            return replace(chain, warned=chain.warned | {(event.job, event.code)})
        case Stopping():
            stops_at = {event.job: at, **chain.stops_at}
            return replace(chain, stops={event.job: event, **chain.stops}, stops_at=stops_at)
        case StopAccepted():
            return replace(chain, accepted_stops=chain.accepted_stops | {event.job})
        case StopUnanswered():
            return replace(chain, unanswered_stops=chain.unanswered_stops | {event.job})
        case StopCancelled():
            stops = {job: stop for job, stop in chain.stops.items() if job != event.job}
            stops_at = {job: chain.stops_at[job] for job in stops}
            return replace(chain, stops=stops, stops_at=stops_at, unanswered_stops=chain.unanswered_stops - {event.job})
        case Cloning():
            return replace(chain, clones={event.of: event, **chain.clones})
        case Cloned():
            return replace(chain, made=chain.made | {event.name})
        case GaveUp():
            return replace(chain, gave_up={event.job: event, **chain.gave_up})
        case JobEnded():
            return replace(chain, ended={event.job: event, **chain.ended})
