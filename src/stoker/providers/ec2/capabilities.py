"""What the ec2 provider can do."""

from __future__ import annotations

from stoker.model.offerings import Capabilities

CAPABILITIES = Capabilities(
    paid=True,
    # EC2 keeps client tokens for longer; nothing is gained by trusting it to the end.
    token_lifetime_s=3600.0,
    # Listings lag behind launches by seconds; a claim is in the log before its launch.
    newborn_s=300.0,
    # Large GPU machines take minutes to boot, and a big image longer to be read from S3.
    boot_timeout_s=1200.0,
    silence_s=180.0,
    honours=frozenset(
        {
            "environment.apt",
            "environment.apt_mirror",
            "environment.conda",
            "environment.conda_channel",
            "environment.container",
            "environment.contract",
            "environment.index",
            "environment.python",
            "environment.requirements",
            "environment.system_packages",
            "environment.wheels",
            "inputs.mode:copy",
            "inputs.mode:mount",
            "inputs.mode:stream",
            "logs.cloudwatch",
            "resources.cpus",
            "resources.disk",
            "resources.gpus",
            "resources.image",
            "resources.machine",
            "resources.memory",
            "resources.region",
            "resources.zones",
            "retry.hold_on_failure",
            "secrets:aws-codeartifact",
            "secrets:aws-ecr",
            "secrets:aws-sm",
            "secrets:aws-ssm",
        }
    ),
    interrupts=True,
    bundled=True,
    # Capacity comes and goes within minutes; forty jobs need not each find out by themselves.
    dry_for_s=60.0,
    # Machines have the credentials of their profile and no others.
    stores=("s3",),
)
