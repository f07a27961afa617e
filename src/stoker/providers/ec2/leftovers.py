"""Disks and placement groups that EC2 machines of this store left behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.model.errors import InvalidRequest, NotFound, Transient
from stoker.model.offerings import Leftover
from stoker.providers.ec2 import tags
from stoker.providers.ec2.client import pages
from stoker.providers.ec2.errors import call_aws

VOLUME = "volume"
GROUP = "placement-group"


def list_leftovers(ec2: Any, store: str, region: str | None) -> tuple[Leftover, ...]:
    """Every disk and placement group of this store that no machine uses.

    Tags are queried first, because mostly there is nothing to look at.
    """
    ours = [
        {"Name": "key", "Values": [tags.STORE]},
        {"Name": "value", "Values": [store]},
        {"Name": "resource-type", "Values": [VOLUME, GROUP]},
    ]
    tagged_things = call_aws("tags", lambda: list(pages(ec2.describe_tags, "Tags", Filters=ours)))
    kinds = {str(tag["ResourceType"]) for tag in tagged_things}
    tagged = [{"Name": f"tag:{tags.STORE}", "Values": [store]}]
    found: list[Leftover | None] = []
    if VOLUME in kinds:
        # Attached disks are deleted with their machine.
        loose = [*tagged, {"Name": "status", "Values": ["available"]}]
        volumes = call_aws("volumes", lambda: list(pages(ec2.describe_volumes, "Volumes", Filters=loose)))
        found += [_leftover(VOLUME, each["VolumeId"], each, store, region) for each in volumes]
    if GROUP in kinds:
        answer = call_aws("placement groups", lambda: ec2.describe_placement_groups(Filters=tagged))
        found += [_leftover(GROUP, each["GroupName"], each, store, region) for each in answer["PlacementGroups"]]
    return tuple(each for each in found if each is not None)


def remove(ec2: Any, leftover: Leftover) -> None:
    """Remove it. Raises Transient while EC2 considers it in use."""
    try:
        if leftover.kind == VOLUME:
            call_aws(leftover.id, lambda: ec2.delete_volume(VolumeId=leftover.id))
        else:
            call_aws(leftover.id, lambda: ec2.delete_placement_group(GroupName=leftover.id))
    except NotFound:
        return
    except InvalidRequest as error:
        # `InvalidPlacementGroup.InUse`: EC2 takes a while to notice that the last machine is gone.
        raise Transient(f"{leftover.kind} {leftover.id} cannot be removed yet: {error}") from error


def _leftover(kind: str, name: str, found: Mapping[str, Any], store: str, region: str | None) -> Leftover | None:
    owner = tags.owner_of(found, store)
    return owner and Leftover(kind, name, "ec2", *owner, region, found.get("CreateTime"))
