"""A world on SageMaker (`tests.support.sagemaker`), whose training jobs really run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

from cloud_world import CloudWorld
from harness import World

from stoker.providers.sagemaker.provider import SageMakerProvider
from tests.support.sagemaker import ACCOUNT, SageMakerCloud

_ENDED = ("Completed", "Failed", "Stopped")


class SageMakerWorld(CloudWorld):
    """One test's bucket and code on SageMaker."""

    resources: ClassVar[dict[str, Any]] = {
        "provider": "sagemaker",
        "machine": ["ml.c5.xlarge"],
        "sagemaker": {"role": f"arn:aws:iam::{ACCOUNT}:role/stoker-training"},
    }
    provider = SageMakerProvider

    def __init__(self, root: Path, cloud: SageMakerCloud, url: str) -> None:
        super().__init__(root, cloud, url)

    def job(self, **fields: Any) -> Any:
        # Containers see this machine's files: the script's lock shows that no two attempts train at once.
        fields["env"] = {"TRUTH": str(self.truth)} | fields.get("env", {})
        return super().job(**fields)

    def training_job(self, job: str) -> str:
        """The training job of the newest attempt."""
        return self.instance(job).partition(".")[0]

    def machines(self) -> dict[str, str]:
        found = self.cloud.instances()
        return {name: "terminated" if status in _ENDED else status for name, status in found.items()}

    def story(self, job: str) -> str:
        parts = [World.story(self, job)]
        for name in self.cloud.names():
            told = self.cloud.describe(name)
            parts.append(f"── {name}: {self.cloud.status(name)} {told.get('FailureReason', '')}")
            parts += self.cloud.hosts.output(name).splitlines()[-15:]
        return "\n".join([*parts, "── problems", *self.problems[-5:]])

    def left_nothing(self) -> None:
        deadline = time.monotonic() + 60
        while left := {name for name, state in self.machines().items() if state != "terminated"}:
            assert time.monotonic() < deadline, f"{left} is left"
            time.sleep(0.1)
