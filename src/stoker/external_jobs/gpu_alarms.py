"""CloudWatch's alarms on how busy the GPUs of training jobs are: which there should be, and whether what CloudWatch
measured breaks a rule. Pure.

An alarm is a wake-up for one rule and one host. Whether the rule is broken is judged by the figures of all hosts, since
rules are about all accelerators of a job.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stoker.core.policy_rules import Subject, applies
from stoker.external_jobs.training_job import TrainingJob
from stoker.model.durations import span_text
from stoker.model.policy import House, Rule, Stall, Utilization

# CloudWatch has a figure a minute of every host, and has it a little late.
MINUTE_S = 60.0
_LATE_S = 600.0
# A window with fewer of its minutes than this says nothing.
_COVERED = 0.75
# As the agent has it: a process that only waits uses less of one core, here in percent.
_WAITING_CPU = 5.0
# What CloudWatch takes: a period of at most a day, and a day in all where periods are shorter than an hour.
_DAY_S = 86400.0
_WEEK_S = 7 * _DAY_S


@dataclass(frozen=True)
class WantedAlarm:
    """An alarm as it should be. `threshold` is in CloudWatch's percent, which it sums over the GPUs of a host."""

    name: str
    host: str
    rule: str
    threshold: float
    period_s: int
    periods: int
    # Whether the threshold itself is too little.
    inclusive: bool
    # Whom it tells; empty: nobody but who asks.
    topic: str = ""


@dataclass(frozen=True)
class Alarm:
    """An alarm as CloudWatch tells it."""

    name: str
    host: str
    ringing: bool = False
    topics: tuple[str, ...] = ()

    def is_as(self, wanted: WantedAlarm) -> bool:
        """Whether it is that one. One that tells somebody does so for those, too, who have nobody to tell."""
        return self.name == wanted.name and (not wanted.topic or wanted.topic in self.topics)


Figures = tuple[tuple[datetime, float], ...]


@dataclass(frozen=True)
class Host:
    """What CloudWatch measured of one host, minute by minute, in percent: of all its GPUs, and of all its cores."""

    name: str
    gpu: Figures = ()
    cpu: Figures = ()


@dataclass(frozen=True)
class Readings:
    """Of every host of a job, and when its last line was logged; None where nobody can say."""

    hosts: tuple[Host, ...]
    last_line_at: datetime | None = None


def prefix(store: str) -> str:
    """What the names of all alarms of a store begin with."""
    return f"stoker-{hashlib.sha256(store.encode()).hexdigest()[:8]}-"


def watching(house: House, subject: Subject) -> tuple[Rule, ...]:
    """The rules about accelerators that are about this job; those, too, that are only a word for people."""
    return tuple(
        rule for rule in house.rules if (rule.stall or rule.min_gpu_utilization) is not None and applies(rule, subject)
    )


def wanted(
    rules: Sequence[Rule], job: TrainingJob, gpus: int | None, start: str, topic: str = ""
) -> tuple[WantedAlarm, ...]:
    """One for each host and rule, while it trains. `gpus` are those of one host; None or 0: nobody can read them."""
    if not job.training or not gpus:
        return ()
    every = (_alarm(rule, job, number, host, gpus, start) for rule in rules for number, host in _numbered(job))
    return tuple(replace(each, topic=topic) for each in every)


def _numbered(job: TrainingJob) -> list[tuple[int, str]]:
    return list(enumerate(job.hosts, 1))


def _alarm(rule: Rule, job: TrainingJob, number: int, host: str, gpus: int, start: str) -> WantedAlarm:
    if rule.stall is not None:
        share, period_s, periods, inclusive = rule.stall.below, rule.stall.window_s, rule.stall.windows, True
    else:
        assert rule.min_gpu_utilization is not None
        share, period_s, periods, inclusive = rule.min_gpu_utilization.value, rule.min_gpu_utilization.over_s, 1, False
    length_s = int(min(_DAY_S, max(MINUTE_S, math.ceil(period_s / MINUTE_S) * MINUTE_S)))
    # One that rings too early wakes us for nothing; more is not taken.
    most = int((_DAY_S if length_s < 3600 else _WEEK_S) // length_s)
    threshold = round(share * 100 * gpus, 4)
    count = max(1, min(periods, most))
    # A rule that changes has other alarms, so that nobody takes an old one for it.
    mark = hashlib.sha256(f"{rule.name}/{threshold}/{length_s}/{count}/{inclusive}".encode()).hexdigest()[:6]
    name = f"{start}{job.name}-algo-{number}-{rule.name}-{mark}"
    return WantedAlarm(name, host, rule.name, threshold, length_s, count, inclusive)


def span_s(rule: Rule) -> float:
    """How far back its figures go."""
    if rule.stall is not None:
        return rule.stall.span_s
    return rule.min_gpu_utilization.over_s if rule.min_gpu_utilization is not None else 0.0


def reason(rule: Rule, job: TrainingJob, gpus: int, readings: Readings, now: datetime) -> str | None:
    """How the rule is broken, in words; None where it is not, or nobody can know."""
    end = _end(job, readings, now)
    if end is None or job.training_since is None:
        return None
    # This training's, not one's before an interruption.
    trained_s = (end - job.training_since).total_seconds()
    if rule.stall is not None:
        return _stalled(rule.stall, gpus, readings, end, trained_s)
    return _wasteful(rule.min_gpu_utilization, gpus, readings, end, trained_s) if rule.min_gpu_utilization else None


def begins_to_stall(wanted: Stall, job: TrainingJob, gpus: int, readings: Readings, now: datetime) -> bool:
    """As `stalls.begins_to_stall`: nothing moved in the newest window, and not for all of the windows yet."""
    end = _end(job, readings, now)
    if end is None or readings.last_line_at is None:
        return False
    silent_s = (end - readings.last_line_at).total_seconds()
    start, most = end - timedelta(seconds=wanted.window_s), wanted.below * 100 * gpus
    newest = [_mean(host.gpu, start, end) for host in readings.hosts]
    if silent_s < wanted.window_s or not all(mean is not None and mean <= most for mean in newest):
        return False
    used = [mean for host in readings.hosts for mean in _windows(host.gpu, wanted, end)]
    return silent_s < wanted.span_s or any(mean > most for mean in used)


def _end(job: TrainingJob, readings: Readings, now: datetime) -> datetime | None:
    """Until when all hosts of a job have figures; None where one has none, or no new ones."""
    ends = [host.gpu[-1][0] for host in readings.hosts if host.gpu]
    if {host.name for host in readings.hosts} != set(job.hosts) or len(ends) < job.nodes:
        return None
    end = min(ends) + timedelta(seconds=MINUTE_S)
    return end if (now - end).total_seconds() <= _LATE_S else None


def _stalled(wanted: Stall, gpus: int, readings: Readings, end: datetime, trained_s: float) -> str | None:
    if trained_s < max(wanted.after_s, wanted.span_s) or readings.last_line_at is None:
        return None
    silent_s = (end - readings.last_line_at).total_seconds()
    used = [_windows(host.gpu, wanted, end) for host in readings.hosts]
    cores = [_windows(host.cpu, wanted, end) for host in readings.hosts]
    if silent_s < wanted.span_s or not all(used) or not all(cores):
        return None
    if any(mean > wanted.below * 100 * gpus for host in used for mean in host):
        return None
    working = any(mean > _WAITING_CPU for host in cores for mean in host)
    if working and silent_s < wanted.span_s + wanted.working_s:
        return None
    return f"no line of the log and no work of its GPUs for {span_text(silent_s)}"


def _wasteful(wanted: Utilization, gpus: int, readings: Readings, end: datetime, trained_s: float) -> str | None:
    if trained_s < wanted.after_s + wanted.over_s:
        return None
    means = [_mean(host.gpu, end - timedelta(seconds=wanted.over_s), end) for host in readings.hosts]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(means):
        return None
    mean = sum(known) / len(known) / (100 * gpus)
    if mean >= wanted.value:
        return None
    return f"its {gpus * len(known)} accelerators were used {mean:.0%} over {span_text(wanted.over_s)}"


def _windows(figures: Figures, wanted: Stall, end: datetime) -> list[float]:
    """The mean of each window; none at all where one of them is not covered."""
    length = timedelta(seconds=wanted.window_s)
    found = [_mean(figures, end - length * (number + 1), end - length * number) for number in range(wanted.windows)]
    return [mean for mean in found if mean is not None] if None not in found else []


def _mean(figures: Figures, start: datetime, end: datetime) -> float | None:
    inside = [value for at, value in figures if start <= at < end]
    # A window shorter than a minute has the figure of the minute that it is in.
    least = max(1.0, (end - start).total_seconds() / MINUTE_S * _COVERED)
    if len(inside) < math.floor(least) or not all(math.isfinite(value) for value in inside):
        return None
    return sum(inside) / len(inside)
