"""Check from its record whether a deployed governor may give a job's machines the role that the job names. Pure.

A governor that launches a machine passes a role to it, and may pass only the roles of the deployment: those of
`stoker iam` by default, others by an option.
"""

from __future__ import annotations

from stoker.governor.deployment_record import DeploymentRecord
from stoker.model.errors import UserError
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.gce import identity
from stoker.providers.grants import MachineRole

_COMPUTE = "-compute@developer.gserviceaccount.com"


def role_warning(deployed: DeploymentRecord, spec: Spec) -> str | None:
    """A warning about a role that the governor may not pass, so that every launch would fail; None if it may."""
    try:
        role = registry.iam(spec.resources.provider).machine_role(spec.resources)
    except UserError:
        return None  # A provider without permissions, such as this computer.
    if role is None or role.cloud != deployed.cloud:
        return None
    return _account_warning(deployed, role) if deployed.cloud == "gcp" else _aws_role_warning(deployed, role)


def _account_warning(deployed: DeploymentRecord, role: MachineRole) -> str | None:
    address = identity.email(deployed.project, role.name)
    if address == "default":
        # The default account of Compute Engine, whose address has a project number that no record holds.
        if any(each.endswith(_COMPUTE) for each in deployed.identities):
            return None
        address = f"NUMBER{_COMPUTE}"
    if address in (identity.email(deployed.project, role.default), *deployed.identities):
        return None
    return _warning(deployed, role.field, "act as", address, f"--service-account {address}")


def _aws_role_warning(deployed: DeploymentRecord, role: MachineRole) -> str | None:
    name = _name(role.name)
    if role.covered_by_sagemaker and deployed.sagemaker:
        return None
    if name == role.default or name.startswith(f"{role.default}-") or name in map(_name, deployed.identities):
        return None
    return _warning(deployed, role.field, "pass the role", name, f"--pass-role {name}")


def _warning(deployed: DeploymentRecord, field: str, verb: str, name: str, option: str) -> str:
    return (
        f"{field}: the governor {deployed.name} may not {verb} {name}, so its launches will fail; "
        f"`stoker deploy {deployed.cloud} {option}` allows it"
    )


def _name(role: str) -> str:
    """The role's name without account and path. A profile has the name of its role unless another was chosen."""
    return role.rpartition("/")[2]
