"""A training job that others started, and its clones: one family, with one log. Pure.

The log is append-only, as a job's is. It holds only what Stoker did or means to do, and why; how the jobs are is asked
of SageMaker each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar, Literal

# What follows a stop: nothing, a clone as it was, or one without spot.
After = Literal["", "restart", "on-demand"]


@dataclass(frozen=True)
class Seen:
    """The first look at a training job of the family. `in_progress`: it was not over by then."""

    kind: ClassVar[str] = "seen"
    job: str
    in_progress: bool
    created_at: datetime | None = None


@dataclass(frozen=True)
class Told:
    """A rule is broken, and nothing happens but that it is said. `code` keeps it from being said again."""

    kind: ClassVar[str] = "told"
    job: str
    rule: str
    code: str


@dataclass(frozen=True)
class Stopping:
    """It is asked to stop, for this rule; and what follows."""

    kind: ClassVar[str] = "stopping"
    job: str
    rule: str
    after: After = ""


@dataclass(frozen=True)
class Heard:
    """SageMaker took the request to stop it so that it goes on: it did not end by another's word."""

    kind: ClassVar[str] = "heard"
    job: str


@dataclass(frozen=True)
class Unheard:
    """SageMaker did not answer the request to stop it so that it goes on. Should it end now, it may be by anybody's."""

    kind: ClassVar[str] = "unheard"
    job: str


@dataclass(frozen=True)
class Relented:
    """It was to be stopped, was not yet, and no rule wants it any more. However it ends now is its own affair."""

    kind: ClassVar[str] = "relented"
    job: str


@dataclass(frozen=True)
class Cloning:
    """A clone will be made under this name: written before SageMaker is asked, so that anybody can finish it."""

    kind: ClassVar[str] = "cloning"
    of: str
    name: str
    number: int
    rule: str
    spot: bool


@dataclass(frozen=True)
class Cloned:
    """SageMaker has it."""

    kind: ClassVar[str] = "cloned"
    of: str
    name: str


@dataclass(frozen=True)
class GaveUp:
    """It is over, and will not go on. `meant`: it was said that it would."""

    kind: ClassVar[str] = "gave-up"
    job: str
    rule: str
    meant: bool = False


@dataclass(frozen=True)
class Over:
    """How a training job ended, and what of it counts for the family."""

    kind: ClassVar[str] = "over"
    job: str
    status: str
    trained_s: float = 0.0
    cost: float | None = None
    interruptions: int = 0


FamilyEvent = Seen | Told | Stopping | Heard | Unheard | Relented | Cloning | Cloned | GaveUp | Over


@dataclass(frozen=True)
class FamilyRecord:
    """One object of the log, as it is written. See `model.Record`."""

    token: str
    by: str
    reason: str
    event: FamilyEvent
    # The digest of the rules by which it was decided.
    policy: str = ""
    version: int = 1


@dataclass(frozen=True)
class FamilyEntry:
    """A record with its place in the log and the store's time of writing."""

    seq: int
    at: datetime
    record: FamilyRecord


@dataclass(frozen=True)
class Family:
    """What a log comes to. Of two entries about the same thing the first counts. Nothing that was done about a job
    counts for a later one of its name."""

    origin: str
    seq: int = 0
    seen: dict[str, Seen] = field(default_factory=dict)
    told: frozenset[tuple[str, str]] = frozenset()
    stops: dict[str, Stopping] = field(default_factory=dict)
    # When that was written, by the store's clock.
    stops_at: dict[str, datetime] = field(default_factory=dict)
    # Those that SageMaker has taken.
    heard: frozenset[str] = frozenset()
    # Those that it did not answer, whether it has them or not.
    unheard: frozenset[str] = frozenset()
    # By what they are clones of.
    clones: dict[str, Cloning] = field(default_factory=dict)
    made: frozenset[str] = frozenset()
    gave_up: dict[str, GaveUp] = field(default_factory=dict)
    over: dict[str, Over] = field(default_factory=dict)

    def holds(self, job: str) -> bool:
        """Whether this training job is of the family: the origin, or one that the log names."""
        return job == self.origin or any(clone.name == job for clone in self.clones.values())

    def is_another(self, job: str, created_at: datetime | None) -> bool:
        """Whether this is not the origin that the log tells of, but a later one: names may be used again."""
        seen = self.seen.get(job)
        if job != self.origin or seen is None or seen.created_at is None or created_at is None:
            return False
        return abs((created_at - seen.created_at).total_seconds()) >= 1

    def others(self, job: str) -> tuple[Over, ...]:
        """Those of the family that are over, but for this one."""
        return tuple(over for name, over in self.over.items() if name != job)


def fold(origin: str, entries: Iterable[FamilyEntry], state: Family | None = None) -> Family:
    """What the entries come to, from `state` on."""
    family = state or Family(origin)
    for entry in entries:
        family = replace(_with(family, entry.record.event, entry.at), seq=entry.seq)
    return family


def _with(family: Family, event: FamilyEvent, at: datetime) -> Family:
    match event:
        case Seen():
            if family.is_another(event.job, event.created_at):
                return Family(family.origin, seen={event.job: event})
            return replace(family, seen={event.job: event, **family.seen})
        case Told():
            return replace(family, told=family.told | {(event.job, event.code)})
        case Stopping():
            stops_at = {event.job: at, **family.stops_at}
            return replace(family, stops={event.job: event, **family.stops}, stops_at=stops_at)
        case Heard():
            return replace(family, heard=family.heard | {event.job})
        case Unheard():
            return replace(family, unheard=family.unheard | {event.job})
        case Relented():
            kept = {job: stop for job, stop in family.stops.items() if job != event.job}
            stops_at = {job: family.stops_at[job] for job in kept}
            return replace(family, stops=kept, stops_at=stops_at, unheard=family.unheard - {event.job})
        case Cloning():
            return replace(family, clones={event.of: event, **family.clones})
        case Cloned():
            return replace(family, made=family.made | {event.name})
        case GaveUp():
            return replace(family, gave_up={event.job: event, **family.gave_up})
        case Over():
            return replace(family, over={event.job: event, **family.over})
