"""Fields of the job file that several clouds honour: see `Capabilities.honours`."""

from __future__ import annotations

# By every cloud.
CLOUD_FIELDS = frozenset(
    {
        "environment.apt",
        "environment.apt_mirror",
        "environment.conda",
        "environment.conda_channel",
        "environment.index",
        "environment.python",
        "environment.requirements",
        "environment.system_packages",
        "environment.wheels",
        "inputs.mode:copy",
        "inputs.mode:stream",
        "resources.cpus",
        "resources.gpus",
        "resources.machine",
        "resources.memory",
    }
)
# By every provider of whole machines.
MACHINE_FIELDS = CLOUD_FIELDS | {
    "environment.container",
    "environment.contract",
    "inputs.mode:mount",
    "resources.zones",
}
AWS_SECRETS = frozenset({"secrets:aws-codeartifact", "secrets:aws-ecr", "secrets:aws-sm", "secrets:aws-ssm"})
