"""Regions that do not answer: none is on record before it did, and none keeps the others from being removed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deployed_account import DENIED, HOME, NOT_ENABLED, NOWHERE, Account, Stoker, account, bucket, stoker

from stoker.external_jobs.gpu_alarms import alarm_prefix
from stoker.governor import deployment_record
from stoker.governor.deployment_record import DeploymentRecord
from stoker.model import keys
from stoker.policy import versions
from stoker.testing.memory_store import MemoryStore

__all__ = ["account", "bucket", "stoker"]

DEPLOY = ("deploy", "aws", "-y")
REMOVE = ("deploy", "aws", "--remove", "-y")


def test_a_slip_of_the_pen_is_told_without_asking(account: Account, bucket: MemoryStore, stoker: Stoker) -> None:
    code, _, said = stoker(*DEPLOY, "--events-from", "us-wset-2")
    assert code == 2 and said == "stoker: --events-from: AWS has no region 'us-wset-2'; did you mean us-west-2?\n"
    assert account.asked == [] and not list(bucket.list(keys.DEPLOYED))


@pytest.mark.parametrize("closed", [NOT_ENABLED, DENIED, NOWHERE])
def test_a_region_that_is_closed_stops_it_before_anything_is_made(
    closed: Exception, account: Account, bucket: MemoryStore, stoker: Stoker
) -> None:
    account.closed["me-south-1"] = closed
    code, _, said = stoker(*DEPLOY, "--events-from", "eu-west-1", "--events-from", "me-south-1")
    assert code == 2 and said.count("\n") == 1
    assert "--events-from me-south-1: CloudFormation does not answer there, and nothing was changed" in said
    assert account.changes() == [] and not list(bucket.list(keys.DEPLOYED))


def test_one_that_was_closed_later_can_be_given_up(account: Account, bucket: MemoryStore, stoker: Stoker) -> None:
    assert stoker(*DEPLOY, "--events-from", "eu-west-1", "--events-from", "me-south-1")[0] == 0
    account.closed["me-south-1"] = DENIED
    assert stoker(*DEPLOY)[0] == 2
    code, _, said = stoker(*DEPLOY, "--no-events-from")
    assert code == 0 and "in eu-west-1: removed" in said
    assert "in me-south-1: perhaps still there" in said and "--forget me-south-1 leaves it as it is" in said
    found = deployment_record.find(bucket)
    assert found is not None and (found.elsewhere, found.leaving) == ((), ("me-south-1",))

    # It is tried again until it is open, or nobody wants to know.
    assert "me-south-1: perhaps still there" in stoker(*DEPLOY)[2]
    account.closed.clear()
    assert "in me-south-1: removed" in stoker(*DEPLOY)[2]
    assert [*account.stacks] == [HOME]
    left = deployment_record.find(bucket)
    assert left is not None and left.leaving == ()


def test_a_region_is_forgotten_by_who_says_so(account: Account, bucket: MemoryStore, stoker: Stoker) -> None:
    assert stoker(*DEPLOY, "--events-from", "eu-west-1", "--events-from", "me-south-1")[0] == 0
    account.closed["me-south-1"] = NOT_ENABLED
    assert stoker(*DEPLOY, "--forget", "me-south-1")[0] == 0
    found = deployment_record.find(bucket)
    assert found is not None and (found.elsewhere, found.leaving) == (("eu-west-1",), ())
    assert stoker(*REMOVE)[0] == 0
    assert stoker(*DEPLOY, "--forget", HOME)[::2] == (
        2,
        f"stoker: --forget {HOME}: this is the governor's own region\n",
    )


def test_removing_takes_what_it_can_and_names_the_rest(account: Account, bucket: MemoryStore, stoker: Stoker) -> None:
    assert stoker(*DEPLOY, "--events-from", "me-south-1", "--events-from", "eu-west-1")[0] == 0
    account.alarms = {"eu-west-1": [f"{alarm_prefix(bucket.url)}x"]}
    account.closed["me-south-1"] = NOWHERE
    code, _, said = stoker(*REMOVE)
    assert code != 0 and [*account.stacks] == ["me-south-1"] and account.alarms == {}
    told = said.splitlines()[-1]
    assert "perhaps a stack (" in told and " in me-south-1; remove it by hand, or try again" in told
    assert "`--forget me-south-1` leaves as it is what is there" in told and told.count("perhaps") == 1
    assert deployment_record.find(bucket) is None and deployment_record.read(bucket, "aws") is not None
    assert stoker(*REMOVE)[0] != 0, "it is on record until it is gone, or forgotten"
    assert stoker(*REMOVE, "--forget", "me-south-1")[0] == 0
    assert not list(bucket.list(keys.DEPLOYED))


def test_a_region_of_the_policys_that_never_answers_is_forgotten_too(
    account: Account, bucket: MemoryStore, stoker: Stoker
) -> None:
    assert stoker(*DEPLOY)[0] == 0
    versions.write(bucket, "sagemaker: {regions: [me-south-1]}", "me", "")
    account.closed["me-south-1"] = DENIED
    code, _, said = stoker(*REMOVE)
    assert code != 0 and "perhaps alarms (" in said and "--forget me-south-1" in said
    assert stoker(*REMOVE, "--forget", "me-south-1")[0] == 0


def test_a_log_that_a_call_makes_again_goes_too(account: Account, stoker: Stoker) -> None:
    assert stoker(*DEPLOY)[0] == 0
    account.logs_again = 1
    assert stoker(*REMOVE)[0] == 0
    assert stoker(*DEPLOY)[0] == 0
    account.logs_again = 3
    code, _, said = stoker(*REMOVE)
    assert code != 0 and "log group /aws/lambda/" in said


def test_what_is_on_record_before_anything_is_made() -> None:
    """All that is to be, and all that may be there; only what was relied on still is."""
    wanted = DeploymentRecord("aws", "stoker-1", HOME, "stoker-1", "0" * 64, "me", elsewhere=("eu-west-1",))
    assert deployment_record.record_before_change(wanted, None) == replace(wanted, state="making")
    before = replace(wanted, elsewhere=("eu-west-1", "eu-north-1"), leaving=("ap-south-1",), notify=("sns:x",))
    begun = deployment_record.record_before_change(wanted, before)
    assert begun == replace(wanted, leaving=("eu-north-1", "ap-south-1"), notify=("sns:x",), state="there")
    for state in ("making", "removing"):
        assert deployment_record.record_before_change(wanted, replace(before, state=state)).state == "making"
    elsewhere = deployment_record.record_before_change(replace(wanted, region="eu-north-1"), before)
    assert elsewhere.leaving == ("ap-south-1", HOME)
