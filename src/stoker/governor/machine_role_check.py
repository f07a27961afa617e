"""Check from its record whether a deployed governor may give a job's machines the role that the job names. Pure.

A governor that launches a machine passes a role to it, and may pass only the roles of the deployment: those of
`stoker iam` by default, others by an option.
"""

from __future__ import annotations

from stoker.governor.deployment_record import DeploymentRecord
from stoker.model.errors import UserError
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.grants import DeployedGrants


def role_warning(deployed: DeploymentRecord, spec: Spec) -> str | None:
    """A warning about a role that the governor may not pass, so that every launch would fail; None if it may."""
    try:
        iam = registry.iam(spec.resources.provider)
    except UserError:
        return None  # A provider without permissions, such as this computer.
    role = iam.machine_role(spec.resources)
    if role is None or role.cloud != deployed.cloud:
        return None
    granted = DeployedGrants(deployed.name, deployed.project, deployed.identities, deployed.sagemaker)
    refused = iam.refusal(role, granted)
    if refused is None:
        return None
    return (
        f"{role.field}: the governor {deployed.name} may not {refused.verb} {refused.name}, so its launches will fail; "
        f"`stoker deploy {deployed.cloud} {refused.option}` allows it"
    )
