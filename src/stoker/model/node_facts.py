"""Facts that agents write to the store: heartbeats, notices, exits and checkpoint manifests."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from stoker.model.log_entries import Waste
from stoker.model.observed import Observed, Stamped

AgentPhase = Literal["booting", "setup", "waiting", "restoring", "training", "saving", "flushing", "held"]


@dataclass(frozen=True)
class GpuUsage:
    """One accelerator. None is what could not be read, never idle."""

    index: int
    name: str
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None


@dataclass(frozen=True)
class Usage:
    """A sample of the node. CPU is percent of one core; the rest are bytes."""

    cpu_percent: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    disk_free: int | None = None
    gpus: tuple[GpuUsage, ...] = ()


@dataclass(frozen=True)
class Series:
    """What accelerators did lately: their mean utilisation in periods of equal length, the newest last.

    `data` is base64, a byte for each period of each of the `devices`, device after device: half percents, and 255 for
    what could not be read, which is not idle.
    """

    period_s: float
    devices: int
    data: str


@dataclass(frozen=True)
class Activity:
    """What a training, or what comes before it, did lately. Ages are by its agent's monotonic clock, when the heartbeat
    was written."""

    # Since its step changed or its log grew, whatever came last; since it was started where neither ever did.
    silent_s: float
    # The share of its time in which its processors, disks or network were at work; empty where that cannot be seen.
    work: tuple[Series, ...] = ()
    # Fine and short, coarse and long. Empty where there is no accelerator.
    utilization: tuple[Series, ...] = ()
    # Accelerators that are there; those that nobody can read are among them.
    devices: int = 0
    # It waits for another node, before its training: it need do nothing.
    waits: bool = False
    # Since its step last changed; None where it never reported one. And the longest time between two of its steps.
    stepped_s: float | None = None
    longest_step_s: float = 0.0
    # It has reported a single step so far: what makes all others may still be compiled.
    first_step: bool = False
    # Since its checkpoint folder last changed or was being sent; None where that never was.
    saving_s: float | None = None
    # For how long a process of it has been stopped, or traced by a debugger; None where none is. And how long ago the
    # last such session ended. The other ages do not count the time in a debugger.
    debugged_s: float | None = None
    released_s: float | None = None


@dataclass(frozen=True)
class Trend:
    """The best that a metric has been in this attempt, both ways, and how long ago, by its agent's clock."""

    low: float
    low_s: float
    high: float
    high_s: float


@dataclass(frozen=True)
class CheckpointRef:
    """A committed checkpoint, by its place and name: `00000007/000002-step-900`."""

    key: str
    name: str
    step: int | None = None
    committed_at: datetime | None = None
    # False: what its attempt restored, with no more than small additions, such as a log that a script begins.
    is_save: bool = True


@dataclass(frozen=True)
class Rendezvous:
    """What rank 0 tells the others: who they are, what to restore, and when to start.

    A round is one proposal. Ranks acknowledge the round; when all did, rank 0 repeats it with `go`.
    """

    round: int
    addresses: tuple[str, ...]
    port: int
    checkpoint: str | None = None
    go: bool = False


@dataclass(frozen=True)
class Ack:
    """A rank's answer to a round: it has restored and verified what was proposed, or could not."""

    round: int
    ok: bool
    error: str = ""


@dataclass(frozen=True)
class Heartbeat:
    """The node's present state in one object, overwritten. Its ETag changes as long as the agent lives."""

    beat: int
    phase: AgentPhase
    at: datetime
    interval_s: float
    trained_s: float = 0.0
    # When this agent started the training, by its own clock. For people only.
    training_since: datetime | None = None
    address: str | None = None
    step: int | None = None
    # First step reported by this attempt.
    first_step: int | None = None
    restored_from: str | None = None
    # The step that was restored, where its checkpoint tells one.
    restored_step: int | None = None
    checkpoint: CheckpointRef | None = None
    # Recent files outside of the checkpoint folder that look like saves, where nothing was committed.
    saves_elsewhere: tuple[str, ...] = ()
    # Files in the checkpoint folder, and bytes of it that are not durable yet.
    checkpoint_files: int = 0
    unsynced_bytes: int = 0
    usage: Usage | None = None
    activity: Activity | None = None
    waste: Waste | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    trends: dict[str, Trend] = field(default_factory=dict)
    # What evidence was collected for, by the codes of warnings.
    evidence: tuple[str, ...] = ()
    rendezvous: Rendezvous | None = None
    ack: Ack | None = None
    # The very image of its container: `repository@sha256:…`, or what this machine's engine knows it by.
    image: str | None = None
    # Things a person should know: a store that is down, a disk that fills.
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageFact:
    """The image that the name in the spec meant when a node first had it. Later attempts take the same one."""

    name: str
    id: str
    # `repository@sha256:…`; None for one that no registry knows.
    digest: str | None = None


@dataclass(frozen=True)
class NoticeFact:
    """Word that this node will be reclaimed. Hard notices are final; soft ones only ask for a save."""

    hard: bool
    source: str
    at: datetime
    grace_s: float


ExitOutcome = Literal["succeeded", "interrupted", "failed", "infrastructure"]


ExitWhy = Literal[
    "finished",  # the command ended by itself
    "notice",  # a hard notice
    "peer",  # another rank of the gang left
    "stop",  # a person asked
    "drain",  # the governor asked
    "limit",  # the machine's own bound on time
    "closed",  # the claim was closed or the job ended
    "waited",  # waited longer than `wait_limit` to be allowed to train
    "boot",  # the machine could not start an agent; told by its boot, or by its console
    "setup",  # fetching code or inputs, or the set-up commands, failed
    "restore",  # no checkpoint could be restored although one was agreed on
    "agent",  # the agent crashed or was killed; a restarted agent flushed what was there
]


@dataclass(frozen=True)
class SaveTimes:
    """How a notice went, in seconds after it arrived, by one agent's monotonic clock."""

    saved_s: float | None = None
    durable_s: float | None = None
    ended_s: float | None = None
    grace_s: float | None = None
    # Checkpoints that this node committed after the notice; None where that is not known.
    commits: int | None = None


# `machine`: what no script can help. `peer`: it tells of another process's end, or of nothing but silence from it.
Blame = Literal["machine", "peer", "script"]


@dataclass(frozen=True)
class FailureCause:
    """What the end of a log says about a failure, and the line that says it."""

    name: str
    blame: Blame
    line: str


@dataclass(frozen=True)
class LeftOutput:
    """A file that is not among the outputs, and why."""

    path: str
    size: int
    why: str


@dataclass(frozen=True)
class KeptOutputs:
    """What of one node, or one attempt, is in the store as outputs, and what was left out. Sizes are in bytes."""

    files: int = 0
    size: int = 0
    left_out: int = 0
    left_out_size: int = 0
    # The largest of those that were left out.
    named: tuple[LeftOutput, ...] = ()


@dataclass(frozen=True)
class Exit:
    """Written once, after every process of the training is dead and everything else is durable."""

    outcome: ExitOutcome
    why: ExitWhy
    at: datetime
    reason: str = ""
    # False when the training never started on this node.
    started: bool = False
    code: int | None = None
    signal: int | None = None
    trained_s: float = 0.0
    step: int | None = None
    # First step reported by this attempt: shows what was trained twice.
    first_step: int | None = None
    restored_from: str | None = None
    # The step that was restored, where its checkpoint tells one.
    restored_step: int | None = None
    # How many complete checkpoints older than that one there were to fall back on.
    older_checkpoints: int = 0
    checkpoint: CheckpointRef | None = None
    # How many checkpoints this attempt committed.
    commits: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    tail: tuple[str, ...] = ()
    save: SaveTimes | None = None
    started_at: datetime | None = None
    outputs: KeptOutputs | None = None
    # What the kernel or NVML said: `oom`, `xid:79`, `disk-full`.
    evidence: tuple[str, ...] = ()
    # By more of the log than `tail` has.
    cause: FailureCause | None = None
    waste: Waste | None = None
    # Recent files outside of the checkpoint folder that look like saves, where nothing was committed.
    saves_elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlobRef:
    """One file of a checkpoint, relative to the checkpoint folder.

    `upload` is unique to one upload of these bytes, so that the object's name is never used again after a delete: one
    that lands late removes nothing that was uploaded since.
    """

    path: str
    digest: str
    size: int
    mode: int = 0o644
    upload: str = ""

    @property
    def name(self) -> str:
        """How the object is called that holds the bytes."""
        return f"{self.digest}-{self.upload}" if self.upload else self.digest


@dataclass(frozen=True)
class Manifest:
    """A checkpoint exists when its manifest does. `ranks` must all have committed the same name for it to count."""

    name: str
    job: str
    claim: int
    rank: int
    ordinal: int
    committed_at: datetime
    files: tuple[BlobRef, ...]
    ranks: tuple[int, ...] = (0,)
    step: int | None = None
    # Which save of the attempt this is part of: parts of different saves never make one checkpoint, even if a name is
    # used again. Sharded saves are counted 1, 2, …; folders committed as they are have rank 0's ordinal, negated.
    generation: int = 0
    version: int = 2

    @property
    def size(self) -> int:
        return sum(blob.size for blob in self.files)


@dataclass(frozen=True)
class NodeFacts:
    """Everything one node's agents have said. `exit` is of whichever boot wrote one."""

    rank: int
    instance: str
    heartbeat: Observed[Stamped[Heartbeat] | None]
    notice: Observed[Stamped[NoticeFact] | None]
    exit: Observed[Stamped[Exit] | None]
    # What its cloud says where it took the launch and then had no such machine. Agents cannot say so.
    dry: str = ""
