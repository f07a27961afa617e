"""The capabilities of the local provider."""

from __future__ import annotations

from stoker.model.offerings import Capabilities
from stoker.providers.honoured_fields import AWS_SECRETS, MACHINE_FIELDS

# How long the folder of a gone node is retained, for people to inspect. Longer than its token lives: while the folder
# exists, the token cannot make a second machine.
RETAIN_GONE_S = 24 * 3600.0

CAPABILITIES = Capabilities(
    paid=False,
    token_lifetime_s=RETAIN_GONE_S / 2,
    newborn_s=10.0,
    boot_timeout_s=60.0,
    silence_s=30.0,
    honours=MACHINE_FIELDS
    | AWS_SECRETS
    | {
        "secrets:env",
        "secrets:gcp-sm",
        "secrets:gcp-token",
    },
    interrupts=True,
    wakes=True,
    runs_locally=True,
)
