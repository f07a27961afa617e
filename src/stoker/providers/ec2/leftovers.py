"""What EC2 machines may leave beside them: disks and placement groups that carry this store's tag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.model.errors import InvalidRequest, NotFound, Transient
from stoker.model.offerings import Leftover
from stoker.providers.ec2 import tags
from stoker.providers.ec2.errors import calling

VOLUME = "volume"
GROUP = "placement-group"


def listed(ec2: Any, store: str, region: str | None) -> tuple[Leftover, ...]:
    """Everything of this store that no machine uses. Tags are asked for first: mostly there are none to look at."""
    ours = [
        {"Name": "key", "Values": [tags.STORE]},
        {"Name": "value", "Values": [store]},
        {"Name": "resource-type", "Values": [VOLUME, GROUP]},
    ]
    kinds = {str(tag["ResourceType"]) for tag in _pages(ec2.describe_tags, "Tags", Filters=ours)}
    tagged = [{"Name": f"tag:{tags.STORE}", "Values": [store]}]
    found: list[Leftover | None] = []
    if VOLUME in kinds:
        # Attached ones are deleted with their machine.
        loose = [*tagged, {"Name": "status", "Values": ["available"]}]
        volumes = _pages(ec2.describe_volumes, "Volumes", Filters=loose)
        found += [_leftover(VOLUME, each["VolumeId"], each, store, region) for each in volumes]
    if GROUP in kinds:
        answer = calling("placement groups", lambda: ec2.describe_placement_groups(Filters=tagged))
        found += [_leftover(GROUP, each["GroupName"], each, store, region) for each in answer["PlacementGroups"]]
    return tuple(each for each in found if each is not None)


def remove(ec2: Any, leftover: Leftover) -> None:
    """Remove it. Raises Transient while EC2 holds it to be in use."""
    try:
        if leftover.kind == VOLUME:
            calling(leftover.id, lambda: ec2.delete_volume(VolumeId=leftover.id))
        else:
            calling(leftover.id, lambda: ec2.delete_placement_group(GroupName=leftover.id))
    except NotFound:
        return
    except InvalidRequest as error:
        # `InvalidPlacementGroup.InUse`: EC2 takes a while to notice that the last machine is gone.
        raise Transient(f"{leftover.kind} {leftover.id} cannot be removed yet: {error}") from error


def _pages(call: Any, what: str, **asked: Any) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    while True:
        answer = calling(what.lower(), lambda: call(**asked))
        found += answer[what]
        if not answer.get("NextToken"):
            return found
        asked["NextToken"] = answer["NextToken"]


def _leftover(kind: str, name: str, found: Mapping[str, Any], store: str, region: str | None) -> Leftover | None:
    told = tags.read(found.get("Tags", ()))
    job, claim = told.get(tags.JOB), told.get(tags.CLAIM, "")
    # Filters take wildcards, so the tag is compared once more.
    if not job or not claim.isdigit() or told.get(tags.STORE) != store:
        return None
    return Leftover(kind, name, "ec2", job, int(claim), region, found.get("CreateTime"))
