"""`stoker deploy status` on AWS: alive or not, when it passed, and what waits."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone

import pytest
from deployed_account import HOME, Account, Stoker, account, bucket, refused, stoker

from stoker.deploy import aws_status
from stoker.deploy.aws_entry_point import NAME as SIGN
from stoker.governor.pass_record import record_pass
from stoker.model import keys
from stoker.testing.memory_store import MemoryStore

__all__ = ["account", "bucket", "stoker"]

NAME = keys.deployment_name("s3://bucket/team")


@pytest.fixture
def deployed(account: Account, bucket: MemoryStore, stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> Account:
    monkeypatch.setattr(aws_status, "Clients", lambda: account)
    assert stoker("deploy", "aws", "-y")[0] == 0
    record_pass(bucket, SIGN, 0, lambda: 0.0)
    return account


def test_a_governor_that_is_well(deployed: Account, stoker: Stoker) -> None:
    code, out, _ = stoker("deploy", "status")
    assert code == 0
    assert re.search(rf"{NAME} on aws in {HOME}: alive, passed \d+\.\d s ago", out)
    lines = {line.split("  ")[1].strip(): line for line in out.splitlines()[1:]}
    assert set(lines) == {"function", "slow clock", "clock", "undelivered", "alarms"}
    assert "4, none in alarm" in lines["alarms"] and "none" in lines["undelivered"]
    assert "off: no job is active" in lines["clock"]


def test_one_that_is_silent(deployed: Account, bucket: MemoryStore, stoker: Stoker) -> None:
    bucket._bucket.clock = lambda: datetime.now(timezone.utc) + timedelta(hours=3)
    code, out, _ = stoker("deploy", "status")
    assert code == 1 and "silent, passed 3h 00m ago" in out


def test_what_is_wrong_is_said(deployed: Account, stoker: Stoker) -> None:
    deployed.undelivered = 7
    deployed.ringing = {f"{NAME}-errors"}
    deployed.disabled = {f"{NAME}-net"}
    code, out, _ = stoker("deploy", "status", "--json")
    (told,) = json.loads(out)
    assert code == 1 and told["alive"] and not told["well"]
    bad = {each["what"]: each["text"] for each in told["checks"] if each["state"] == "bad"}
    assert bad == {
        "slow clock": "off: lost events are lost; deploy again",
        "undelivered": f"7 in the queue {NAME}-undelivered; the ticks have looked at every job since",
        "alarms": f"in alarm: {NAME}-errors",
    }


def test_parts_that_were_deleted(deployed: Account, stoker: Stoker) -> None:
    del deployed.stacks[HOME]
    code, out, _ = stoker("deploy", "status")
    assert code == 1 and out.count("is not there; deploy again") == 4 and f"not there: {NAME}-errors" in out


def test_a_cloud_that_may_not_be_looked_at_proves_nothing(deployed: Account, stoker: Stoker) -> None:
    deployed.closed[HOME] = refused("AccessDenied", "no")
    code, out, _ = stoker("deploy", "status")
    assert code == 0 and "alive" in out and out.count("cannot be looked at") == 5


def test_without_a_governor(account: Account, stoker: Stoker) -> None:
    code, _, said = stoker("deploy", "status")
    assert code == 2 and "no governor is deployed for this store" in said
