"""The user-data: the boot script (`stoker.providers.boot.script`) within what EC2 takes. Built purely."""

from __future__ import annotations

from functools import lru_cache

from stoker.model.errors import UserError
from stoker.providers import registry
from stoker.providers.base import LaunchOrder
from stoker.providers.boot import script
from stoker.providers.boot.script import Boot

# What EC2 takes, before base64.
MOST_BYTES = 16_384


def boot(order: LaunchOrder) -> Boot:
    """What the machine is told about itself."""
    environ = dict(order.environ)
    if order.offering.region:
        environ.setdefault("AWS_DEFAULT_REGION", order.offering.region)
    return script.boot_of(order, "ec2", environ)


def render(told: Boot) -> str:
    """The script. Raises UserError for a store that a machine cannot reach, or more than EC2 takes."""
    registry.check_store("ec2", told.store)
    text = script.render(told, payload())
    size = len(text.encode())
    if size > MOST_BYTES:
        raise UserError(
            f"the user-data has {size} bytes and EC2 takes {MOST_BYTES}; shorten the job's name or its store"
        )
    return text


@lru_cache(maxsize=1)
def payload() -> bytes:
    """What runs on the machine."""
    return script.payload("stoker.providers.ec2", "stoker.cloudapi.aws.imds", "stoker.cloudapi.aws.sigv4")
