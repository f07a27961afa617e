"""The policy of a store: rules that every job obeys.

A rule has one subject (`tags`, `machines`, `max_cost`, …) and an action for jobs that break it. Frozen data like
`stoker.model.spec`: the metadata of its fields defines the file format, its reference page and its schema.
"""

# `file_field` makes a field(), which is what dataclass defaults are for.
# ruff: noqa: RUF009

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import date
from typing import ClassVar, Literal, get_args

from stoker.model.file_field import MAX_DOLLARS, file_field
from stoker.model.resources import Spot

# Actions: only a warning; no submission and no first launch; save and end; save and restart; the next attempt is, or
# may be, on-demand; no further launch for now; the job gets what it leaves open.
RuleAction = Literal["warn", "refuse", "stop", "restart", "on-demand", "wait", "fill"]
# Events that people can be notified of.
EventKind = Literal[
    "started",  # the first attempt has its machines
    "reclaimed",  # its machines are taken back
    "resumed",  # the next attempt has its machines
    "stalled",  # it makes no progress
    "rule",  # a rule of the policy is broken
    "budget",  # a budget is used up, nearly is, or will be at this pace
    "warning",  # any other warning
    "failed",
    "stopped",  # a person asked
    "finished",
    "orphan",  # a machine without an owner was terminated, or one of its leftovers removed
]
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)
BudgetPeriod = Literal["day", "week", "month", "quarter"]
# Wanted values of a tag: `any`, one of several values, or a pattern that matches the whole value.
TagValues = tuple[str, ...]
ANY = "any"


@dataclass(frozen=True)
class StallRule:
    """A stalled job: idle accelerators, no new step (or, if it reports none, no new line of its log), and nothing else
    at work."""

    below: float = file_field("utilisation at or below this is idle", form="percent", default=0.01, least=0)
    window_s: float = file_field("how long a window is", form="duration", default=300.0, above=0)
    windows: int = file_field("how many idle windows in a row make a stall", default=3, least=1)
    after_s: float = file_field(
        "does not apply to a training younger than this", form="duration", default=900.0, least=0
    )
    working_s: float = file_field(
        "as long again for one whose processors, disks or network are at work: it may compile or download",
        form="duration",
        default=7200.0,
        least=0,
    )
    working_above: float = file_field(
        "processors, disks and network that are at work in no more of a window than this do not count as at work",
        form="percent",
        default=0.1,
        least=0,
    )
    steps_s: float | None = file_field(
        "a job that reports steps is also stalled after this long without one, however busy its accelerators are",
        form="duration",
        default=None,
        above=0,
    )
    warn_before_s: float = file_field(
        "time between the warning and the request to leave", form="duration", default=0.0, least=0
    )

    @property
    def span_s(self) -> float:
        return self.window_s * self.windows


@dataclass(frozen=True)
class UtilizationRule:
    """The least mean utilisation of all accelerators of a job."""

    value: float = file_field("least mean utilisation", form="percent", above=0)
    over_s: float = file_field("over this long", form="duration", default=3600.0, above=0)
    after_s: float = file_field(
        "does not apply to a training younger than this", form="duration", default=1800.0, least=0
    )
    warn_before_s: float = file_field(
        "time between the warning and the request to leave", form="duration", default=0.0, least=0
    )


@dataclass(frozen=True)
class MetricRule:
    """Ends hopeless experiments early. Exactly one of `nan`, `above`, `below` and `no_improvement` is set."""

    name: str = file_field("name of the metric, as `report` or `metrics` has it")
    nan: bool = file_field("it is no number, or infinite", default=False)
    above: float | None = file_field("it is above this", default=None)
    below: float | None = file_field("it is below this", default=None)
    no_improvement_s: float | None = file_field(
        "it has not improved for this long", form="duration", default=None, above=0
    )
    goal: Literal["min", "max"] = file_field("whether less or more is better, for `no_improvement`", default="min")
    after_s: float = file_field("does not apply to a training younger than this", form="duration", default=0.0, least=0)


@dataclass(frozen=True)
class ResumeRule:
    """Resume a job after an unexplained failure, if it had trained for long."""

    min_runtime_s: float = file_field(
        "only after at least this much training", form="duration", default=7200.0, least=0
    )
    times: int = file_field("how often for one job", default=3, least=0)


@dataclass(frozen=True)
class SpotRule:
    """When a job gives up spot machines."""

    on_demand_after: int | None = file_field(
        "after more reclaims than this the next attempt is on-demand; null: never", default=3, least=0
    )
    back_after_s: float | None = file_field(
        "reclaims older than this are forgotten, so that the next attempt may be on spot again; null: never",
        form="duration",
        default=None,
        above=0,
    )


@dataclass(frozen=True)
class MarketRule:
    """Avoid spot machines that were reclaimed too often from any job."""

    most_reclaims: int = file_field("most reclaims of a machine type in a zone", default=5, least=0)
    over_s: float = file_field("over this long, at most a week", form="duration", default=86400.0, above=0)


@dataclass(frozen=True)
class FailureRule:
    """A kind of failure, recognised by the end of the log, the exit status or a report of the kernel."""

    log: str | None = file_field("a regular expression that the last lines match", form="regex", default=None)
    exit_code: int | None = file_field("the exit status of the command", default=None)
    evidence: str | None = file_field("what the kernel or NVML said: `oom`, `disk-full`, `xid:79`", default=None)


@dataclass(frozen=True)
class DenyRule:
    """A deny list. At least one of the fields is set, and each holds by itself."""

    providers: tuple[str, ...] = file_field("the providers that may not be used", form="patterns", default=())
    regions: tuple[str, ...] = file_field("the regions that may not be used", form="patterns", default=())
    machines: tuple[str, ...] = file_field("the machine types that may not be used", form="patterns", default=())
    images: tuple[str, ...] = file_field(
        "the images of machines and containers that may not be used", form="patterns", default=()
    )
    tags: dict[str, TagValues] = file_field("values that tags may not have", form="wanted", factory=dict)

    @property
    def about_machines(self) -> bool:
        return bool(self.providers or self.regions or self.machines)


@dataclass(frozen=True)
class DefaultsRule:
    """Values that the policy fills in where a job leaves them open. At least one of the fields is set."""

    tags: dict[str, str] = file_field("tags, each where the job has none of that name", form="tags", factory=dict)
    spot: Spot | None = file_field("as `resources.spot`", form="spot", default=None)
    max_runtime_s: float | None = file_field("as `limits.max_runtime`", form="duration", default=None, above=0)
    max_cost: float | None = file_field("as `limits.max_cost`", default=None, above=0, most=MAX_DOLLARS)
    max_wait_s: float | None = file_field("as `limits.max_wait`", form="duration", default=None, above=0)


@dataclass(frozen=True)
class ConcurrentRule:
    """Machines that jobs may have at the same time. Beyond that, jobs wait for others to end. At least one of `gpus`
    and `nodes` is set."""

    gpus: int | None = file_field("accelerators of all machines together", default=None, least=0)
    nodes: int | None = file_field("machines", default=None, least=0)
    by: str | tuple[str, ...] | None = file_field(
        "a limit for each value of this tag, such as `submitter` or `team`, or for each combination of several; jobs "
        "without it share one. Default: one for all jobs of the rule",
        form="labels",
        default=None,
    )


@dataclass(frozen=True)
class Budget:
    """Dollars that jobs may cost together in a calendar period, in UTC. Beyond that nothing new is launched."""

    dollars: float = file_field("dollars in one period", above=0, most=MAX_DOLLARS)
    period: BudgetPeriod = file_field(
        "which begins at midnight, on Monday, on the first of a month, or on the first of January, April, July and "
        "October; in UTC"
    )
    by: str | tuple[str, ...] | None = file_field(
        "a budget for each value of this tag, or for each combination of several; jobs without it share one. Default: "
        "one for all jobs of the rule",
        form="labels",
        default=None,
    )
    warn_at: float = file_field("a warning when this share is spent", form="percent", default=0.8, above=0)
    forecast: bool = file_field(
        "a warning when more will be spent by the end of the period, at this pace", default=True
    )


@dataclass(frozen=True, kw_only=True)
class Exemption:
    """A job or submitter that the rule does not apply to, until a date. Exactly one of `job` and `submitter` is set."""

    job: str | None = file_field("id of the job", default=None)
    submitter: str | None = file_field(
        "the submitter: an identity of the cloud, `*` for any characters in it", default=None
    )
    until: date = file_field("the last day, in UTC", form="date")
    why: str = file_field("for later readers")
    # The person that approved it, where it is an approval of `stoker policy approve`; not part of the file.
    approved_by: str = ""
    # An approval covers an external job alone, or a job of Stoker alone: both may have one name.
    external: bool = False
    # The token in the key of the approval.
    token: str = ""
    # The person that withdrew the approval, and the reason; empty while it stands.
    withdrawn_by: str = ""
    withdrawn_why: str = ""

    @property
    def exempted(self) -> str:
        return self.job or self.submitter or ""


@dataclass(frozen=True)
class Rule:
    """One rule. Exactly one of the subjects is set."""

    name: str = file_field("its name in decisions; default: its subject", form="name", default="")
    # The subjects.
    tags: dict[str, TagValues] | None = file_field(
        "tags that a job must have: `any`, a value or a list of them, or a pattern as `/[A-Z]+-[0-9]+/`",
        form="wanted",
        default=None,
    )
    providers: tuple[str, ...] | None = file_field("the providers that may be used", form="patterns", default=None)
    regions: tuple[str, ...] | None = file_field(
        "the regions that may be used; `us-*` is a pattern", form="patterns", default=None
    )
    machines: tuple[str, ...] | None = file_field("the machine types that may be used", form="patterns", default=None)
    images: tuple[str, ...] | None = file_field("the images of machines and containers", form="patterns", default=None)
    deny: DenyRule | None = file_field("what may not be used", default=None)
    max_nodes: int | None = file_field("most nodes of a job", default=None, least=1)
    max_runtime_s: float | None = file_field("longest training time of a job", form="duration", default=None, above=0)
    max_wait_s: float | None = file_field("longest time without a machine", form="duration", default=None, above=0)
    max_cost: float | None = file_field("most dollars for a job", default=None, above=0, most=MAX_DOLLARS)
    defaults: DefaultsRule | None = file_field("what is filled in where a job leaves it open", default=None)
    concurrent: ConcurrentRule | None = file_field("the machines that jobs may have at the same time", default=None)
    budget: Budget | None = file_field("what jobs may cost together in a calendar period", default=None)
    max_retries: int | None = file_field("how often a failing script may be started again", default=None, least=0)
    stall: StallRule | None = file_field("stalled jobs", default=None)
    min_gpu_utilization: UtilizationRule | None = file_field("jobs that waste accelerators", default=None)
    metric: MetricRule | None = file_field("experiments that lead nowhere", default=None)
    resume: ResumeRule | None = file_field("failures that nothing explains", default=None)
    spot: SpotRule | None = file_field("when spot machines are given up", default=None)
    market: MarketRule | None = file_field("spot machines that are taken back too often", default=None)
    failure: FailureRule | None = file_field("what a failure means", default=None)
    # The action, and the jobs that it applies to.
    then: RuleAction | None = file_field(
        "what happens to a job that breaks it; default: as the subject has it", default=None
    )
    audit: bool = file_field("only warn of what would have happened", default=False)
    scope: dict[str, TagValues] = file_field("only jobs with these tags", form="wanted", factory=dict, key="for")
    exempt: tuple[Exemption, ...] = file_field(
        "jobs that it does not apply to", form="sections", default=(), key="except"
    )
    approvers: tuple[str, ...] = file_field(
        "people who may let a job break it: identities, as submitters have them; a job that would be refused waits for "
        "one of them",
        form="patterns",
        default=(),
    )

    @property
    def subject(self) -> str:
        return next(name for name in SUBJECTS if getattr(self, name) is not None)

    @property
    def about_machines(self) -> bool:
        """True if the rule also applies to later attempts of a job, because it is about machines."""
        return self.subject in ("providers", "regions", "machines") or (
            self.deny is not None and self.deny.about_machines
        )

    @property
    def forbids_machines(self) -> bool:
        """True if the rule is enforced against machines that it does not name."""
        return self.about_machines and self.action == "refuse" and not self.audit

    @property
    def action(self) -> RuleAction:
        return self.then or SUBJECTS[self.subject][0]


# Allowed actions of a rule, by subject; the first is the default.
SUBJECTS: dict[str, tuple[RuleAction, ...]] = {
    "tags": ("refuse", "warn"),
    "providers": ("refuse", "warn"),
    "regions": ("refuse", "warn"),
    "machines": ("refuse", "warn"),
    "images": ("refuse", "warn"),
    "deny": ("refuse", "warn"),
    "max_nodes": ("refuse", "warn"),
    "max_runtime_s": ("stop", "refuse", "warn"),
    "max_wait_s": ("stop", "on-demand"),
    "max_cost": ("stop", "refuse", "warn"),
    "defaults": ("fill",),
    "concurrent": ("wait", "refuse", "warn"),
    "budget": ("wait", "refuse", "warn"),
    "max_retries": ("refuse", "warn"),
    "stall": ("restart", "stop", "warn"),
    "min_gpu_utilization": ("warn", "stop"),
    "metric": ("stop", "warn"),
    "resume": ("restart",),
    "spot": ("on-demand",),
    "market": ("refuse", "warn"),
    "failure": ("restart", "stop"),
}


@dataclass(frozen=True)
class SageMakerPolicy:
    """External jobs: training jobs of SageMaker that Stoker did not start, and that the policy covers too."""

    regions: tuple[str, ...] = file_field("the regions whose training jobs obey the rules", form="words")
    clone: bool = file_field(
        "jobs that failed, stall or lose their spot machines too often continue as clones", default=True
    )


@dataclass(frozen=True)
class NotificationChannel:
    """A channel for notifications about jobs."""

    # A plain address is a short form of a channel.
    SHORT: ClassVar[str] = "to"
    to: str = file_field("an address, or a reference to one that is a secret", form="address")
    name: str = file_field("its name; default: its kind", form="name", default="")
    events: tuple[EventKind, ...] = file_field("only these", form="events", default=())
    scope: dict[str, TagValues] = file_field("only about jobs with these tags", form="wanted", factory=dict, key="for")
    at_most: int = file_field("most messages an hour; more events wait, and come together", default=20, least=1)


@dataclass(frozen=True)
class Policy:
    """The policy of a store."""

    rules: tuple[Rule, ...] = file_field("what every job obeys, in this order", form="sections", default=())
    notify: tuple[NotificationChannel, ...] = file_field(
        "where the policy sends notifications", form="sections", default=()
    )
    sagemaker: SageMakerPolicy | None = file_field(
        "external jobs: training jobs of SageMaker that Stoker did not start", default=None
    )
    # Digest of the text that it was read from. Decisions record it.
    digest: str = ""
    version: int = 0

    def about(self, *subjects: str) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.subject in subjects)


NO_RULES = Policy()

assert set(SUBJECTS) <= {field.name for field in dataclasses.fields(Rule)}
