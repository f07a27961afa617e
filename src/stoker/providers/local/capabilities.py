"""What the local provider can do."""

from __future__ import annotations

from stoker.model.offerings import Capabilities

# How long the folder of a node that is gone is kept, for people to look into. Longer than the token lives: while the
# folder is there, its token cannot make a second machine.
KEEP_GONE_S = 24 * 3600.0

CAPABILITIES = Capabilities(
    paid=False,
    token_lifetime_s=KEEP_GONE_S / 2,
    newborn_s=10.0,
    boot_timeout_s=60.0,
    silence_s=30.0,
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
            "resources.cpus",
            "resources.gpus",
            "resources.machine",
            "resources.memory",
            "resources.zones",
            "secrets:aws-codeartifact",
            "secrets:aws-ecr",
            "secrets:aws-sm",
            "secrets:aws-ssm",
            "secrets:env",
            "secrets:gcp-sm",
            "secrets:gcp-token",
        }
    ),
    interrupts=True,
    wakes=True,
    here=True,
)
