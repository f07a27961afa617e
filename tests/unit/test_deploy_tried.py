"""A deployed function is tried once: as long as it may take, and nobody relies on one that fails."""

from __future__ import annotations

import pytest
from deployed_account import HOME, Account, Stoker, account, bucket, stoker

from stoker.deploy import aws
from stoker.governor import deployment_record
from stoker.providers.ec2.client import Clients
from stoker.testing.memory_store import MemoryStore

__all__ = ["account", "bucket", "stoker"]

DEPLOY = ("deploy", "aws", "-y")
TICK = {"stoker": {"tick": True}}


def broken(_told: object) -> dict[str, str]:
    return {"errorType": "ImportError", "errorMessage": "no module"}


def test_it_is_waited_for_as_long_as_it_may_take(account: Account, stoker: Stoker) -> None:
    assert stoker(*DEPLOY)[0] == 0
    assert account.invoked == [("RequestResponse", TICK)]
    function = account.stacks[HOME]["Template"]["Resources"]["Function"]["Properties"]
    (waited_s,) = filter(None, account.read_timeouts)
    assert waited_s is not None and waited_s > function["Timeout"]


def test_a_client_waits_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    clients = Clients()
    patient, usual = clients.get("lambda", HOME, read_timeout_s=330.0), clients.get("lambda", HOME)
    assert (patient.meta.config.read_timeout, usual.meta.config.read_timeout) == (330.0, 30)
    assert clients.get("lambda", HOME) is usual


def test_an_update_that_breaks_it_is_not_relied_on(
    account: Account, bucket: MemoryStore, stoker: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stoker(*DEPLOY)[0] == 0
    assert deployment_record.find(bucket) is not None
    monkeypatch.setattr(aws, "_TRY_S", 0.0)
    account.answers = broken
    code, _, said = stoker(*DEPLOY, "--sagemaker")
    assert code != 0 and "is deployed, and fails: ImportError: no module" in said
    assert deployment_record.find(bucket) is None, "it worked before, and does not now"
    there = deployment_record.read(bucket, "aws")
    assert there is not None and there.state == "making" and there.sagemaker


def test_what_passes_in_a_moment_is_tried_again(account: Account, bucket: MemoryStore, stoker: Stoker) -> None:
    answers = [broken, account.answers]
    account.answers = lambda told: answers.pop(0)(told)
    assert stoker(*DEPLOY)[0] == 0
    assert len(account.invoked) == 2 and deployment_record.find(bucket) is not None


def test_whoever_wakes_it_does_not_wait(account: Account, bucket: MemoryStore, stoker: Stoker) -> None:
    assert stoker(*DEPLOY)[0] == 0
    account.invoked.clear()
    found = deployment_record.wake(bucket, ["x-bcdf"])
    assert found is not None and account.invoked == [("Event", {"stoker": {"jobs": ["x-bcdf"]}})]
