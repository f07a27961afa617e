"""What is made of SageMaker's descriptions and CloudWatch's figures: where anything is not known, nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from external_world import REGION, asked

from stoker.core import policy_rules
from stoker.external_jobs import chain_log, gpu_alarms
from stoker.external_jobs.clone_chain import ChainRecord, CloneChain, Cloning, JobSeen, fold
from stoker.external_jobs.gpu_alarms import Figures, HostMetrics, JobFigures
from stoker.external_jobs.training_job import ExternalJob, parse_description
from stoker.model.errors import StoreError, StoreUnavailable
from stoker.policy.policy_file import parse_policy
from stoker.testing.memory_store import Fault, MemoryStore

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=timezone.utc)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def described(*steps: tuple[str, float, float | None], **changes: Any) -> ExternalJob:
    """A job that went through these: a status, and the minutes ago when it began and ended."""
    transitions = [
        {"Status": status, "StartTime": ago(begin), **({} if end is None else {"EndTime": ago(end)})}
        for status, begin, end in steps
    ]
    told = {
        **asked(),
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": steps[-1][0] if steps else "Starting",
        "SecondaryStatusTransitions": transitions,
        **changes,
    }
    return parse_description(told, [{"Key": "team", "Value": "nlp"}, {"Key": "aws:x", "Value": "y"}], REGION)


def test_how_long_it_trained() -> None:
    job = described(("Starting", 100, 90), ("Training", 90, 60), ("Interrupted", 60, 50), ("Training", 50, None))
    assert job.trained_s(NOW) == 80 * 60 and job.training_since == ago(50) and job.interruptions == 1
    # Told in another order, and without when they ended.
    mixed = described(("Training", 50, None), ("Training", 90, None), ("Interrupted", 60, None))
    assert mixed.trained_s(NOW) == 80 * 60 and mixed.training_since == ago(50)
    over = described(("Training", 90, None), TrainingJobStatus="Failed", TrainingEndTime=ago(30))
    assert over.trained_s(NOW) == 60 * 60 and over.training_since is None and over.ended_at == ago(30)


def test_how_long_it_waits() -> None:
    waiting = described(("Training", 90, 60), ("Interrupted", 60, 50), ("Starting", 50, None))
    assert waiting.waiting_since == ago(60)
    assert described(("Starting", 90, 60), ("Training", 60, None)).waiting_since is None
    assert described(("Starting", 90, None), TrainingJobStatus="Stopping").waiting_since is None


def test_what_rules_are_held_against() -> None:
    job = described(("Training", 90, None))
    spec = job.spec()
    assert (spec.name, spec.nodes, spec.tags, spec.resources.region) == ("bert", 2, {"team": "nlp"}, REGION)
    assert spec.environment.container is not None and spec.environment.container.image == "1234.dkr.ecr/bert:1"
    assert [(each.provider, each.machine, each.spot) for each in job.offerings()] == [
        ("sagemaker", "ml.g5.12xlarge", True)
    ]
    assert job.hosts == ("bert/algo-1", "bert/algo-2")


def test_all_groups_of_a_cluster_are_held_against_the_rules() -> None:
    groups = [
        {"InstanceType": "ml.c5.xlarge", "InstanceCount": 2, "InstanceGroupName": "a"},
        {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1, "InstanceGroupName": "b"},
    ]
    job = described(ResourceConfig={"InstanceGroups": groups})
    assert (job.machines, job.nodes) == (("ml.c5.xlarge", "ml.p5.48xlarge"), 3)
    policy = parse_policy(b"rules: [{machines: [ml.c5.*]}]", "p")
    subject = policy_rules.Subject(job.spec(), NOW.date(), job.name)
    broken = [policy_rules.broken(policy, subject, (each,)) for each in job.offerings()]
    assert [len(found) for found in broken] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "parent"),
    [
        ({"TuningJobArn": "arn:aws:sagemaker:us-east-1:1:hyper-parameter-tuning-job/sweep"}, "tuning job sweep"),
        ({"AutoMLJobArn": "arn:x/auto"}, "AutoML job auto"),
        ({"TrainingJobName": "pipelines-1a2b-train"}, "pipeline"),
        ({}, ""),
    ],
)
def test_whose_child_it_is(changes: dict[str, str], parent: str) -> None:
    assert described(**changes).parent == parent
    tagged = parse_description(
        asked(), [{"Key": "sagemaker:pipeline-execution-arn", "Value": "arn:x/execution/9"}], REGION
    )
    assert tagged.parent == "pipeline 9"


@pytest.mark.parametrize("strange", [None, 5, "text", [], {}, [5], [{}], {"S3Uri": None}, float("nan")])
def test_nothing_in_a_description_is_strange_enough_to_raise(strange: Any) -> None:
    for name in (*asked(), "SecondaryStatusTransitions", "FinalMetricDataList", "TrainingEndTime", "FailureReason"):
        job = parse_description({**asked(), name: strange}, [], REGION)
        job.spec()
        job.offerings()
        assert job.trained_s(NOW) == 0
    assert parse_description({}, [{}], REGION).status == ""


# ── Figures ───────────────────────────────────────────────────────────────────────────────────────────────────────────

RULES = parse_policy(
    b"""
rules:
  - stall: {window: 5m, windows: 3, after: 20m, working: 1h}
  - min_gpu_utilization: {value: 80%, over: 30m, after: 10m}
""",
    "p",
).rules
STALL, WASTE = RULES
TRAINING = described(("Training", 120, None))


def figures(percent: float, minutes: float = 60, late: float = 1) -> Figures:
    return tuple((ago(minute), percent) for minute in range(int(minutes + late), int(late) - 1, -1))


def readings(
    gpu: Figures | None = None, cpu: Figures | None = None, silent: float | None = 60, hosts: int = 2
) -> JobFigures:
    idle = figures(0)
    names = [f"bert/algo-{number}" for number in range(1, hosts + 1)]
    found = tuple(HostMetrics(name, idle if gpu is None else gpu, idle if cpu is None else cpu) for name in names)
    return JobFigures(found, None if silent is None else ago(silent))


def stalled(found: JobFigures, job: ExternalJob = TRAINING, now: datetime = NOW) -> bool:
    return gpu_alarms.violation_text(STALL, job, 4, found, now) is not None


def wasteful(found: JobFigures, job: ExternalJob = TRAINING, now: datetime = NOW) -> bool:
    return gpu_alarms.violation_text(WASTE, job, 4, found, now) is not None


def test_what_is_idle() -> None:
    assert stalled(readings()) and wasteful(readings())
    assert stalled(readings(figures(4.0))) and not stalled(readings(figures(4.1)))
    assert wasteful(readings(figures(319))) and not wasteful(readings(figures(320)))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(readings(hosts=1), id="a host that is missing"),
        pytest.param(readings(hosts=3), id="a host of another's"),
        pytest.param(
            JobFigures((*readings(hosts=1).hosts, HostMetrics("bert/algo-2")), ago(60)), id="a host without figures"
        ),
        pytest.param(readings(figures(0, late=20)), id="nothing new"),
        pytest.param(readings(figures(0, minutes=9)), id="a short past"),
        pytest.param(readings(figures(0)[::3]), id="gaps"),
        pytest.param(readings(figures(float("nan"))), id="no numbers"),
        pytest.param(readings(()), id="nothing"),
    ],
)
def test_what_nobody_knows_is_not_idle(found: JobFigures) -> None:
    assert not stalled(found) and not wasteful(found)


def test_one_idle_host_of_two_is_no_stall_and_half_the_use() -> None:
    busy = readings(figures(400)).hosts[0]
    mixed = JobFigures((busy, readings().hosts[1]), ago(60))
    assert not stalled(mixed) and wasteful(mixed)
    assert gpu_alarms.violation_text(WASTE, TRAINING, 4, mixed, NOW) == "its 8 accelerators were used 50% over 30 min"


def test_a_young_training_is_not_judged() -> None:
    for minutes, is_stalled, is_wasteful in ((19, False, False), (21, True, False), (41, True, True)):
        # It had trained for long before it was interrupted.
        young = described(("Training", 500, 100), ("Interrupted", 100, minutes), ("Training", minutes, None))
        assert (stalled(readings(), young), wasteful(readings(), young)) == (is_stalled, is_wasteful)
    assert not stalled(readings(), replace(TRAINING, training_since=None))


def test_a_log_that_moves_or_that_nobody_can_read_is_no_stall() -> None:
    assert not stalled(readings(silent=10)) and not stalled(readings(silent=None)) and stalled(readings(silent=16))


def test_processors_at_work_excuse_for_a_while() -> None:
    assert not stalled(readings(cpu=figures(6))) and stalled(readings(cpu=figures(5)))
    assert stalled(readings(cpu=figures(600), silent=76)) and not stalled(readings(cpu=(), silent=76))


def test_alarms_are_what_cloudwatch_takes() -> None:
    # As one that was set before spans were bounded.
    text = b"rules: [{stall: {window: 10s, windows: 9000}}, {min_gpu_utilization: {value: 1%, over: 30d}}]"
    long = parse_policy(text, "p", version=1).rules
    for rule, (period_s, periods) in zip(long, ((60, 1440), (86400, 1)), strict=True):
        for wanted in gpu_alarms.wanted_alarms((rule,), TRAINING, 8, "stoker-x-"):
            assert (wanted.period_s, wanted.periods) == (period_s, periods) and len(wanted.name) <= 255


# ── The log of a family ───────────────────────────────────────────────────────────────────────────────────────────────


def record(token: str, name: str = "bert-r1") -> ChainRecord:
    return ChainRecord(token, "me", "so", Cloning("bert", name, 1, "x", True))


def test_one_of_two_writers_wins() -> None:
    store = MemoryStore(lambda: NOW)
    assert chain_log.append(store, REGION, "bert", 1, record("mine"))
    assert chain_log.append(store, REGION, "bert", 1, record("mine"))
    assert not chain_log.append(store, REGION, "bert", 1, record("yours", "other"))
    assert chain_log.read(store, REGION, "bert").clones["bert"].name == "bert-r1"


def test_a_lost_reply_is_looked_up() -> None:
    store = MemoryStore(lambda: NOW)
    losing = store.client(lambda operation, _key: Fault(after=True) if operation == "create" else None)
    assert chain_log.append(losing, REGION, "bert", 1, record("mine"))
    failing = store.client(lambda operation, _key: Fault() if operation == "create" else None)
    with pytest.raises(StoreUnavailable):
        chain_log.append(failing, REGION, "bert", 2, record("mine"))


def test_what_only_a_newer_stoker_reads_is_not_decided_on() -> None:
    store = MemoryStore(lambda: NOW)
    store.create(f"external_jobs/sagemaker/{REGION}/bert/00000001.json", b'{"event":{"kind":"unheard-of"}}')
    with pytest.raises(StoreError, match="update this one"):
        chain_log.read(store, REGION, "bert")


def test_the_first_of_two_entries_about_the_same_counts() -> None:
    store = MemoryStore(lambda: NOW)
    chain_log.append(store, REGION, "bert", 1, ChainRecord("a", "me", "", JobSeen("bert", True)))
    chain_log.append(store, REGION, "bert", 2, record("b", "first"))
    chain_log.append(store, REGION, "bert", 3, record("c", "second"))
    chain = chain_log.read(store, REGION, "bert")
    assert chain.clones["bert"].name == "first" and chain.seq == 3 and chain.holds("first")
    assert not chain.holds("second") and fold("bert", []) == CloneChain("bert")
    assert chain_log.find(store, "first") == []
    assert chain_log.find(store, "bert") == [(REGION, "bert")]
