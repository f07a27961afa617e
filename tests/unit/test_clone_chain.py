"""The log of a clone chain, and the names, tags and requests of clones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from external_world import asked
from stopped_job import NOW, ago

from stoker.external_jobs.clone_chain import (
    ChainEntry,
    ChainEvent,
    ChainRecord,
    CloneChain,
    Cloned,
    Cloning,
    GaveUp,
    JobEnded,
    JobSeen,
    RuleWarning,
    StopAccepted,
    StopCancelled,
    Stopping,
    StopUnanswered,
    fold,
)
from stoker.external_jobs.clone_request import Lineage, clone_name, parse_lineage, without_metrics
from stoker.external_jobs.clone_request import build_request as clone_request
from stoker.model import codec

# ── The log ───────────────────────────────────────────────────────────────────────────────────────────────────────────

EVENTS: list[tuple[ChainEvent, dict[str, Any]]] = [
    (JobSeen("bert", True, NOW), {"kind": "seen", "job": "bert", "in_progress": True}),
    (RuleWarning("bert", "policy:x", "x"), {"kind": "warned", "job": "bert", "rule": "policy:x", "code": "x"}),
    (Stopping("bert", "policy:x", "restart"), {"kind": "stopping", "rule": "policy:x", "after": "restart"}),
    (StopAccepted("bert"), {"kind": "stop-accepted", "job": "bert"}),
    (StopUnanswered("bert"), {"kind": "stop-unanswered", "job": "bert"}),
    (StopCancelled("bert"), {"kind": "stop-cancelled", "job": "bert"}),
    (Cloning("bert", "bert-r1", 1, "x", True), {"kind": "cloning", "of": "bert", "name": "bert-r1", "number": 1}),
    (Cloned("bert", "bert-r1"), {"kind": "cloned", "of": "bert", "name": "bert-r1"}),
    (GaveUp("bert", "late", True), {"kind": "gave-up", "job": "bert", "rule": "late", "meant": True}),
    (
        JobEnded("bert", "Failed", 5.0, 2.0, 1),
        {"kind": "ended", "status": "Failed", "trained_s": 5.0, "interruptions": 1},
    ),
]


@pytest.mark.parametrize(("event", "written"), EVENTS, ids=[type(event).__name__ for event, _ in EVENTS])
def test_an_entry_is_written_as_every_stoker_reads_it(event: ChainEvent, written: dict[str, Any]) -> None:
    """Logs outlive versions: what is in a store was written by an older one."""
    record = ChainRecord("token", "me", "so", event)
    tree = json.loads(codec.dumps(record))
    assert written.items() <= tree["event"].items()
    assert codec.loads(ChainRecord, codec.dumps(record)) == record


def folded(*events: ChainEvent) -> CloneChain:
    records = (ChainRecord("t", "me", "so", event) for event in events)
    return fold("bert", [ChainEntry(seq, ago(100 - seq), record) for seq, record in enumerate(records, 1)])


def test_an_entry_of_an_older_stoker_says_no_more_than_it_did() -> None:
    def load(event: str) -> ChainEvent:
        text = f'{{"token": "t", "by": "me", "reason": "so", "event": {event}}}'
        return codec.loads(ChainRecord, text.encode()).event

    assert load('{"kind": "gave-up", "job": "a", "rule": "late"}') == GaveUp("a", "late", meant=False)
    assert load('{"kind": "ended", "job": "a", "status": "Failed"}') == JobEnded("a", "Failed", 0.0, None, 0)
    assert load('{"kind": "stopping", "job": "a", "rule": "x"}') == Stopping("a", "x", "")


def test_a_stop_that_was_taken_back_leaves_no_trace_and_others_stay() -> None:
    chain = folded(Stopping("a", "x"), Stopping("b", "x"), StopUnanswered("a"), StopUnanswered("b"), StopCancelled("a"))
    assert list(chain.stops) == list(chain.stops_at) == ["b"] and chain.unanswered_stops == {"b"}
    assert chain.stops_at["b"] == ago(98) and chain.seq == 5


def test_a_later_job_of_the_same_name_begins_anew() -> None:
    first = folded(JobSeen("bert", True, ago(5000)), JobEnded("bert", "Failed"))
    assert first.is_another("bert", ago(4999)) and not first.is_another("bert", ago(4999.5))
    assert not first.is_another("bert", None) and not first.is_another("other", ago(1))
    later = folded(JobSeen("bert", True, ago(5000)), JobEnded("bert", "Failed"), JobSeen("bert", False, ago(10)))
    assert later.ended == {} and not later.seen["bert"].in_progress and later.seq == 3


def test_of_two_entries_about_the_same_thing_the_first_counts() -> None:
    chain = folded(JobEnded("a", "Failed"), JobEnded("a", "Stopped"), GaveUp("a", "late"), GaveUp("a", "refused"))
    assert chain.ended["a"].status == "Failed" and chain.gave_up["a"].rule == "late"
    assert [over.job for over in folded(JobEnded("a", "Failed"), JobEnded("b", "Failed")).others("a")] == ["b"]


def test_a_family_holds_its_origin_and_its_clones() -> None:
    chain = folded(Cloning("bert", "bert-r1", 1, "x", True))
    assert chain.holds("bert") and chain.holds("bert-r1") and not chain.holds("gpt")


# ── Clones ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tags_tell_which_clone_it_is_in_three_or_in_one() -> None:
    found = Lineage("bert", "bert-r1", 2)
    assert parse_lineage(found.tags(3)) == found == parse_lineage(found.tags(2))
    assert len(found.tags(3)) == 3 and len(found.tags(2)) == 1
    assert parse_lineage({"stoker:origin": "bert", "stoker:clone": "x"}) == Lineage("bert", "", 0)
    assert parse_lineage({}) == Lineage("", "", 0)


def test_names_of_clones_count_on() -> None:
    first = clone_name("bert", NOW)
    assert first.startswith("bert-r1-") and clone_name(first, NOW).startswith("bert-r2-")
    assert clone_name("bert", None) != first != clone_name("bert", ago(60))
    long = clone_name("b" * 62 + "-", NOW)
    assert len(long) <= 63 and "--" not in long


def test_empty_keys_are_not_asked_for() -> None:
    """They are how a description says that there is none; a request with them is refused."""
    told = asked(
        OutputDataConfig={"S3OutputPath": "s3://x", "KmsKeyId": ""},
        ResourceConfig={"InstanceCount": 1, "VolumeKmsKeyId": "", "SelectedInstanceType": "ml.g5", "KeepAlive": ""},
        VpcConfig={},
        Environment=None,
        DebugRuleConfigurations=[],
    )
    found = clone_request(told, [], name="bert-r1", origin="bert", number=1, spot=True)
    assert found["OutputDataConfig"] == {"S3OutputPath": "s3://x"}
    assert found["ResourceConfig"] == {"InstanceCount": 1, "KeepAlive": ""}
    assert not {"VpcConfig", "Environment", "DebugRuleConfigurations"} & set(found)
    assert found["EnableManagedSpotTraining"] is True and "MaxWaitTimeInSeconds" in found["StoppingCondition"]


def test_a_request_without_metrics_keeps_the_rest() -> None:
    algorithm = {"TrainingImage": "x", "MetricDefinitions": [{}]}
    assert without_metrics({"A": 1, "AlgorithmSpecification": algorithm}) == {
        "A": 1,
        "AlgorithmSpecification": {"TrainingImage": "x"},
    }
