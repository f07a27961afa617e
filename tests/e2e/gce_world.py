"""A world on Compute Engine (`tests.support.gce`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from cloud_world import CloudWorld

from stoker.providers.gce.provider import GceProvider
from tests.support.gce import PROJECT, GceCloud

_LAUNCHES = ("instances.insert", "regionInstances.bulkInsert")


class GceWorld(CloudWorld):
    """One test's bucket and code on Compute Engine."""

    resources: ClassVar[dict[str, Any]] = {"provider": "gce", "machine": ["n2-standard-2"], "image": "debian/12"}
    zones = ("us-central1-a", "us-central1-b")
    old_image = "family:debian-cloud/debian-11"
    docker_image = f"family:{PROJECT}/docker"
    torch_image = f"family:{PROJECT}/torch"
    provider = GceProvider

    def __init__(self, root: Path, cloud: GceCloud) -> None:
        super().__init__(root, cloud, f"gs://{cloud.new_bucket()}/team")

    def notice(self, job: str, in_s: float | None = None) -> None:
        machine = self.cloud.machine(self.instance(job))
        if in_s == 0:
            machine.preempt(0.0, notice_s=0.0, metadata_says=False, button=False)
        else:
            machine.preempt()

    def hint(self, job: str) -> None:
        self.cloud.machine(self.instance(job)).maintenance()

    def refuse_launch(self, what: Literal["quota", "permission"]) -> str:
        if what == "quota":
            self.cloud.faults.refuse_launch()
            return "QUOTA_EXCEEDED"
        self.cloud.faults.unauthorized("instances.insert")
        return "forbidden"

    def lose_launch_replies(self) -> None:
        self.cloud.faults.lose_replies(*_LAUNCHES, times=9)

    def launches(self) -> int:
        calls = self.cloud.calls()
        return sum(calls.get(name, 0) for name in _LAUNCHES)

    def left_nothing(self) -> None:
        super().left_nothing()
        assert self.cloud.broken() == [], "Google would not have understood these requests"
