"""Launching on EC2 where its answers are odd, and what is settled before: region, credentials, `resume_from`."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from test_ec2_request import P4D, order

from stoker.model.errors import InvalidRequest, Transient
from stoker.model.resources import Ec2Resources
from stoker.providers.ec2 import client, request
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.registry import Context
from stoker.store.base import open_store
from stoker.submit.prepare import prepare

pytestmark = pytest.mark.slow


class Odd:
    """An EC2 that refuses a launch, and lists so many machines of it."""

    def __init__(self, code: str, listed: int = 0) -> None:
        self._code, self._listed = code, listed

    def create_placement_group(self, **_: Any) -> None: ...

    def create_tags(self, **_: Any) -> None: ...

    def describe_images(self, **_: Any) -> dict[str, Any]:
        return {"Images": [{"ImageId": "ami-1", "RootDeviceName": "/dev/sda1"}]}

    def run_instances(self, **asked: Any) -> Any:
        self._tags = asked["TagSpecifications"][0]["Tags"]
        response = {"Error": {"Code": self._code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
        raise ClientError(response, "RunInstances")  # type: ignore[arg-type]

    def describe_instances(self, **_: Any) -> dict[str, Any]:
        common = {"Tags": self._tags, "State": {"Name": "running"}, "LaunchTime": datetime.now(timezone.utc)}
        found = [{"InstanceId": f"i-{n}", "AmiLaunchIndex": n, **common} for n in range(self._listed)]
        return {"Reservations": [{"Instances": found}]}


def launched(monkeypatch: pytest.MonkeyPatch, cloud: Odd, **resources: Any) -> list[str]:
    provider = Ec2Provider(Context(store="s3://bucket/team"))
    monkeypatch.setattr(provider.clients, "get", lambda *_, **__: cloud)
    asked = order(P4D, nodes=2, **resources)
    return [instance.id for instance in provider.launch(provider.build(asked))]


def test_a_token_that_was_used_stands_for_the_machines_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched(monkeypatch, Odd("IdempotentParameterMismatch", listed=2)) == ["i-0", "i-1"]
    assert launched(monkeypatch, Odd("IdempotentInstanceTerminated", listed=2)) == ["i-0", "i-1"]


def test_machines_that_are_not_listed_yet_are_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for listed in (0, 1):
        with pytest.raises(Transient, match="not listed yet"):
            launched(monkeypatch, Odd("IdempotentParameterMismatch", listed=listed))


def test_a_placement_group_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours will be in a moment; a person's is not there."""
    with pytest.raises(Transient):
        launched(monkeypatch, Odd("InvalidPlacementGroup.Unknown"))
    mine = Ec2Resources(placement_group="mine")
    with pytest.raises(InvalidRequest):
        launched(monkeypatch, Odd("InvalidPlacementGroup.Unknown"), ec2=mine)
    # Also where something else is asked of EC2 before the launch.
    with pytest.raises(InvalidRequest):
        launched(monkeypatch, Odd("InvalidPlacementGroup.Unknown"), ec2=mine, image="ami-1")


def test_a_block_may_be_named_by_its_group() -> None:
    named = Ec2Resources(reservation="block:arn:aws:resource-groups:us-east-1:1:group/g")
    params = request.build(order(replace(P4D, spot=False), ec2=named))[-1].params
    target = params["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationResourceGroupArn": "arn:aws:resource-groups:us-east-1:1:group/g"}
    assert params["InstanceMarketOptions"] == {"MarketType": "capacity-block"}


def test_credentials_are_read_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(client.time, "monotonic", lambda: now_s[0])
    clients = client.Clients()
    first = clients.get("ec2", "us-east-1")
    now_s[0] += 899
    assert clients.get("ec2", "us-east-1") is first
    now_s[0] += 2
    assert clients.get("ec2", "us-east-1") is not first


def test_the_region_is_frozen_and_a_dry_run_asks_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    # Nobody answers there: asking it would be an error.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (tmp_path / "train.py").touch()
    spec = replace(order(machine=("c7i.large",)).spec, resume_from="another-job")
    with prepare(spec, open_store("s3://bucket/team"), folder=tmp_path, offline=True) as prepared:
        assert prepared.spec.resources.region == "eu-west-1"
        assert prepared.spec.resume_from == "another-job"


def test_an_override_of_the_root_disk_is_merged_once_its_name_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Ec2Provider(Context(store="s3://bucket/team"))
    monkeypatch.setattr(provider.clients, "get", lambda *_, **__: Odd(""))
    mine = {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"Iops": 16000}}, {"DeviceName": "/dev/sdf"}]}
    asked = order(P4D, ec2=Ec2Resources(overrides=mine), image="my-image-*")
    (run,) = [each for each in provider.resolved(provider.build(asked)) if each.operation == "RunInstances"]
    root, other = run.params["BlockDeviceMappings"]
    assert root["DeviceName"] == "/dev/sda1" and root["Ebs"]["Iops"] == 16000 and root["Ebs"]["DeleteOnTermination"]
    assert other == {"DeviceName": "/dev/sdf"}


@pytest.mark.parametrize(
    ("address", "warned"),
    [("http://127.0.0.1:9000", True), ("http://localhost:9000", True), ("https://minio.example:9000", False)],
)
def test_a_bucket_on_this_computer_is_told_to_be_out_of_reach(
    address: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
    (tmp_path / "train.py").touch()
    spec = order(machine=("c7i.large",)).spec
    with prepare(spec, open_store("s3://bucket/team"), folder=tmp_path, offline=True) as prepared:
        assert any("AWS_ENDPOINT_URL_S3" in line and address in line for line in prepared.warnings) == warned
