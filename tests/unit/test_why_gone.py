"""A machine that is gone and left no word: EC2 says whether it was taken away, was lost, or could not begin."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.governor.observe import _with_cloud_reason
from stoker.model.observed import Known
from stoker.providers.base import EndReason
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.registry import Context
from tests.support.sim_data import make_beat, make_facts

KEY_ADVICE = (
    "where a disk is encrypted with a KMS key, its launcher needs kms:CreateGrant, kms:Decrypt and "
    "kms:GenerateDataKeyWithoutPlaintext on that key (`stoker iam ec2 --kms-key ARN`)"
)


class Described:
    """An EC2 that knows one instance."""

    def __init__(self, code: str, message: str = "") -> None:
        self._reason = {"Code": code, "Message": message}

    def describe_instances(self, **_: Any) -> dict[str, Any]:
        return {"Reservations": [{"Instances": [{"InstanceId": "i-1", "StateReason": self._reason}]}]}


@pytest.mark.parametrize(
    ("code", "message", "why"),
    [
        ("Server.SpotInstanceTermination", "Spot instance termination", EndReason(True, "spot reclaim")),
        ("Server.SpotInstanceShutdown", "", EndReason(True, "spot reclaim")),
        ("Client.VolumeLimitExceeded", "Volume limit exceeded", EndReason(False, "Volume limit exceeded")),
        ("Client.InternalError", "", EndReason(False, f"Client.InternalError; {KEY_ADVICE}")),
        ("Client.UserInitiatedShutdown", "User initiated shutdown", None),
        ("Client.InstanceInitiatedShutdown", "", EndReason(False, "it switched itself off", by_itself=True)),
        ("Server.InternalError", "Internal error", None),
        ("", "", None),
    ],
)
def test_what_ec2_says(monkeypatch: pytest.MonkeyPatch, code: str, message: str, why: EndReason | None) -> None:
    provider = Ec2Provider(Context(store="s3://bucket"))
    monkeypatch.setattr(provider.clients, "get", lambda *_: Described(code, message))
    assert provider.end_reason("i-1", "us-east-1") == why


class Told:
    """A provider that says why a machine ended, and what its console showed."""

    def __init__(self, why: EndReason | None, console: str | None = None) -> None:
        self._why, self._console = why, console

    def end_reason(self, instance: str, region: str | None = None) -> EndReason | None:
        return self._why

    def console(self, instance: str, region: str | None = None) -> str | None:
        return self._console


def reason(provider: Told, **facts: Any) -> str | None:
    node = _with_cloud_reason(provider, make_facts(2, **facts), None)  # type: ignore[arg-type]
    assert isinstance(node.exit, Known)
    return node.exit.value.value.reason if node.exit.value else None


def test_a_machine_that_switched_itself_off_before_its_agent_spoke_failed_to_boot() -> None:
    off = EndReason(False, "it switched itself off", by_itself=True)
    assert "switched itself off before it reported" in (reason(Told(off, "a traceback\n")) or "")
    # The console's own word is the better one.
    assert "no Python" in (reason(Told(off, "stoker: boot failed: no Python here\n")) or "")
    # One that had an agent ends so each time, and one of which nothing is known may have ended in any way.
    assert reason(Told(off), beat=make_beat(100)) is None
    assert reason(Told(None, "a traceback\n")) is None


def test_a_machine_that_its_cloud_ended_before_its_agent_spoke_failed_to_boot() -> None:
    failed = EndReason(False, "InternalError: its host failed")
    assert (
        reason(Told(failed, "stoker: boot failed: no Python here\n")) == "boot failed: InternalError: its host failed"
    )
    assert reason(Told(failed), beat=make_beat(100)) is None, "it had booted"
    node = _with_cloud_reason(Told(failed), make_facts(2), None)  # type: ignore[arg-type]
    assert isinstance(node.exit, Known) and node.exit.value is not None
    left = node.exit.value.value
    assert (left.outcome, left.why) == ("infrastructure", "boot") and node.notice == Known(None) and not node.dry


def test_a_cloud_that_finds_out_late_that_it_has_no_machine() -> None:
    told = Told(EndReason(False, "CapacityError: none", dry=True))
    node = _with_cloud_reason(told, make_facts(2), None)  # type: ignore[arg-type]
    assert node.dry == "CapacityError: none" and node.exit == Known(None) and node.notice == Known(None)
    # One that had machines, and lost them: SageMaker found no others.
    lost = _with_cloud_reason(told, make_facts(2, beat=make_beat(100)), None)  # type: ignore[arg-type]
    assert not lost.dry and lost.notice != Known(None)
