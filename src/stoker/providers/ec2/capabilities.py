"""The capabilities of the ec2 provider."""

from __future__ import annotations

from stoker.model.offerings import Capabilities
from stoker.providers.honoured_fields import AWS_SECRETS, MACHINE_FIELDS

CAPABILITIES = Capabilities(
    paid=True,
    # EC2 remembers client tokens for longer; nothing is gained by relying on it to the end.
    token_lifetime_s=3600.0,
    # Listings lag behind launches by seconds; a claim is in the log before its launch.
    newborn_s=300.0,
    # Large GPU machines take minutes to boot, and longer if a big image is read from S3.
    boot_timeout_s=1200.0,
    silence_s=180.0,
    honours=MACHINE_FIELDS
    | AWS_SECRETS
    | {
        "logs.cloudwatch",
        "resources.disk",
        "resources.image",
        "resources.region",
        "resources.region:several",
        "retry.hold_on_failure",
    },
    interrupts=True,
    bundled=True,
    # Capacity changes within minutes; many jobs need not each find out by themselves.
    dry_for_s=60.0,
    # Machines have only the credentials of their instance profile.
    stores=("s3",),
    ec2_machines=True,
    price_list="AWS",
)
