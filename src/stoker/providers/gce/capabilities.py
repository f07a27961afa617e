"""The capabilities of the gce provider."""

from __future__ import annotations

from stoker.model.offerings import Capabilities
from stoker.providers.honoured_fields import MACHINE_FIELDS

CAPABILITIES = Capabilities(
    paid=True,
    # Compute Engine remembers a requestId for at least an hour, by this page alone:
    # https://cloud.google.com/compute/docs/api/how-tos/create-idempotent-requests
    token_lifetime_s=3600.0,
    # An operation is accepted before its machine is listed; a claim is in the log before its launch.
    newborn_s=300.0,
    # Large GPU machines take minutes to boot, and a deep learning image installs its driver first.
    boot_timeout_s=1200.0,
    silence_s=180.0,
    honours=MACHINE_FIELDS
    | {
        "logs.cloud_logging",
        "resources.disk",
        "resources.image",
        "resources.region",
        "resources.region:several",
        "retry.hold_on_failure",
        "secrets:gcp-sm",
        "secrets:gcp-token",
    },
    interrupts=True,
    bundled=True,
    # Capacity changes within minutes. Within this time one failed launch spares other jobs the same attempt.
    dry_for_s=60.0,
    # Machines have credentials for Google Cloud alone.
    stores=("gs",),
    price_list="Google",
)
