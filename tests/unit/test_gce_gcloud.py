"""For the same intent, the real gcloud asks for what we ask for: field by field, save where we mean otherwise."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gcloud_recorder
import pytest
from test_gce_request import A100, E2, ROOT, T4, machine_of, order

from stoker.model.resources import GceResources
from stoker.providers.base import LaunchOrder
from stoker.providers.gce import names, request

# The differences that are meant, by where they are: what gcloud says, and what we do. None is nothing at all.
_MEANT: dict[str, tuple[Any, Any]] = {
    # What is so anyway.
    "canIpForward": (False, None),
    "deletionProtection": (False, None),
    "instanceProperties.canIpForward": (False, None),
    # Output only, says Google's own document.
    "region": ("us-central1", None),
}
# What gcloud cannot be told: notice of a reclaim, and labels of a disk.
_OURS_ALONE = ("preemptionNoticeDuration", "initializeParams.labels")
# The newest image of a family, asked for in two ways.
_FAMILIES = (
    "projects/debian-cloud/zones/-/imageFamilyViews/debian-12",
    "projects/debian-cloud/global/images/family/debian-12",
)


def differences(theirs: Any, ours: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            yield from differences(theirs.get(key), ours.get(key), f"{at}.{key}" if at else key)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        # Metadata are told in no particular order.
        pairs = zip(sorted(theirs, key=_key), sorted(ours, key=_key), strict=True)
        for one, other in pairs:
            yield from differences(one, other, at)
    elif theirs != ours:
        yield at, theirs, ours


def _key(each: Any) -> str:
    return str(each.get("key", "")) if isinstance(each, dict) else ""


def is_meant(at: str, theirs: Any, ours: Any) -> bool:
    if theirs is None and at.endswith(_OURS_ALONE):
        return True
    return _MEANT.get(at) == (theirs, ours) or (theirs, ours) == _FAMILIES


def as_flags(found: LaunchOrder, folder: Path) -> list[str]:
    """The same intent, as a person would type it."""
    machine = machine_of(found)
    for item in machine["metadata"]["items"]:
        (folder / item["key"]).write_text(item["value"])
    files = ",".join(f"{item['key']}={folder / item['key']}" for item in machine["metadata"]["items"])
    flags = [
        "--image-family=debian-12",
        "--image-project=debian-cloud",
        "--boot-disk-size=200GB",
        "--boot-disk-type=pd-balanced",
        "--service-account=stoker-node@vision-1.iam.gserviceaccount.com",
        "--scopes=cloud-platform",
        "--no-restart-on-failure",
        "--instance-termination-action=DELETE",
        "--max-run-duration=4h",
        f"--metadata-from-file={files}",
        "--labels=" + ",".join(f"{key}={value}" for key, value in machine["labels"].items()),
    ]
    if found.offering.spot:
        return [*flags, "--provisioning-model=SPOT", "--maintenance-policy=TERMINATE"]
    return [*flags, "--provisioning-model=STANDARD", "--maintenance-policy=MIGRATE"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="there is no gcloud on this machine")
def test_the_real_gcloud_asks_for_the_same(tmp_path: Path) -> None:
    plain = {"image": "debian/12", "disk_bytes": 200_000_000_000}
    spot = order(T4, tagged={"project": "vision"}, gce=GceResources(public_ip=False), **plain)
    reserved = GceResources(network="subnet:training", reservation="block-7", placement_policy="close")
    standard = order(replace(E2, machine="c3-standard-4"), gce=reserved, **plain)
    gang = order(A100, nodes=2, **plain)
    base = names.base(gang)
    orders = {"spot": spot, "standard": standard, "gang": gang}
    folders = {name: tmp_path / name for name in orders}
    for folder in folders.values():
        folder.mkdir()
    flags = {name: as_flags(each, folders[name]) for name, each in orders.items()}
    create = ["compute", "instances", "create"]
    at = "--zone=us-central1-a"
    description = request.build(gang)[0].body["description"]
    commands = [
        [
            *[*create, names.machine(spot, 0), at, "--machine-type=n1-standard-8", "--network=default"],
            *["--accelerator=type=nvidia-tesla-t4,count=1", "--no-address", *flags["spot"]],
        ],
        [
            *[*create, names.machine(standard, 0), at, "--machine-type=c3-standard-4", "--subnet=training"],
            *["--reservation-affinity=specific", "--reservation=block-7", "--resource-policies=close"],
            *flags["standard"],
        ],
        [
            *["compute", "resource-policies", "create", "group-placement", base, "--region=us-central1"],
            *["--collocation=collocated", f"--description={description}"],
        ],
        [
            *["compute", "instances", "bulk", "create", "--region=us-central1", "--count=2", "--min-count=2"],
            *["--predefined-names=" + ",".join(names.machines(gang)), "--machine-type=a2-highgpu-8g"],
            *["--network=default", "--target-distribution-shape=any_single_zone", f"--resource-policies={base}"],
            "--location-policy=us-central1-b=allow," + ",".join(f"us-central1-{zone}=deny" for zone in "acf"),
            *flags["gang"],
        ],
    ]
    recorder = ["sh", str(ROOT / "scripts/isolated.sh"), sys.executable, gcloud_recorder.__file__]
    # A place of its own, since tests beside this one put machines into theirs.
    environ = {name: value for name, value in os.environ.items() if name != "STOKER_ISOLATED"}
    asked = json.dumps(commands)
    done = subprocess.run(recorder, input=asked, env=environ, capture_output=True, text=True, timeout=400)
    if done.returncode == gcloud_recorder.NOT_ISOLATED:
        pytest.skip("no place with loopback only can be made here")
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    ours = [each for found in orders.values() for each in request.build(found)]
    assert len(theirs) == len(ours) == 4
    for one, other in zip(theirs, ours, strict=True):
        assert (one["method"], one["path"]) == (other.method, other.path.partition("?")[0])
        wrong = [each for each in differences(one["body"], other.body) if not is_meant(*each)]
        assert wrong == []
