"""What people are told of training jobs of others."""

from __future__ import annotations

from typing import Any

import pytest
from stopped_job import NOW

from stoker.external_jobs import notifications
from stoker.external_jobs.clone_chain import (
    ChainEntry,
    ChainEvent,
    ChainRecord,
    Cloned,
    GaveUp,
    JobEnded,
    JobSeen,
    RuleWarning,
    StopAccepted,
    Stopping,
)
from stoker.external_jobs.notifications import JobContext
from stoker.policy.policy_file import parse_policy

RULES = parse_policy(b"rules: [{name: still, stall: {window: 5m}}, {name: few, max_nodes: 1}]", "p")


@pytest.mark.parametrize(
    ("event", "kind", "thing"),
    [
        (JobSeen("bert", True), "started", "bert"),
        (JobSeen("bert", False), None, ""),
        (JobSeen("bert-r1", True), None, ""),
        (RuleWarning("bert", "policy:few", "x"), "rule", "bert"),
        (RuleWarning("bert", "policy:still", "x"), "stalled", "bert"),
        (Stopping("bert", "policy:still"), "stalled", "bert"),
        (Stopping("bert", "policy:few"), "rule", "bert"),
        (Stopping("bert", "policy:few", "on-demand"), "reclaimed", "bert"),
        (Cloned("bert", "bert-r1"), "resumed", "bert-r1"),
        (JobEnded("bert", "Completed"), "finished", "bert"),
        (JobEnded("bert", "Failed"), "failed", "bert"),
        (JobEnded("bert", "Stopped"), "stopped", "bert"),
        (StopAccepted("bert"), None, ""),
        (GaveUp("bert", "too-short"), None, ""),
        (GaveUp("bert", "too-short", meant=True), "failed", "bert"),
        *(
            (GaveUp("bert", rule), "failed", "bert")
            for rule in (
                "late",
                "name-taken",
                "no-room",
                "refused",
                "resumed-by-owner",
                "stop-unclear",
                "unread",
                "unwanted",
            )
        ),
    ],
)
def test_what_an_entry_means_for_people(event: ChainEvent, kind: str | None, thing: str) -> None:
    entry = ChainEntry(7, NOW, ChainRecord("t", "me", "so it is", event))
    found = notifications.notification_of(entry, JobContext("bert", "us-east-1", "SageMaker", {"team": "nlp"}), RULES)
    if kind is None:
        assert found is None
        return
    assert found is not None and (found.kind, found.thing, found.reason) == (kind, thing, "so it is")
    assert (found.job, found.name, found.seq, found.at) == ("bert", "bert", 7, NOW)
    assert (found.zone, found.where, dict(found.tags)) == ("us-east-1", "SageMaker", {"team": "nlp"})


def test_a_rule_that_is_only_audited_is_told_as_such_and_an_end_with_its_cost() -> None:
    def tell(event: ChainEvent) -> Any:
        return notifications.notification_of(
            ChainEntry(1, NOW, ChainRecord("t", "me", "so", event)), JobContext("bert", "r"), RULES
        )

    assert tell(RuleWarning("bert", "policy:few", "policy:few/audit")).audit
    assert not tell(RuleWarning("bert", "policy:few", "policy:few")).audit
    assert tell(RuleWarning("bert", "policy:few", "policy:few")).rule == "policy:few"
    assert tell(JobEnded("bert", "Failed", cost=2.5)).cost == 2.5 and tell(Cloned("bert", "b")).cost is None
