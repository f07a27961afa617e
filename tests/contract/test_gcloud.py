"""Google's own gcloud on the Compute Engine for tests: a client that nobody here wrote keeps it honest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gce import GceCloud, gce_cloud, why_no_gce
from tests.support.servers import isolated, pytest_isolated

ZONE = "us-central1-a"
IMAGE = ("--image-family=debian-12", "--image-project=debian-cloud")

if shutil.which("gcloud") is None:
    pytest.skip("gcloud is not installed", allow_module_level=True)
if why_no_gce() is not None:
    pytest.skip(str(why_no_gce()), allow_module_level=True)

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


@pytest.fixture(scope="module")
def shared() -> Iterator[GceCloud]:
    if not isolated():
        pytest.skip("runs in isolation, through the test above")
    with gce_cloud(power_off_s=20.0) as cloud:
        yield cloud


class Gcloud:
    """Runs `gcloud compute`."""

    def __init__(self, cloud: GceCloud, folder: Path) -> None:
        # What the person at this computer has set up is none of its business.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CLOUDSDK_", "GOOGLE_"))}
        self._env = {**kept, **cloud.gcloud_env(folder)}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        whole = ["gcloud", "compute", *command]
        return subprocess.run(whole, env=self._env, capture_output=True, text=True, check=False, timeout=120)

    def __call__(self, *command: str) -> Any:
        """What it answers, as data. Raises AssertionError if it fails, or warns."""
        ran = self.run(*command, "--format=json")
        assert ran.returncode == 0, ran.stderr
        assert "WARNING" not in ran.stderr, ran.stderr
        return json.loads(ran.stdout) if ran.stdout.strip() else None


@pytest.fixture
def cloud(shared: GceCloud) -> Iterator[GceCloud]:
    yield shared
    broken = shared.broken()
    shared.clear()
    assert broken == []


@pytest.fixture
def gcloud(cloud: GceCloud, tmp_path: Path) -> Gcloud:
    return Gcloud(cloud, tmp_path)


def test_one_machine_from_its_beginning_to_its_end(cloud: GceCloud, gcloud: Gcloud, tmp_path: Path) -> None:
    script = tmp_path / "startup.sh"
    script.write_text("#!/bin/bash\necho hello from $(hostname)\n")
    (made,) = gcloud(
        *("instances", "create", "one", f"--zone={ZONE}", "--machine-type=n1-standard-4", *IMAGE),
        "--accelerator=type=nvidia-tesla-t4,count=1",
        *("--provisioning-model=SPOT", "--instance-termination-action=DELETE", "--max-run-duration=4h"),
        *("--maintenance-policy=TERMINATE", "--labels=stoker-job=job-1", "--boot-disk-size=200GB"),
        f"--metadata-from-file=startup-script={script}",
        *("--no-address", "--scopes=cloud-platform"),
    )
    machine = cloud.machine(f"{ZONE}.{made['id']}")
    machine.wait_console("startup-script: hello from one")

    (listed,) = gcloud("instances", "list", "--filter=labels.stoker-job=job-1 AND status=RUNNING")
    assert listed["id"] == made["id"]
    assert listed["networkInterfaces"][0]["networkIP"] == machine.address
    (found,) = gcloud("instances", "list", f"--zones={ZONE}", "--filter=name~^o.*")
    assert found["id"] == made["id"]
    described = gcloud("instances", "describe", "one", f"--zone={ZONE}")
    assert described["scheduling"] == {
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "14400"},
        "onHostMaintenance": "TERMINATE",
        "preemptible": True,
        "provisioningModel": "SPOT",
    }
    assert "hello from one" in gcloud.run("instances", "get-serial-port-output", "one", f"--zone={ZONE}").stdout
    (operation,) = gcloud("operations", "list", f"--filter=operationType=insert AND targetId={made['id']}")
    assert operation["status"] == "DONE"

    deleted = gcloud.run("instances", "delete", made["id"], f"--zone={ZONE}")
    assert deleted.returncode == 0, deleted.stderr
    machine.wait_gone()
    assert not cloud.left()


def test_several_at_once(cloud: GceCloud, gcloud: Gcloud) -> None:
    # Its first zone is dry, so that they come in the next.
    cloud.faults.no_capacity(zone=ZONE)
    gcloud(
        *("instances", "bulk", "create", "--predefined-names=gang-0,gang-1", "--count=2", "--region=us-central1"),
        *(
            "--target-distribution-shape=ANY_SINGLE_ZONE",
            "--machine-type=e2-medium",
            *IMAGE,
            "--labels=stoker-job=job-2",
        ),
    )
    found = gcloud("instances", "list", "--filter=labels.stoker-job=job-2")
    assert [each["name"] for each in found] == ["gang-0", "gang-1"]
    assert {each["zone"].rpartition("/")[2] for each in found} == {"us-central1-b"}
    # One request for both: gcloud sends them as a batch.
    deleted = gcloud.run("instances", "delete", "gang-0", "gang-1", "--zone=us-central1-b")
    assert deleted.returncode == 0, deleted.stderr
    assert not cloud.left()


def test_a_dry_zone(cloud: GceCloud, gcloud: Gcloud) -> None:
    cloud.faults.no_capacity(details=True)
    failed = gcloud.run("instances", "create", "one", f"--zone={ZONE}", *IMAGE)
    assert failed.returncode == 1
    assert "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" in failed.stderr
    assert not cloud.left()


def test_placement_policies(cloud: GceCloud, gcloud: Gcloud) -> None:
    here = "--region=us-central1"
    gcloud("resource-policies", "create", "group-placement", "close", "--collocation=collocated", here)
    assert [each["name"] for each in gcloud("resource-policies", "list")] == ["close"]
    gcloud("resource-policies", "delete", "close", here)
    assert not cloud.left()
