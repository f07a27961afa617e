"""The rules of the house: what every job of a store obeys, whoever submitted it.

A rule has one subject (`tags`, `machines`, `max_cost`, …) and says what happens when a job breaks it. Frozen
data, as `stoker.model.spec`, from which the file that people write is read, and its reference and schema are made.
"""

# `part` makes a field(), which is what dataclass defaults are for.
# ruff: noqa: RUF009

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import date
from typing import ClassVar, Literal, get_args

from stoker.model.spec import MOST_DOLLARS, part

# What happens: a word for people; no submission, and no first launch; save and end; save and go on anew; the next
# attempt is on-demand, or may be; no further launch for now.
Then = Literal["warn", "refuse", "stop", "restart", "on-demand", "wait"]
# What people can be told of.
EventKind = Literal[
    "started",  # the first attempt has its machines
    "reclaimed",  # its machines are taken back
    "resumed",  # the next attempt has its machines
    "stalled",  # it stands still
    "rule",  # a rule of the house is broken
    "budget",  # a budget is nearly used up, or is
    "warning",  # another thing that somebody should know
    "failed",
    "stopped",  # a person asked
    "finished",
    "orphan",  # a machine that no job owned was ended, or something that one left was removed
]
KINDS: tuple[EventKind, ...] = get_args(EventKind)
# A value of a tag, as a rule names it: any, one of these, or whatever the pattern matches whole.
Wanted = tuple[str, ...]
ANY = "any"


@dataclass(frozen=True)
class Stall:
    """A job that stands still: its accelerators idle, no step (or, where it reports none, no line of its log), and
    nothing else at work."""

    below: float = part("utilisation at or below this is idle", form="percent", default=0.01, least=0)
    window_s: float = part("how long a window is", form="duration", default=300.0, above=0)
    windows: int = part("how many idle windows in a row make a stall", default=3, least=1)
    after_s: float = part("nothing is said of a training younger than this", form="duration", default=900.0, least=0)
    working_s: float = part(
        "as long again for one whose processors, disks or network are at work: it may compile or download",
        form="duration",
        default=7200.0,
        least=0,
    )
    working_above: float = part(
        "processors, disks and network that are at work in no more of a window than this do not count as at work",
        form="percent",
        default=0.1,
        least=0,
    )
    steps_s: float | None = part(
        "a job that reports steps also stands still after so long without one, however busy its accelerators are",
        form="duration",
        default=None,
        above=0,
    )
    warn_before_s: float = part(
        "the warning comes so long before the training is asked to leave", form="duration", default=0.0, least=0
    )

    @property
    def span_s(self) -> float:
        return self.window_s * self.windows


@dataclass(frozen=True)
class Utilization:
    """A demand on healthy jobs: mean utilisation of all accelerators of the job."""

    value: float = part("least mean utilisation", form="percent", above=0)
    over_s: float = part("over this long", form="duration", default=3600.0, above=0)
    after_s: float = part("nothing is said of a training younger than this", form="duration", default=1800.0, least=0)
    warn_before_s: float = part(
        "the warning comes so long before the training is asked to leave", form="duration", default=0.0, least=0
    )


@dataclass(frozen=True)
class Metric:
    """Ends hopeless experiments early. One of `nan`, `above`, `below` and `no_improvement`."""

    name: str = part("name of the metric, as `report` or `metrics` has it")
    nan: bool = part("it is no number, or infinite", default=False)
    above: float | None = part("it is above this", default=None)
    below: float | None = part("it is below this", default=None)
    no_improvement_s: float | None = part("it has not improved for so long", form="duration", default=None, above=0)
    goal: Literal["min", "max"] = part("whether less or more is better, for `no_improvement`", default="min")
    after_s: float = part("nothing is said of a training younger than this", form="duration", default=0.0, least=0)


@dataclass(frozen=True)
class Resuming:
    """A failure that nothing explains, of a job that had run for long, is resumed from its last checkpoint."""

    min_runtime_s: float = part("only after at least so much training", form="duration", default=7200.0, least=0)
    times: int = part("so often for one job", default=3, least=0)


@dataclass(frozen=True)
class SpotUse:
    """When spot machines are given up."""

    on_demand_after: int | None = part(
        "after more reclaims than this the next attempt is on-demand; null: never", default=3, least=0
    )
    back_after_s: float | None = part(
        "reclaims older than this are forgotten, so that the next attempt may be on spot again; null: never",
        form="duration",
        default=None,
        above=0,
    )


@dataclass(frozen=True)
class Market:
    """Spot machines that were taken back too often, from whichever job, are not asked for."""

    most_reclaims: int = part("most reclaims of a machine type in a zone", default=5, least=0)
    over_s: float = part("over this long, at most a week", form="duration", default=86400.0, above=0)


@dataclass(frozen=True)
class Diagnosis:
    """What a failure of the script's means, told from the end of its log, its exit status or the kernel's word."""

    log: str | None = part("a regular expression that the last lines match", form="regex", default=None)
    exit_code: int | None = part("the exit status of the command", default=None)
    evidence: str | None = part("what the kernel or NVML said: `oom`, `disk-full`, `xid:79`", default=None)


@dataclass(frozen=True)
class Budget:
    """Dollars that jobs may cost together in a calendar period, in UTC. From there on nothing new is launched."""

    dollars: float = part("so much in one period", above=0, most=MOST_DOLLARS)
    period: Literal["day", "week", "month"] = part("which begins at midnight, on Monday, or on the first; in UTC")
    by: str | None = part(
        "a budget for each value of this tag; jobs without it share one. Default: one for all jobs of the rule",
        form="label",
        default=None,
    )
    warn_at: float = part("a word when so much of it is spent", form="percent", default=0.8, above=0)


@dataclass(frozen=True, kw_only=True)
class Exemption:
    """A job or a submitter that the rule says nothing to, until a date. One of `job` and `submitter`."""

    job: str | None = part("id of the job", default=None)
    submitter: str | None = part("who submits: an identity of the cloud, `*` for any characters in it", default=None)
    until: date = part("the last day, in UTC", form="date")
    why: str = part("for later readers")

    @property
    def whose(self) -> str:
        return self.job or self.submitter or ""


@dataclass(frozen=True)
class Rule:
    """One rule. Exactly one of the subjects is set."""

    name: str = part("what it is called in decisions; default: its subject", form="name", default="")
    # The subjects.
    tags: dict[str, Wanted] | None = part(
        "tags that a job must have: `any`, a value or a list of them, or a pattern as `/[A-Z]+-[0-9]+/`",
        form="wanted",
        default=None,
    )
    providers: tuple[str, ...] | None = part("the providers that may be used", form="words", default=None)
    regions: tuple[str, ...] | None = part(
        "the regions that may be used; `us-*` is a pattern", form="words", default=None
    )
    machines: tuple[str, ...] | None = part("the machine types that may be used", form="words", default=None)
    images: tuple[str, ...] | None = part("the images of machines and containers", form="words", default=None)
    max_nodes: int | None = part("most nodes of a job", default=None, least=1)
    max_runtime_s: float | None = part("longest training time of a job", form="duration", default=None, above=0)
    max_wait_s: float | None = part("longest time without a machine", form="duration", default=None, above=0)
    max_cost: float | None = part("most dollars for a job", default=None, above=0, most=MOST_DOLLARS)
    budget: Budget | None = part("what jobs may cost together in a day, a week or a month", default=None)
    max_retries: int | None = part("how often a failing script may be started again", default=None, least=0)
    stall: Stall | None = part("jobs that stand still", default=None)
    min_gpu_utilization: Utilization | None = part("jobs that waste accelerators", default=None)
    metric: Metric | None = part("experiments that lead nowhere", default=None)
    resume: Resuming | None = part("failures that nothing explains", default=None)
    spot: SpotUse | None = part("when spot machines are given up", default=None)
    market: Market | None = part("spot machines that are taken back too often", default=None)
    failure: Diagnosis | None = part("what a failure means", default=None)
    # What happens, to whom.
    then: Then | None = part("what happens to a job that breaks it; default: as the subject has it", default=None)
    audit: bool = part("only tell what would have happened", default=False)
    scope: dict[str, Wanted] = part("only jobs with these tags", form="wanted", factory=dict, key="for")
    exempt: tuple[Exemption, ...] = part("jobs that it says nothing to", form="sections", default=(), key="except")

    @property
    def subject(self) -> str:
        return next(name for name in SUBJECTS if getattr(self, name) is not None)

    @property
    def about_machines(self) -> bool:
        """Whether it may be broken by the next attempt of a job that has had some."""
        return self.subject in ("providers", "regions", "machines")

    @property
    def forbids_machines(self) -> bool:
        """Whether anything comes of it when they are not those that it names."""
        return self.about_machines and self.action == "refuse" and not self.audit

    @property
    def action(self) -> Then:
        return self.then or SUBJECTS[self.subject][0]


# What may happen when a rule about a subject is broken; the first where the rule does not say.
SUBJECTS: dict[str, tuple[Then, ...]] = {
    "tags": ("refuse", "warn"),
    "providers": ("refuse", "warn"),
    "regions": ("refuse", "warn"),
    "machines": ("refuse", "warn"),
    "images": ("refuse", "warn"),
    "max_nodes": ("refuse", "warn"),
    "max_runtime_s": ("stop", "refuse", "warn"),
    "max_wait_s": ("stop", "on-demand"),
    "max_cost": ("stop", "refuse", "warn"),
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
class SageMaker:
    """SageMaker's training jobs that others started, as far as the house wants them to obey its rules, too."""

    regions: tuple[str, ...] = part("the regions whose training jobs obey the rules", form="words")
    clone: bool = part(
        "jobs that failed, stand still or lose their spot machines too often go on as clones", default=True
    )


@dataclass(frozen=True)
class Channel:
    """Where the house tells what happens to its jobs."""

    # An address alone is a channel, too.
    SHORT: ClassVar[str] = "to"
    to: str = part("an address, or a reference to one that is a secret", form="address")
    name: str = part("what it is called; default: its kind", form="name", default="")
    events: tuple[EventKind, ...] = part("only these", form="events", default=())
    scope: dict[str, Wanted] = part("only about jobs with these tags", form="wanted", factory=dict, key="for")
    at_most: int = part("most messages an hour; what is more waits, and comes together", default=20, least=1)


@dataclass(frozen=True)
class House:
    """The policy of a store."""

    rules: tuple[Rule, ...] = part("what every job obeys, in this order", form="sections", default=())
    notify: tuple[Channel, ...] = part("where the policy sends notifications", form="sections", default=())
    sagemaker: SageMaker | None = part("training jobs of SageMaker that others started", default=None)
    # Of the text that it was read from. Decisions record it.
    digest: str = ""
    version: int = 0

    def about(self, subject: str) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.subject == subject)


NO_RULES = House()

assert set(SUBJECTS) <= {field.name for field in dataclasses.fields(Rule)}
