"""Look up an image at EC2: its id if a job names it by name, and its root device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from stoker.model.errors import InvalidRequest
from stoker.providers.ec2 import catalog, overrides, root_volume
from stoker.providers.ec2.client import pages
from stoker.providers.ec2.errors import call_aws
from stoker.providers.ec2.images import TRUSTED_OWNERS, Arch, Ec2Image

# Placeholders for values that only EC2 knows: `filled` replaces them.
IMAGE_ID = "(the newest image of that name)"
ROOT_DEVICE = "(the image's root device)"


def params(image: Ec2Image, arch: Arch) -> dict[str, Any]:
    """The parameters of DescribeImages."""
    if image.id is not None:
        return {"ImageIds": [image.id]}
    filters = {"name": image.name, "state": "available", "architecture": arch}
    return {
        "Owners": list(image.owners),
        "Filters": [{"Name": name, "Values": [value]} for name, value in filters.items()],
    }


def find(ec2: Any, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The image that was asked for, as EC2 describes it: the newest one that can be launched.

    Raises InvalidRequest if there is none.
    """
    found = call_aws("resources.image", lambda: list(pages(ec2.describe_images, "Images", **asked)))
    if "ImageIds" in asked:
        if not found:
            raise InvalidRequest(f"resources.image: there is no image {asked['ImageIds'][0]} in this region")
        return dict(found[0])
    filters = {each["Name"]: each["Values"][0] for each in asked["Filters"]}
    image = newest(found, filters["architecture"], datetime.now(timezone.utc))
    if image is None:
        raise InvalidRequest(_none(filters["name"], filters["architecture"], asked["Owners"], any_name=bool(found)))
    return image


def newest(found: Iterable[Mapping[str, Any]], arch: str, now: datetime) -> Mapping[str, Any] | None:
    """The newest image for this processor that is available and not deprecated; None if there is none.

    EC2 leaves out deprecated images of others alone: "If you are the AMI owner, all deprecated AMIs appear in the
    response regardless of what you specify for this parameter" (DescribeImages, `IncludeDeprecated`).
    """
    fitting = [
        image
        for image in found
        if image.get("Architecture", arch) == arch
        and image.get("State", "available") == "available"
        and not _is_past(image.get("DeprecationTime"), now)
    ]
    return max(fitting, key=lambda image: str(image.get("CreationDate", "")), default=None)


def filled(asked: dict[str, Any], image: Mapping[str, Any]) -> dict[str, Any]:
    """The request to launch, with the image's id and root device.

    Raises InvalidRequest for an image that is made for other processors.
    """
    if not image:
        return asked
    result = dict(asked)
    arch, made_for = catalog.facts(result["InstanceType"]).arch, image.get("Architecture")
    if made_for and made_for != arch:
        machine = result["InstanceType"]
        raise InvalidRequest(f"resources.image: {image['ImageId']} is for {made_for}, and {machine} is {arch}")
    if result["ImageId"] == IMAGE_ID:
        result["ImageId"] = image["ImageId"]
    disks = result.get("BlockDeviceMappings", ())
    root = [
        root_volume.filled(each, image) | {"DeviceName": image["RootDeviceName"]}
        for each in disks
        if each.get("DeviceName") == ROOT_DEVICE
    ]
    # An override may have named the root device before it was known to be the root device, hence the merge.
    others = [each for each in disks if each.get("DeviceName") != ROOT_DEVICE]
    return overrides.merge(result | {"BlockDeviceMappings": root}, {"BlockDeviceMappings": others})


def _is_past(time: Any, now: datetime) -> bool:
    """Return True if EC2's `DeprecationTime`, such as `2026-03-01T00:00:00.000Z`, is past."""
    if not time:
        return False
    moment = datetime.fromisoformat(str(time).replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)) <= now


def _none(name: str, arch: str, owners: list[str], *, any_name: bool) -> str:
    """The line that says that no image fits, and whose images were asked for."""
    whose = " or ".join("this account (self)" if owner == "self" else owner for owner in owners)
    only = "; those of that name are deprecated" if any_name else ""
    hint = "; write OWNER/NAME for the image of another account" if tuple(owners) == TRUSTED_OWNERS else ""
    return f"resources.image: no available {arch} image of {whose} is named {name} in this region{only}{hint}"
