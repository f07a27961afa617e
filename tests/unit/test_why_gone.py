"""A machine that is gone and left no word: EC2 says whether it was taken away, was lost, or could not begin."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.providers.base import Gone
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.registry import Context


class Described:
    """An EC2 that knows one instance."""

    def __init__(self, code: str, message: str = "") -> None:
        self._reason = {"Code": code, "Message": message}

    def describe_instances(self, **_: Any) -> dict[str, Any]:
        return {"Reservations": [{"Instances": [{"InstanceId": "i-1", "StateReason": self._reason}]}]}


@pytest.mark.parametrize(
    ("code", "message", "why"),
    [
        ("Server.SpotInstanceTermination", "Spot instance termination", Gone(True, "spot reclaim")),
        ("Server.SpotInstanceShutdown", "", Gone(True, "spot reclaim")),
        ("Client.VolumeLimitExceeded", "Volume limit exceeded", Gone(False, "Volume limit exceeded")),
        ("Client.InternalError", "", Gone(False, "Client.InternalError")),
        ("Client.UserInitiatedShutdown", "User initiated shutdown", None),
        ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown", None),
        ("Server.InternalError", "Internal error", None),
        ("", "", None),
    ],
)
def test_what_ec2_says(monkeypatch: pytest.MonkeyPatch, code: str, message: str, why: Gone | None) -> None:
    provider = Ec2Provider(Context(store="s3://bucket"))
    monkeypatch.setattr(provider.clients, "get", lambda *_: Described(code, message))
    assert provider.why_gone("i-1", "us-east-1") == why
