"""The contract of a provider's module `iam`: the permissions that Stoker needs in its cloud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from stoker.model.resources import Resources


@dataclass(frozen=True)
class Grant:
    """The permissions of one part of Stoker in a cloud, and the commands that grant them."""

    name: str
    about: str
    policy: dict[str, Any]
    # The trust policy, if the grant is a role.
    trust: dict[str, Any] | None = None
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grants:
    """All permissions that Stoker needs in a cloud. `notes` state their limits."""

    grants: tuple[Grant, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MachineRole:
    """The role that a job names for its machines, and that its launcher must be allowed to pass on."""

    # The cloud whose deployments launch such machines: `aws` or `gcp`.
    cloud: str
    # The field of the job file, its value, and the name of the role that `stoker iam` describes.
    field: str
    name: str
    default: str
    # A deployment for SageMaker may pass every such role.
    covered_by_sagemaker: bool = False


class IamModule(Protocol):
    """A provider's module `iam`. Makes no requests."""

    def grants(
        self,
        store: str,
        *,
        job: str | None = None,
        inputs: tuple[str, ...] = (),
        logs: str | None = None,
        secrets: tuple[str, ...] = (),
        notify: tuple[str, ...] = (),
    ) -> Grants:
        """Build the grants for one store.

        `job`: machines may write for jobs of that name alone. `inputs`: URLs that machines may read. `logs`: the log
        group of the cloud's own log service that machines may write to. `secrets`: references that machines resolve.
        `notify`: notification addresses of governors, as far as this cloud has to allow them.

        Raises UserError for a store or a secret that the provider's machines cannot reach.
        """

    def machine_role(self, resources: Resources) -> MachineRole | None:
        """The role that these resources name for their machines; None if they name none."""
