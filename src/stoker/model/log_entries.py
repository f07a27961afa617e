"""The entries of a job's log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from stoker.model.offerings import Offering

# Version of the protocol that this code writes and decides on. Entries carry the version a governor must have.
PROTOCOL_VERSION = 1


Outcome = Literal["succeeded", "failed", "stopped"]


Phase = Literal["queued", "launching", "running", "stopping", "succeeded", "failed", "stopped"]


@dataclass(frozen=True)
class NodeRef:
    """A node of an attempt, by the provider's name for it."""

    rank: int
    instance: str


AttemptOutcome = Literal[
    "succeeded",  # every rank finished
    "reclaimed",  # the cloud took it back, with or without notice
    "lost",  # positively gone, nobody said why
    "infrastructure",  # hardware, network, disk or agent; not the user's fault
    "failed",  # the user's script failed
    "stopped",  # a person asked
    "limit",  # a bound was reached
    "dry",  # no capacity: never got its machines
    "refused",  # quota, permission or an impossible request: never got its machines
    "abandoned",  # never launched, or too late to launch
]


@dataclass(frozen=True)
class Waste:
    """Seconds of an attempt that led nowhere, by its agents' monotonic clocks. None is what nobody knows."""

    # Waited to be allowed to train, while the attempt before it left.
    waited_s: float = 0.0
    # Trained while all of its accelerators were idle; of several nodes, the mean.
    idle_s: float | None = None
    # Trained since the last durable checkpoint: what the next attempt does again.
    lost_s: float | None = None


@dataclass(frozen=True)
class Submitted:
    """Opens the log. Digests pin what nodes may run: the code is checked against this entry."""

    kind: ClassVar[str] = "submitted"
    spec_digest: str
    submitter: str
    code_digest: str | None = None


@dataclass(frozen=True)
class Claimed:
    """This job will now be launched on this offering. Its sequence number is fence, tag and launch token."""

    kind: ClassVar[str] = "claimed"
    offering: Offering
    nodes: int
    # The noticed claim this one takes over from, while that one still saves.
    successor_of: int | None = None


@dataclass(frozen=True)
class Launched:
    """The machines of a claim. Instances of the claim that are not named here are nobody's, and are ended."""

    kind: ClassVar[str] = "launched"
    claim: int
    nodes: tuple[NodeRef, ...]


@dataclass(frozen=True)
class Suspected:
    """A node fell silent: its heartbeat had this ETag. Only the first of two steps."""

    kind: ClassVar[str] = "suspected"
    claim: int
    rank: int
    etag: str


@dataclass(frozen=True)
class Draining:
    """Asks every rank of the claim to save and exit. `outcome` is how the claim will be closed."""

    kind: ClassVar[str] = "draining"
    claim: int
    outcome: AttemptOutcome
    rule: str


@dataclass(frozen=True)
class Closed:
    """The claim trains no more, ever. Rests only on facts that cannot reverse."""

    kind: ClassVar[str] = "closed"
    claim: int
    outcome: AttemptOutcome
    rule: str
    # Whether another attempt may follow, and whether this one counts against `retry.user_errors`.
    restart: bool = False
    counted: bool = False
    # What is worth keeping of the facts, so that a verdict needs the log alone.
    trained_s: float = 0.0
    step: int | None = None
    restored_from: str | None = None
    checkpoint: str | None = None
    # The highest step that is in its checkpoints, where they tell one.
    saved_step: int | None = None
    # Reported or saved a step beyond those of all attempts before it; where nobody tells steps, saved anything.
    progressed: bool = False
    # Failed before it made any progress, soon after its start.
    at_startup: bool = False
    # Made progress on what it restored: a step beyond it, steps that rose, or a commit of its own.
    loaded: bool = False
    # Ended by the script's own doing before any such progress: what it restored may be to blame.
    suspects_checkpoint: bool = False
    exit_code: int | None = None
    tail: tuple[str, ...] = ()
    waste: Waste | None = None
    # How long its machines may be held for a look, where it ends the job and the spec asks for that.
    hold_s: float | None = None


@dataclass(frozen=True)
class StopAsked:
    """A person wants the job to end: save, then stop."""

    kind: ClassVar[str] = "stop"
    by: str


@dataclass(frozen=True)
class ResumeAsked:
    """A person wants an ended job to go on: the same job, next attempt."""

    kind: ClassVar[str] = "resume"
    by: str
    # The key of the checkpoint to go on from, where a person chose one.
    checkpoint: str | None = None


@dataclass(frozen=True)
class RemovalAsked:
    """A person wants an ended job to be deleted. It is not resumed after this: the log decides which came first."""

    kind: ClassVar[str] = "removal"
    by: str


@dataclass(frozen=True)
class Warned:
    """Told once. `code` keeps it from being told again. `evidence`: agents collect what the training is doing now."""

    kind: ClassVar[str] = "warned"
    code: str
    evidence: bool = False


@dataclass(frozen=True)
class Ended:
    """The job is over. `claim` is the one whose outputs count.

    A verdict that ends the job closes its claim in this same entry (`closing`): between a `closed` and an `ended`, an
    attempt that waits would be allowed to train.
    """

    kind: ClassVar[str] = "ended"
    outcome: Outcome
    rule: str
    claim: int | None = None
    exit_code: int | None = None
    closing: Closed | None = None


@dataclass(frozen=True)
class Opaque:
    """An entry a newer Stoker wrote. This one can show the job, and must not decide on it."""

    kind: ClassVar[str] = "opaque"
    name: str


Event = (
    Submitted
    | Claimed
    | Launched
    | Suspected
    | Draining
    | Closed
    | StopAsked
    | ResumeAsked
    | RemovalAsked
    | Warned
    | Ended
    | Opaque
)


@dataclass(frozen=True)
class Record:
    """One object of the log, as it is written. `token` tells my write from a rival's when a reply is lost."""

    token: str
    by: str
    reason: str
    event: Event
    version: int = PROTOCOL_VERSION
    min_version: int = PROTOCOL_VERSION
    # The digest of the rules of the house by which it was decided; empty where there were none.
    policy: str = ""


@dataclass(frozen=True)
class Entry:
    """A record with its place in the log and the store's time of writing."""

    seq: int
    at: datetime
    reason: str
    event: Event
    by: str = ""
    min_version: int = PROTOCOL_VERSION
    policy: str = ""
