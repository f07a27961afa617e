"""The user-data: the boot script (`stoker.providers.boot.script`) within EC2's size limit. Built purely."""

from __future__ import annotations

from functools import lru_cache

from stoker.model.errors import UserError
from stoker.providers import registry
from stoker.providers.base import LaunchOrder
from stoker.providers.boot import script
from stoker.providers.boot.script import BootSettings
from stoker.providers.ec2 import overrides

# EC2's limit, before base64.
MOST_BYTES = 16_384


def settings_of(order: LaunchOrder) -> BootSettings:
    """The boot settings of this order's machines."""
    environ = dict(order.environ)
    if order.offering.region:
        environ.setdefault("AWS_DEFAULT_REGION", order.offering.region)
    ec2 = order.spec.resources.ec2
    more = script.disk_settings(order, own_disks=ec2 is not None and overrides.maps_instance_store(ec2.overrides))
    return script.boot_settings(order, "ec2", environ, **more)


def render(settings: BootSettings) -> str:
    """Render the script. Raises UserError for a store that a machine cannot reach, or a script over EC2's limit."""
    registry.check_store("ec2", settings.store)
    text = script.render(settings, payload())
    size = len(text.encode())
    if size > MOST_BYTES:
        raise UserError(
            f"the user-data has {size} bytes and EC2 takes {MOST_BYTES}; shorten the job's name or its store"
        )
    return text


@lru_cache(maxsize=1)
def payload() -> bytes:
    """The program that runs on the machine."""
    return script.payload("stoker.providers.ec2", "stoker.cloudapi.aws.imds", "stoker.cloudapi.aws.sigv4")
