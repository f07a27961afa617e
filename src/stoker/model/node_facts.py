"""Facts that agents write to the store: heartbeats, notices, exits and checkpoint manifests."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from stoker.model.gang_messages import Ack, Rendezvous, SaveAnswer, SaveProposal
from stoker.model.log_entries import Waste
from stoker.model.observed import Known, Observed, Stamped

AgentPhase = Literal["booting", "setup", "waiting", "restoring", "training", "saving", "flushing", "held"]


@dataclass(frozen=True)
class GpuUsage:
    """Usage of one accelerator. None: could not be read, which does not mean idle."""

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
    """Recent mean utilisation of devices in periods of equal length, the newest last.

    `data` is base64: one byte for each period of each of the `devices`, device after device, in half percents; 255 for
    a value that could not be read, which does not mean idle.
    """

    period_s: float
    devices: int
    data: str


@dataclass(frozen=True)
class Activity:
    """Recent activity of a training or its set-up. Ages are by the agent's monotonic clock at the time of the
    heartbeat."""

    # Since its step last changed or its log last grew; since its start if neither ever happened.
    silent_s: float
    # Share of the time in which its processors, disks or network were busy; empty if not measurable.
    work: tuple[Series, ...] = ()
    # Of its accelerators: fine and short series, coarse and long ones. Empty without an accelerator.
    utilization: tuple[Series, ...] = ()
    # Number of accelerators, including unreadable ones.
    devices: int = 0
    # It waits for another node before its training, and is rightly idle.
    waits: bool = False
    # Since its step last changed; None if it never reported one. And the longest time between two steps.
    stepped_s: float | None = None
    longest_step_s: float = 0.0
    # It has reported a single step so far, and may still be compiling.
    first_step: bool = False
    # Since its checkpoint folder last changed or was uploaded; None if neither ever happened.
    saving_s: float | None = None
    # How long a process has been stopped or traced by a debugger; None if none is. And the time since the last such
    # session. The other ages do not include the time in a debugger.
    debugged_s: float | None = None
    released_s: float | None = None


@dataclass(frozen=True)
class Trend:
    """Lowest and highest value of a metric in this attempt, and the age of each by the agent's clock."""

    low: float
    low_s: float
    high: float
    high_s: float


@dataclass(frozen=True)
class CheckpointRef:
    """A committed checkpoint, by its key: `00000007/000002-step-900`."""

    key: str
    name: str
    step: int | None = None
    committed_at: datetime | None = None
    # False: a copy of the restored checkpoint with small additions, such as a log file that a script begins.
    is_save: bool = True


@dataclass(frozen=True)
class Heartbeat:
    """The current state of a node in one object that is overwritten. Its ETag changes as long as the agent lives."""

    beat: int
    phase: AgentPhase
    at: datetime
    interval_s: float
    trained_s: float = 0.0
    # When this agent started the training, by its own clock. For people only.
    training_since: datetime | None = None
    address: str | None = None
    # The name that the node calls itself, written together with its address; empty if it can have none.
    host: str = ""
    step: int | None = None
    # First step reported by this attempt.
    first_step: int | None = None
    restored_from: str | None = None
    # The restored step, if the checkpoint records it.
    restored_step: int | None = None
    checkpoint: CheckpointRef | None = None
    # Recent files outside the checkpoint folder that look like saves, if nothing was committed.
    saves_elsewhere: tuple[str, ...] = ()
    # Files in the checkpoint folder, and its bytes that are not durable yet.
    checkpoint_files: int = 0
    unsynced_bytes: int = 0
    usage: Usage | None = None
    activity: Activity | None = None
    waste: Waste | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    trends: dict[str, Trend] = field(default_factory=dict)
    # Codes of the warnings for which evidence was collected.
    evidence: tuple[str, ...] = ()
    rendezvous: Rendezvous | None = None
    ack: Ack | None = None
    # Checkpoints of several ranks whose script does not use `stoker.train`.
    save_proposal: SaveProposal | None = None
    save_answer: SaveAnswer | None = None
    # The exact image of its container: `repository@sha256:…`, or its id in this machine's engine.
    image: str | None = None
    # Messages for people, such as an unreachable store or a disk that fills up.
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageFact:
    """The image that the name in the spec resolved to when a node first used it. Later attempts use the same one."""

    name: str
    id: str
    # `repository@sha256:…`; None for an image that no registry has.
    digest: str | None = None


@dataclass(frozen=True)
class NoticeFact:
    """A notice that this node will be reclaimed. Hard notices are final; soft ones only ask for a save."""

    hard: bool
    source: str
    at: datetime
    grace_s: float


ExitOutcome = Literal["succeeded", "interrupted", "failed", "infrastructure"]


ExitWhy = Literal[
    "finished",  # the command ended on its own
    "notice",  # a hard notice
    "peer",  # another rank of the gang left
    "stop",  # a person asked
    "drain",  # the governor asked
    "limit",  # the machine's own limit on its lifetime
    "closed",  # the claim was closed or the job ended
    "waited",  # waited longer than `wait_limit` to be allowed to train
    "boot",  # the machine could not start an agent; reported by its boot, or on its console
    "setup",  # fetching code or inputs, or the set-up commands, failed
    "restore",  # no checkpoint could be restored although one was agreed on
    "agent",  # the agent crashed or was killed; a restarted agent flushed what was there
]


@dataclass(frozen=True)
class SaveTimes:
    """Times of a save after a notice, in seconds after its arrival, by one agent's monotonic clock."""

    saved_s: float | None = None
    durable_s: float | None = None
    ended_s: float | None = None
    grace_s: float | None = None
    # Checkpoints that this node committed after the notice; None if unknown.
    commits: int | None = None
    # The last save was not whole, and is in no checkpoint.
    torn: bool = False


# `machine`: no script can prevent it. `peer`: it only reports the end or silence of another process.
Blame = Literal["machine", "peer", "script"]


@dataclass(frozen=True)
class FailureCause:
    """The cause of a failure by the end of its log, and the line that names it."""

    name: str
    blame: Blame
    line: str


@dataclass(frozen=True)
class OmittedOutput:
    """A file that was not saved as output, and why."""

    path: str
    size: int
    why: str


@dataclass(frozen=True)
class OutputLink:
    """A link among the outputs, with its path in the stored tree and its target relative to the link's folder."""

    path: str
    target: str


@dataclass(frozen=True)
class SavedOutputs:
    """Outputs of a node or attempt in the store, and files that were left out. Sizes are in bytes."""

    files: int = 0
    size: int = 0
    left_out: int = 0
    left_out_size: int = 0
    # The largest of the omitted files.
    named: tuple[OmittedOutput, ...] = ()
    # Links to stored files and folders. They have no object of their own.
    links: tuple[OutputLink, ...] = ()
    # How many of the files are perhaps unfinished: parts of the last save, which no checkpoint has.
    unfinished: int = 0


@dataclass(frozen=True)
class Exit:
    """The last fact of a node, written once after every process of the training is dead and all else is durable."""

    outcome: ExitOutcome
    why: ExitWhy
    at: datetime
    reason: str = ""
    started: bool = False
    code: int | None = None
    signal: int | None = None
    trained_s: float = 0.0
    step: int | None = None
    # First step reported by this attempt: shows which steps were trained twice.
    first_step: int | None = None
    restored_from: str | None = None
    # The restored step, if the checkpoint records it.
    restored_step: int | None = None
    # Number of complete checkpoints older than the restored one, to fall back on.
    older_checkpoints: int = 0
    checkpoint: CheckpointRef | None = None
    # How many checkpoints this attempt committed.
    commits: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    tail: tuple[str, ...] = ()
    save: SaveTimes | None = None
    started_at: datetime | None = None
    outputs: SavedOutputs | None = None
    # Reports of the kernel or NVML: `oom`, `xid:79`, `disk-full`.
    evidence: tuple[str, ...] = ()
    # Diagnosed from a longer part of the log than `tail`.
    cause: FailureCause | None = None
    waste: Waste | None = None
    # Recent files outside the checkpoint folder that look like saves, if nothing was committed.
    saves_elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlobRef:
    """One file of a checkpoint, relative to the checkpoint folder.

    `upload` is unique to one upload of these bytes, so that the object's name is never used again: a delete that lands
    late removes nothing that was uploaded since.
    """

    path: str
    digest: str
    size: int
    mode: int = 0o644
    upload: str = ""

    @property
    def name(self) -> str:
        """Name of the object that holds the bytes."""
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
    # The save that this is part of: parts of different saves never form one checkpoint. Sharded saves are numbered
    # 1, 2, …; folders committed as they are have rank 0's ordinal or a random token, negated.
    generation: int = 0
    # The longest time between two files of a save of a script that does not use `stoker.train`, for the next attempt.
    pause_s: float = 0.0
    version: int = 2

    @property
    def size(self) -> int:
        return sum(blob.size for blob in self.files)


@dataclass(frozen=True)
class NodeFacts:
    """All facts of one node's agents. `exit` may be from any boot."""

    rank: int
    instance: str
    heartbeat: Observed[Stamped[Heartbeat] | None]
    notice: Observed[Stamped[NoticeFact] | None]
    exit: Observed[Stamped[Exit] | None]
    # The cloud's reason if it accepted the launch and then had no such machine.
    dry: str = ""

    @property
    def known_heartbeat(self) -> Stamped[Heartbeat] | None:
        """The newest heartbeat; None if there is none, or it could not be read."""
        return self.heartbeat.value if isinstance(self.heartbeat, Known) else None

    @property
    def known_notice(self) -> Stamped[NoticeFact] | None:
        """The notice; None if there is none, or it could not be read."""
        return self.notice.value if isinstance(self.notice, Known) else None

    @property
    def known_exit(self) -> Exit | None:
        """The exit; None if there is none, or it could not be read."""
        return self.exit.value.value if isinstance(self.exit, Known) and self.exit.value else None
