"""CloudWatch's figures of training jobs of others, at the edge of what is decided about them."""

from __future__ import annotations

from dataclasses import replace

from stopped_job import NOW, ago

from stoker.external_jobs import gpu_alarms
from stoker.external_jobs.gpu_alarms import HostMetrics, JobFigures
from stoker.external_jobs.training_job import ExternalJob
from stoker.policy.policy_file import parse_policy

STALL, WASTE = parse_policy(
    b"rules: [{name: stall, stall: {window: 5m, windows: 3, after: 30m}},"
    b" {name: waste, min_gpu_utilization: {value: 80%, over: 30m, after: 10m}}]",
    "p",
).rules
TRAINING = ExternalJob("bert", "us-east-1", "InProgress", "Training", nodes=1, training_since=ago(9 * 3600))


def measured(gpu: float = 0.0, cpu: float = 0.0, *, late_s: float = 0.0, silent_s: float = 3600.0) -> JobFigures:
    """Ninety minutes of figures, of which the last one is over `late_s` ago."""
    times = [ago(late_s + 60.0 * (number + 1)) for number in reversed(range(90))]
    host = HostMetrics("bert/algo-1", tuple((at, gpu) for at in times), tuple((at, cpu) for at in times))
    return JobFigures((host,), ago(late_s + silent_s))


def stalled(readings: JobFigures, job: ExternalJob = TRAINING) -> bool:
    return gpu_alarms.violation_text(STALL, job, 4, readings, NOW) is not None


def begins(readings: JobFigures) -> bool:
    assert STALL.stall is not None
    return gpu_alarms.begins_to_stall(STALL.stall, TRAINING, 4, readings, NOW)


def test_figures_may_be_ten_minutes_late() -> None:
    assert stalled(measured(late_s=600.0)) and not stalled(measured(late_s=601.0))


def test_a_stall_needs_its_whole_span_of_silence_and_of_training() -> None:
    assert stalled(measured(silent_s=900.0)) and not stalled(measured(silent_s=899.0))
    assert stalled(measured(), replace(TRAINING, training_since=ago(1800.0)))
    assert not stalled(measured(), replace(TRAINING, training_since=ago(1799.0)))


def test_processors_that_work_give_a_stall_more_time_to_the_second() -> None:
    assert STALL.stall is not None
    long_s = STALL.stall.span_s + STALL.stall.working_s
    assert stalled(measured(cpu=50.0, silent_s=long_s)) and not stalled(measured(cpu=50.0, silent_s=long_s - 1))
    assert stalled(measured(cpu=5.0)) and not stalled(measured(cpu=5.1))


def test_a_stall_begins_with_one_quiet_window_and_is_one_after_three() -> None:
    assert begins(measured(silent_s=300.0)) and not begins(measured(silent_s=299.0))
    assert begins(measured(silent_s=899.0)) and not begins(measured(silent_s=900.0))
    most = 4.0
    assert begins(measured(most, silent_s=300.0)) and not begins(measured(most + 0.1, silent_s=300.0))


def test_what_was_busy_in_an_earlier_window_only_begins_to_stall() -> None:
    quiet = measured()
    host = quiet.hosts[0]
    busy = tuple((at, 400.0 if ago(900) <= at < ago(600) else 0.0) for at, _ in host.gpu)
    mixed = replace(quiet, hosts=(replace(host, gpu=busy),))
    assert begins(mixed) and not stalled(mixed)


def test_nothing_begins_to_stall_where_the_log_or_the_figures_are_not_known() -> None:
    assert not begins(replace(measured(silent_s=300.0), last_line_at=None))
    assert not begins(JobFigures((HostMetrics("bert/algo-1"),), ago(300)))


def test_three_quarters_of_the_minutes_make_a_mean() -> None:
    whole = measured()
    host = whole.hosts[0]

    def with_minutes(count: int) -> JobFigures:
        """Of each of the last windows of five minutes, so many figures."""
        kept = tuple(each for number, each in enumerate(reversed(host.gpu)) if number % 5 < count)
        return replace(whole, hosts=(replace(host, gpu=tuple(reversed(kept))),))

    assert stalled(with_minutes(3)) and not stalled(with_minutes(2))


def test_waste_is_judged_once_it_trained_for_long_enough() -> None:
    def wasteful(trained_s: float, gpu: float = 0.0) -> str | None:
        return gpu_alarms.violation_text(WASTE, replace(TRAINING, training_since=ago(trained_s)), 4, measured(gpu), NOW)

    assert wasteful(2400.0) == "its 4 accelerators were used 0% over 30 min" and wasteful(2399.0) is None
    assert wasteful(2400.0, 319.0) is not None and wasteful(2400.0, 320.0) is None


def test_alarms_are_for_every_host_in_cloudwatchs_units() -> None:
    found = gpu_alarms.wanted_alarms((STALL, WASTE), replace(TRAINING, nodes=2), 4, "stoker-x-", "topic")
    assert [(each.host, each.rule, each.threshold, each.period_s, each.periods, each.inclusive) for each in found] == [
        ("bert/algo-1", "stall", 4.0, 300, 3, True),
        ("bert/algo-2", "stall", 4.0, 300, 3, True),
        ("bert/algo-1", "waste", 320.0, 1800, 1, False),
        ("bert/algo-2", "waste", 320.0, 1800, 1, False),
    ]
    assert all(each.topic == "topic" and each.name.startswith("stoker-x-bert-algo-") for each in found)
    assert gpu_alarms.wanted_alarms((STALL,), replace(TRAINING, secondary="Starting"), 4, "x") == ()
    assert (
        gpu_alarms.wanted_alarms((STALL,), TRAINING, 0, "x")
        == ()
        == gpu_alarms.wanted_alarms((STALL,), TRAINING, None, "x")
    )


def test_periods_are_whole_minutes_of_at_most_a_day_and_few_enough() -> None:
    text = b"rules: [{name: odd, stall: {window: 90s, windows: 2}}, {name: long, stall: {window: 1h, windows: 200}}]"
    odd, long = parse_policy(text, "p", version=1).rules
    assert [(each.period_s, each.periods) for each in gpu_alarms.wanted_alarms((odd,), TRAINING, 4, "x")] == [(120, 2)]
    assert [(each.period_s, each.periods) for each in gpu_alarms.wanted_alarms((long,), TRAINING, 4, "x")] == [
        (3600, 168)
    ]
