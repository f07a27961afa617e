"""What the gce provider can do."""

from __future__ import annotations

from stoker.model.offerings import Capabilities

CAPABILITIES = Capabilities(
    paid=True,
    # Compute Engine knows a requestId for at least an hour, and says so nowhere but there:
    # https://cloud.google.com/compute/docs/api/how-tos/create-idempotent-requests
    token_lifetime_s=3600.0,
    # An operation is accepted before its machine is listed; a claim is in the log before its launch.
    newborn_s=300.0,
    # Large GPU machines take minutes to boot, and a deep learning image installs its driver first.
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
            "logs.cloud_logging",
            "resources.cpus",
            "resources.disk",
            "resources.gpus",
            "resources.image",
            "resources.machine",
            "resources.memory",
            "resources.region",
            "resources.zones",
            "retry.hold_on_failure",
            "secrets:gcp-sm",
            "secrets:gcp-token",
        }
    ),
    interrupts=True,
    bundled=True,
    # Capacity comes and goes within minutes; forty jobs need not each find out by themselves.
    dry_for_s=60.0,
    # Machines have Google's credentials and no others.
    stores=("gs",),
)
