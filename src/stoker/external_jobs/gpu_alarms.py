"""CloudWatch alarms on the GPU load of training jobs: the wanted alarms, and the check of CloudWatch's figures against
the rules. Pure.

An alarm is a wake-up for one rule and one host. The rule itself is checked with the figures of all hosts, since rules
are about all accelerators of a job.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stoker.core.policy_rules import Subject, applies
from stoker.external_jobs.training_job import ExternalJob
from stoker.model.durations import span_text
from stoker.model.policy import Policy, Rule, StallRule, UtilizationRule

# CloudWatch has one figure for each minute and host, with a delay.
MINUTE_S = 60.0
_LATE_S = 600.0
# A window with figures for a smaller share of its minutes proves nothing.
_MIN_COVERAGE = 0.75
# As in the agent: a process that only waits uses less than this of one core, in percent.
_WAITING_CPU = 5.0
# CloudWatch's limits: a period of at most a day, and a day in all where periods are shorter than an hour, else a week.
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
    # The alarm rings also at the threshold itself.
    inclusive: bool
    # The SNS topic that it notifies; empty: none.
    topic: str = ""


@dataclass(frozen=True)
class Alarm:
    """An alarm as CloudWatch describes it."""

    name: str
    host: str
    ringing: bool = False
    topics: tuple[str, ...] = ()

    def is_as(self, wanted: WantedAlarm) -> bool:
        """Return whether this is the wanted alarm. One with a topic also satisfies a governor that has none."""
        return self.name == wanted.name and (not wanted.topic or wanted.topic in self.topics)


Figures = tuple[tuple[datetime, float], ...]


@dataclass(frozen=True)
class HostMetrics:
    """CloudWatch's figures of one host, for each minute, in percent: the sums over its GPUs and over its cores."""

    name: str
    gpu: Figures = ()
    cpu: Figures = ()


@dataclass(frozen=True)
class JobFigures:
    """The figures of every host of a job, and the time of its last log line; None where that is unknown."""

    hosts: tuple[HostMetrics, ...]
    last_line_at: datetime | None = None


def alarm_prefix(store: str) -> str:
    """The prefix of the names of all alarms of a store."""
    return f"stoker-{hashlib.sha256(store.encode()).hexdigest()[:8]}-"


def accelerator_rules(policy: Policy, subject: Subject) -> tuple[Rule, ...]:
    """The rules about accelerators that apply to this job, including those that only warn."""
    return tuple(
        rule for rule in policy.rules if (rule.stall or rule.min_gpu_utilization) is not None and applies(rule, subject)
    )


def wanted_alarms(
    rules: Sequence[Rule], job: ExternalJob, gpus: int | None, start: str, topic: str = ""
) -> tuple[WantedAlarm, ...]:
    """One alarm for each host and rule of a job that trains. `gpus` is the number of one host; none where it is None or
    0, since their load cannot be read then."""
    if not job.training or not gpus:
        return ()
    every = (_alarm(rule, job, number, host, gpus, start) for rule in rules for number, host in _numbered(job))
    return tuple(replace(each, topic=topic) for each in every)


def _numbered(job: ExternalJob) -> list[tuple[int, str]]:
    return list(enumerate(job.hosts, 1))


def _alarm(rule: Rule, job: ExternalJob, number: int, host: str, gpus: int, start: str) -> WantedAlarm:
    if rule.stall is not None:
        share, period_s, periods, inclusive = rule.stall.below, rule.stall.window_s, rule.stall.windows, True
    else:
        assert rule.min_gpu_utilization is not None
        share, period_s, periods, inclusive = rule.min_gpu_utilization.value, rule.min_gpu_utilization.over_s, 1, False
    length_s = int(min(_DAY_S, max(MINUTE_S, math.ceil(period_s / MINUTE_S) * MINUTE_S)))
    # CloudWatch accepts no more periods. An alarm that rings too early is a harmless wake-up.
    max_count = int((_DAY_S if length_s < 3600 else _WEEK_S) // length_s)
    threshold = round(share * 100 * gpus, 4)
    count = max(1, min(periods, max_count))
    # A changed rule has alarms of other names, so that an old alarm is not taken for the new one.
    digest = hashlib.sha256(f"{rule.name}/{threshold}/{length_s}/{count}/{inclusive}".encode()).hexdigest()[:6]
    name = f"{start}{job.name}-algo-{number}-{rule.name}-{digest}"
    return WantedAlarm(name, host, rule.name, threshold, length_s, count, inclusive)


def span_s(rule: Rule) -> float:
    """The span of figures that a rule needs."""
    if rule.stall is not None:
        return rule.stall.span_s
    return rule.min_gpu_utilization.over_s if rule.min_gpu_utilization is not None else 0.0


def violation_text(rule: Rule, job: ExternalJob, gpus: int, readings: JobFigures, now: datetime) -> str | None:
    """The reason why the rule is broken; None where it is not, or where that is unknown."""
    end = _end(job, readings, now)
    if end is None or job.training_since is None:
        return None
    # The time of the current training, without those before an interruption.
    trained_s = (end - job.training_since).total_seconds()
    if rule.stall is not None:
        return _stalled(rule.stall, gpus, readings, end, trained_s)
    return _wasteful(rule.min_gpu_utilization, gpus, readings, end, trained_s) if rule.min_gpu_utilization else None


def begins_to_stall(limit: StallRule, job: ExternalJob, gpus: int, readings: JobFigures, now: datetime) -> bool:
    """Return whether nothing moved in the newest window, but not yet in all windows, like `stalls.begins_to_stall`."""
    end = _end(job, readings, now)
    if end is None or readings.last_line_at is None:
        return False
    silent_s = (end - readings.last_line_at).total_seconds()
    start, max_count = end - timedelta(seconds=limit.window_s), limit.below * 100 * gpus
    newest = [_mean(host.gpu, start, end) for host in readings.hosts]
    if silent_s < limit.window_s or not all(mean is not None and mean <= max_count for mean in newest):
        return False
    used = [mean for host in readings.hosts for mean in _windows(host.gpu, limit, end)]
    return silent_s < limit.span_s or any(mean > max_count for mean in used)


def _end(job: ExternalJob, readings: JobFigures, now: datetime) -> datetime | None:
    """The time until which all hosts of a job have figures; None where a host has none, or no recent ones."""
    ends = [host.gpu[-1][0] for host in readings.hosts if host.gpu]
    if {host.name for host in readings.hosts} != set(job.hosts) or len(ends) < job.nodes:
        return None
    end = min(ends) + timedelta(seconds=MINUTE_S)
    return end if (now - end).total_seconds() <= _LATE_S else None


def _stalled(limit: StallRule, gpus: int, readings: JobFigures, end: datetime, trained_s: float) -> str | None:
    if trained_s < max(limit.after_s, limit.span_s) or readings.last_line_at is None:
        return None
    silent_s = (end - readings.last_line_at).total_seconds()
    used = [_windows(host.gpu, limit, end) for host in readings.hosts]
    cores = [_windows(host.cpu, limit, end) for host in readings.hosts]
    if silent_s < limit.span_s or not all(used) or not all(cores):
        return None
    if any(mean > limit.below * 100 * gpus for host in used for mean in host):
        return None
    working = any(mean > _WAITING_CPU for host in cores for mean in host)
    if working and silent_s < limit.span_s + limit.working_s:
        return None
    return f"no line of the log and no work of its GPUs for {span_text(silent_s)}"


def _wasteful(limit: UtilizationRule, gpus: int, readings: JobFigures, end: datetime, trained_s: float) -> str | None:
    if trained_s < limit.after_s + limit.over_s:
        return None
    means = [_mean(host.gpu, end - timedelta(seconds=limit.over_s), end) for host in readings.hosts]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(means):
        return None
    mean = sum(known) / len(known) / (100 * gpus)
    if mean >= limit.value:
        return None
    return f"its {gpus * len(known)} accelerators were used {mean:.0%} over {span_text(limit.over_s)}"


def _windows(figures: Figures, limit: StallRule, end: datetime) -> list[float]:
    """The mean of each window; empty where a window has too few figures."""
    length = timedelta(seconds=limit.window_s)
    found = [_mean(figures, end - length * (number + 1), end - length * number) for number in range(limit.windows)]
    return [mean for mean in found if mean is not None] if None not in found else []


def _mean(figures: Figures, start: datetime, end: datetime) -> float | None:
    inside = [value for at, value in figures if start <= at < end]
    # A window shorter than a minute uses the figure of its minute.
    least = max(1.0, (end - start).total_seconds() / MINUTE_S * _MIN_COVERAGE)
    if len(inside) < math.floor(least) or not all(math.isfinite(value) for value in inside):
        return None
    return sum(inside) / len(inside)
