"""The permissions that Stoker needs in a cloud: the contract of a provider's module `iam`, and the folders of the store
that each part of Stoker may read, write and remove, which are the same in every cloud."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.resources import Resources

_JOB_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


@dataclass(frozen=True)
class StoreAccess:
    """The folders of the store for one part of Stoker: see `stoker.model.keys`. The empty name is the whole store."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    removes: tuple[str, ...]


_PACKED = (keys.CODE, keys.BUNDLES, keys.TOOLS, keys.WHEELS, keys.INPUTS)
_SUBMITTED = (keys.JOBS, *_PACKED, keys.ACTIVE, keys.INDEX, keys.CHECKS)
_DERIVED = (
    *(keys.ACTIVE, keys.INDEX, keys.GOVERNORS, keys.OUTBOX),
    *(keys.DRY, keys.MARKET, keys.PLACES, keys.EXTERNAL_JOB_INDEX, keys.PROBES),
)
# The record of costs is permanent: no part that writes it may remove it. People write it with `stoker reindex` and
# `stoker rm`.
PERSON = StoreAccess(
    reads=("",),
    # The store's time, which `stoker rm` needs, is read from a probe.
    writes=(*_SUBMITTED, keys.SPENT, keys.REMOVED, keys.COLLECTED, keys.PROBES),
    removes=(*_SUBMITTED, keys.WORK, keys.PROBES),
)
# A governor also writes entries of any job's log, which each cloud has to allow in its own way.
GOVERNOR = StoreAccess(reads=("",), writes=(*_DERIVED, keys.SPENT, keys.CLONE_CHAINS, keys.PRICES), removes=_DERIVED)


def node_access(own: str) -> StoreAccess:
    """The access of a machine: it writes facts, and no decision. `own` limits it to jobs whose ids begin so."""
    work = (keys.WORK + own,)
    return StoreAccess((keys.JOBS + own, *_PACKED, keys.POLICY, *work, keys.REMOVED), work, work)


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
    # The field of the job file, and its value.
    field: str
    name: str


@dataclass(frozen=True)
class DeployedGrants:
    """The grants of a deployed governor that decide which roles it may pass on."""

    # Its name, which is of its store.
    deployment: str
    # Its project, in a cloud that has projects.
    project: str
    # Roles that it may pass on beside those of `stoker iam`.
    identities: tuple[str, ...]
    # It governs external training jobs of SageMaker.
    sagemaker: bool


@dataclass(frozen=True)
class RoleRefusal:
    """A role that a deployed governor may not pass on: the verb, the role's name, and the option that allows it."""

    verb: str
    name: str
    option: str


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
        kms_keys: tuple[str, ...] = (),
    ) -> Grants:
        """Build the grants for one store.

        `job`: machines may write for jobs of that name alone. `inputs`: URLs that machines may read. `logs`: the log
        group of the cloud's own log service that machines may write to. `secrets`: references that machines resolve.
        `notify`: notification addresses of governors, as far as this cloud has to allow them.
        `kms_keys`: keys on AWS that encrypt what the store or its machines use.

        Raises UserError for a store or a secret that the provider's machines cannot reach.
        """

    def machine_role(self, resources: Resources) -> MachineRole | None:
        """The role that these resources name for their machines; None if they name none."""

    def refusal(self, role: MachineRole, granted: DeployedGrants) -> RoleRefusal | None:
        """The refusal of a deployed governor to pass this role on; None if it may."""


def check_job_name(job: str | None) -> None:
    """Raise UserError for a text that is no job's name."""
    if job is not None and _JOB_NAME.fullmatch(job) is None:
        raise UserError(f"--job {job}: give a job's name: lower-case letters, digits and -, a letter first")


def jobs_of(job: str | None) -> str:
    """The jobs whose machines a policy is for, in words."""
    return "any job" if job is None else f"jobs called {job}"


def paragraphs(text: str) -> tuple[str, ...]:
    """The paragraphs of a text, each on one line."""
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
