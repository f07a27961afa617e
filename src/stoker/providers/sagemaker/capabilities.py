"""The capabilities of the sagemaker provider."""

from __future__ import annotations

from stoker.model.offerings import Capabilities
from stoker.providers.honoured_fields import AWS_SECRETS, CLOUD_FIELDS

CAPABILITIES = Capabilities(
    paid=True,
    # The name of a training job is its token, and is never reused. A day is enough, so that more is not relied on.
    token_lifetime_s=86400.0,
    # Listings lag behind launches by seconds; a claim is in the log before its launch.
    newborn_s=300.0,
    # SageMaker searches for machines for a long time before it reports that there are none, and then pulls the image.
    boot_timeout_s=3600.0,
    silence_s=180.0,
    # A training job that is stopped in the second in which its container ends is shown as stopped, not as completed or
    # failed.
    self_end_s=60.0,
    honours=CLOUD_FIELDS
    | AWS_SECRETS
    | {
        "environment.container.image",
        "environment.contract",
        "inputs.mode:mount",
        "logs.cloudwatch",
        "resources.disk",
        "resources.region",
    },
    interrupts=True,
    bundled=True,
    # Capacity that SageMaker did not find within half an hour will not appear a minute later.
    dry_for_s=600.0,
    # Training jobs have the credentials of their role alone.
    stores=("s3",),
    price_list="AWS",
)
