"""What the sagemaker provider can do."""

from __future__ import annotations

from stoker.model.offerings import Capabilities

CAPABILITIES = Capabilities(
    paid=True,
    # The name of a training job is its token, and is never given twice. Nothing is gained by trusting that for ever.
    token_lifetime_s=86400.0,
    # Listings lag behind launches by seconds; a claim is in the log before its launch.
    newborn_s=300.0,
    # SageMaker looks for machines for a long while before it says that there are none, and then brings the image.
    boot_timeout_s=3600.0,
    silence_s=180.0,
    honours=frozenset(
        {
            "environment.apt",
            "environment.apt_mirror",
            "environment.conda",
            "environment.conda_channel",
            "environment.container.image",
            "environment.index",
            "environment.python",
            "environment.requirements",
            "environment.system_packages",
            "environment.wheels",
            "inputs.mode:copy",
            "inputs.mode:stream",
            "logs.cloudwatch",
            "resources.cpus",
            "resources.disk",
            "resources.gpus",
            "resources.machine",
            "resources.memory",
            "resources.region",
            "secrets:aws-codeartifact",
            "secrets:aws-ecr",
            "secrets:aws-sm",
            "secrets:aws-ssm",
        }
    ),
    interrupts=True,
    bundled=True,
    # What SageMaker could not find for half an hour is not there a minute later.
    dry_for_s=600.0,
    # Training jobs have the credentials of their role and no others.
    stores=("s3",),
)
