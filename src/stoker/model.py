"""What exists: offerings, instances, the log's entries, the facts agents push, and what can be observed of them.

Everything here is frozen data. Times inside entries and facts are informative; where age matters, readers use the
store's own Last-Modified, which is carried beside them (`Entry.at`, `Stamped.modified`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Generic, Literal, TypeVar

T = TypeVar("T")

# Version of the protocol that this code writes and decides on. Entries carry the version a governor must have.
PROTOCOL_VERSION = 1

Outcome = Literal["succeeded", "failed", "stopped"]
Phase = Literal["queued", "launching", "running", "stopping", "succeeded", "failed", "stopped"]
# `off`: it is switched off and still there, so it costs money, and may be started again; but what ran on it is over,
# for an agent never trains on a machine that had one before. `unheard-of`: see `Provider.state`.
InstanceState = Literal["pending", "running", "stopping", "off", "gone", "unheard-of"]


# ── What was observed, or not ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Known(Generic[T]):
    """Somebody answered, and this is the answer."""

    value: T


@dataclass(frozen=True)
class Unknown:
    """Nobody answered, or not with sense. Never a reason to launch, terminate or restart."""

    error: str


Observed = Known[T] | Unknown


@dataclass(frozen=True)
class Stamped(Generic[T]):
    """A fact with what the store says about its object: when it was written, and which version it is."""

    value: T
    modified: datetime
    etag: str


# ── What a provider sells and lends ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Capabilities:
    """What a provider can do, and what its clocks allow. Frozen: decisions may rest on it."""

    # Costs money: jobs without a bound get one, and `run` asks before spending.
    paid: bool
    # How long a launch token keeps a repeated launch from making a second machine.
    token_lifetime_s: float
    # Machines younger than this are never orphans: their claim may not be readable yet.
    newborn_s: float
    # Longest time from launch until an agent's first heartbeat is overdue.
    boot_timeout_s: float
    # Without a heartbeat for this long a node is suspected; after as long again, it is ended.
    silence_s: float
    # Fields of the job file this provider honours, by dotted name; the rest is refused by name.
    honours: frozenset[str] = frozenset()
    # `stoker interrupt` works.
    interrupts: bool = False
    # `wait` returns early when something happens on a machine.
    wakes: bool = False
    # Machines are processes of the submitter's own computer: its Python, programs and folders are theirs as well.
    here: bool = False
    # Machines install their agent from the store, which the submitter puts there.
    bundled: bool = False
    # What was found dry for one job is left alone by all jobs for so long. 0: it says nothing about the next moment.
    dry_for_s: float = 0.0
    # The stores that its machines can reach, by scheme, such as `s3`. None named: all.
    stores: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offering:
    """Machine type × zone × spot or on-demand × price. `price` is $/h for a node; None is unknown, never free."""

    provider: str
    machine: str
    zone: str
    spot: bool
    region: str | None = None
    price: float | None = None
    on_demand_price: float | None = None
    price_source: str = ""
    cpus: int | None = None
    memory_bytes: int | None = None
    gpu: str | None = None
    gpus: int = 0
    # How many nodes of all jobs the place holds at once, where the provider knows; beyond it jobs queue.
    most_nodes: int | None = None

    @property
    def names(self) -> tuple[str, str, str, str]:
        """Provider, machine, where, and kind. Where is its region if the provider chooses the zone."""
        where = self.zone or self.region or "any"
        return self.provider, self.machine, where, "spot" if self.spot else "on-demand"

    @property
    def key(self) -> str:
        """The same for the same thing whatever its price: what is remembered when it is dry."""
        return "/".join(self.names)

    @property
    def title(self) -> str:
        """The same for people: `n1-standard-4 spot in us-central1-a`."""
        return f"{self.machine} {'spot' if self.spot else 'on-demand'} in {self.zone or 'any zone'}"


@dataclass(frozen=True)
class Instance:
    """A machine that carries this store's tag, as the provider tells it."""

    id: str
    provider: str
    job: str
    claim: int
    rank: int
    state: InstanceState
    created_at: datetime
    region: str | None = None
    zone: str | None = None


@dataclass(frozen=True)
class Leftover:
    """Something beside a machine that carries this store's tag, and that no machine uses: a disk, a placement group.

    `created_at` is None where the cloud does not tell.
    """

    kind: str
    id: str
    provider: str
    job: str
    claim: int
    region: str | None = None
    created_at: datetime | None = None


@dataclass(frozen=True)
class NodeRef:
    """A node of an attempt, by the provider's name for it."""

    rank: int
    instance: str


# ── The log: decisions ────────────────────────────────────────────────────────────────────────────────────────────────

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


# ── Facts: what agents push ───────────────────────────────────────────────────────────────────────────────────────────

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
