"""Fields of the job file that every provider of whole machines honours: see `Capabilities.honours`."""

from __future__ import annotations

MACHINE_FIELDS = frozenset(
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
    }
)
AWS_SECRETS = frozenset({"secrets:aws-codeartifact", "secrets:aws-ecr", "secrets:aws-sm", "secrets:aws-ssm"})
