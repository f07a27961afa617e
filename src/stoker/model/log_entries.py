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
    "lost",  # positively gone, for an unknown reason
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
    """Wasted seconds of an attempt, by its agents' monotonic clocks. None: unknown."""

    # Waited for permission to train, while the attempt before it left.
    waited_s: float = 0.0
    # Trained with all accelerators idle; the mean over several nodes.
    idle_s: float | None = None
    # Trained since the last durable checkpoint: the next attempt repeats it.
    lost_s: float | None = None


@dataclass(frozen=True)
class Submitted:
    """The first entry. Its digests pin what nodes may run: the code is checked against this entry."""

    kind: ClassVar[str] = "submitted"
    spec_digest: str
    submitter: str
    code_digest: str | None = None


@dataclass(frozen=True)
class Claimed:
    """The job is about to be launched on this offering. The entry's number serves as fence, tag and launch token."""

    kind: ClassVar[str] = "claimed"
    offering: Offering
    nodes: int
    # The claim with a notice that this one replaces, while that one still saves.
    successor_of: int | None = None


@dataclass(frozen=True)
class Launched:
    """The machines of a claim. Instances of the claim that are not named here are terminated."""

    kind: ClassVar[str] = "launched"
    claim: int
    nodes: tuple[NodeRef, ...]


@dataclass(frozen=True)
class Suspected:
    """A node's heartbeat is overdue and had this ETag. The first of two steps towards its termination."""

    kind: ClassVar[str] = "suspected"
    claim: int
    rank: int
    etag: str


@dataclass(frozen=True)
class Draining:
    """Asks every rank of the claim to save and exit. The claim will be closed with `outcome`."""

    kind: ClassVar[str] = "draining"
    claim: int
    outcome: AttemptOutcome
    rule: str


@dataclass(frozen=True)
class Closed:
    """The claim never trains again. Rests only on facts that cannot reverse."""

    kind: ClassVar[str] = "closed"
    claim: int
    outcome: AttemptOutcome
    rule: str
    # `restart`: another attempt may follow. `counted`: this one counts against `retry.user_errors`.
    restart: bool = False
    counted: bool = False
    # A digest of the facts, so that later verdicts need the log alone.
    trained_s: float = 0.0
    step: int | None = None
    restored_from: str | None = None
    checkpoint: str | None = None
    # The highest step in its checkpoints, if they record steps.
    saved_step: int | None = None
    # It reported or saved a higher step than all attempts before it; without any steps, it saved a checkpoint.
    progressed: bool = False
    # It failed soon after its start, without progress.
    at_startup: bool = False
    # It made progress from its restored checkpoint: a higher step, rising steps, or a commit of its own.
    loaded: bool = False
    # The script itself failed before such progress: its restored checkpoint may be bad.
    suspects_checkpoint: bool = False
    exit_code: int | None = None
    tail: tuple[str, ...] = ()
    waste: Waste | None = None
    # How long its machines may be held, if it ends the job and the spec asks for a hold.
    hold_s: float | None = None


@dataclass(frozen=True)
class StopAsked:
    """A person asks the job to save, then stop."""

    kind: ClassVar[str] = "stop"
    by: str


@dataclass(frozen=True)
class ResumeAsked:
    """A person resumes an ended job: the same job, next attempt."""

    kind: ClassVar[str] = "resume"
    by: str
    # The key of the checkpoint to resume from, if a person chose one.
    checkpoint: str | None = None


@dataclass(frozen=True)
class RemovalAsked:
    """A person deletes an ended job. It cannot be resumed after this: the order in the log decides."""

    kind: ClassVar[str] = "removal"
    by: str


@dataclass(frozen=True)
class Warned:
    """A warning, written once; `code` prevents a second one. `evidence`: agents collect what the training is doing."""

    kind: ClassVar[str] = "warned"
    code: str
    evidence: bool = False


@dataclass(frozen=True)
class Ended:
    """The end of the job. `claim` is the one whose outputs count.

    A verdict that ends the job closes its claim in this same entry (`closing`): between separate `closed` and `ended`
    entries a waiting attempt would be allowed to train.
    """

    kind: ClassVar[str] = "ended"
    outcome: Outcome
    rule: str
    claim: int | None = None
    exit_code: int | None = None
    closing: Closed | None = None


@dataclass(frozen=True)
class Opaque:
    """An entry of an unknown kind, written by a newer Stoker. This version may show the job, and must not decide on
    it."""

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
    """One object of the log, as it is written. `token` identifies the writer's own entry when a reply is lost."""

    token: str
    by: str
    reason: str
    event: Event
    version: int = PROTOCOL_VERSION
    min_version: int = PROTOCOL_VERSION
    # Digest of the policy by which it was decided; empty without a policy.
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
