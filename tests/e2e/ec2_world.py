"""A world on EC2 (`tests.support.ec2`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from cloud_world import CloudWorld

from stoker.providers.ec2 import role_names
from stoker.providers.ec2.provider import Ec2Provider
from tests.support.ec2 import Ec2Cloud

_CODES = {"quota": "VcpuLimitExceeded", "permission": "UnauthorizedOperation"}


class Ec2World(CloudWorld):
    """One test's bucket and code on EC2."""

    resources: ClassVar[dict[str, Any]] = {"provider": "ec2", "machine": ["c7i.large"], "image": "debian/12"}
    zones = ("us-east-1a", "us-east-1b")
    old_image = "debian-11-amd64-*"
    docker_image = "docker-12-amd64-*"
    torch_image = "torch-amd64-*"
    provider = Ec2Provider

    def __init__(self, root: Path, cloud: Ec2Cloud) -> None:
        super().__init__(root, cloud, f"s3://{cloud.new_bucket()}/team")
        cloud.make_profile(role_names.node_role(self.url))

    def notice(self, job: str, in_s: float | None = None) -> None:
        self.cloud.machine(self.instance(job)).notice(in_s=120 if in_s is None else in_s)

    def hint(self, job: str) -> None:
        self.cloud.machine(self.instance(job)).rebalance()

    def refuse_launch(self, what: Literal["quota", "permission"]) -> str:
        self.cloud.faults.refuse_launch(_CODES[what])
        return _CODES[what]

    def lose_launch_replies(self) -> None:
        self.cloud.faults.lose_replies("RunInstances", times=9)

    def launches(self) -> int:
        return int(self.cloud.calls().get("RunInstances", 0))
