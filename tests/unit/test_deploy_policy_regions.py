"""Regions that the policy governs on SageMaker: a deployed governor hears of them, or that is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed_account import DENIED, HOME, Account, Stoker, account, bucket, stoker

from stoker.cli import policy as command
from stoker.governor import deployment_record
from stoker.policy import versions
from stoker.testing.memory_store import MemoryStore

__all__ = ["account", "bucket", "stoker"]

DEPLOY = ("deploy", "aws", "-y")
POLICY = f"sagemaker: {{regions: [{HOME}, eu-west-1]}}"
TICK = ("Event", {"stoker": {"tick": True}})


@pytest.fixture
def written(bucket: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A policy about two regions, in a file."""
    monkeypatch.setattr(command, "opened_store", lambda: bucket)
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return str(file)


def test_the_policys_regions_send_their_events(account: Account, bucket: MemoryStore, stoker: Stoker) -> None:
    versions.write(bucket, POLICY, "me", "")
    code, _, said = stoker(*DEPLOY, "--sagemaker")
    assert code == 0 and "events come from eu-west-1, too: the policy covers training jobs there\n" in said
    found = deployment_record.find(bucket)
    assert found is not None and found.elsewhere == ("eu-west-1",) and {*account.stacks} == {HOME, "eu-west-1"}
    code, _, said = stoker(*DEPLOY)
    assert code == 0 and "events come from" not in said, "once"

    code, _, said = stoker(*DEPLOY, "--no-events-from")
    assert code == 0 and "covers training jobs in eu-west-1, from which no events will come" in said
    assert [*account.stacks] == [HOME]
    assert "without --sagemaker" in stoker(*DEPLOY, "--no-sagemaker")[2] and [*account.stacks] == [HOME]


def test_a_policy_that_is_set_warns_of_what_is_not_heard_and_wakes_it(
    account: Account, written: str, stoker: Stoker
) -> None:
    assert stoker(*DEPLOY)[0] == 0
    account.invoked.clear()
    code, _, said = stoker("policy", "set", written)
    assert code == 0 and said.count("warning") == 1
    assert "may not touch external training jobs; `stoker deploy aws --sagemaker` corrects that\n" in said
    assert account.invoked == [TICK], "a whole tick, and nobody waits for it"

    assert stoker(*DEPLOY, "--sagemaker", "--no-events-from")[0] == 0
    Path(written).write_text(POLICY.replace("eu-west-1", "eu-west-1, eu-north-1"))
    code, _, said = stoker("policy", "set", written)
    assert code == 0 and "gets no events from eu-west-1, eu-north-1; `stoker deploy aws --sagemaker` corrects" in said
    assert stoker(*DEPLOY)[0] == 0
    Path(written).write_text(POLICY)
    assert "warning" not in stoker("policy", "set", written)[2]


def test_a_governor_that_cannot_be_called_is_a_word(account: Account, written: str, stoker: Stoker) -> None:
    assert stoker(*DEPLOY, "--sagemaker")[0] == 0
    account.closed[HOME] = DENIED
    code, _, said = stoker("policy", "set", written)
    assert code == 0 and "policy version 1" in said and "could not be woken" in said


def test_without_one_nothing_is_said(account: Account, written: str, stoker: Stoker) -> None:
    code, _, said = stoker("policy", "set", written)
    assert code == 0 and said.count("\n") == 1 and account.asked == []
