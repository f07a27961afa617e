"""Whether a deployed governor may give a job's machines the role that the job names, as far as its record tells. Pure.

Who launches a machine passes its role on, and may pass those alone that the deployment names: `stoker iam`'s by
themselves, others by an option.
"""

from __future__ import annotations

from stoker.governor.deployment_record import Deployed
from stoker.model.spec import Spec
from stoker.providers.ec2.request import DEFAULT_PROFILE
from stoker.providers.gce import identity
from stoker.providers.sagemaker.request import DEFAULT_ROLE

_COMPUTE = "-compute@developer.gserviceaccount.com"


def remark(deployed: Deployed, spec: Spec) -> str | None:
    """A line about a role that it may not pass, so that every launch would fail; None where it may."""
    resources = spec.resources
    if deployed.cloud == "gcp":
        if resources.provider != "gce" or resources.gce is None or resources.gce.service_account is None:
            return None
        address = identity.email(deployed.project, resources.gce.service_account)
        if address == "default":
            # Compute Engine's own, whose address has a number that no record tells.
            if any(each.endswith(_COMPUTE) for each in deployed.identities):
                return None
            address = f"NUMBER{_COMPUTE}"
        if address in (identity.email(deployed.project, identity.DEFAULT_ACCOUNT), *deployed.identities):
            return None
        return _told(deployed, "resources.gce.service_account", "act as", address, f"--service-account {address}")
    allowed = {_name(each) for each in deployed.identities}
    if resources.provider == "ec2" and resources.ec2 is not None and resources.ec2.profile is not None:
        name, field, usual = _name(resources.ec2.profile), "resources.ec2.profile", DEFAULT_PROFILE
    elif resources.provider == "sagemaker" and resources.sagemaker is not None and not deployed.sagemaker:
        name, field, usual = _name(resources.sagemaker.role or DEFAULT_ROLE), "resources.sagemaker.role", DEFAULT_ROLE
    else:
        return None
    if name == usual or name.startswith(f"{usual}-") or name in allowed:
        return None
    return _told(deployed, field, "pass the role", name, f"--pass-role {name}")


def _told(deployed: Deployed, field: str, verb: str, name: str, option: str) -> str:
    return (
        f"{field}: the governor {deployed.name} may not {verb} {name}, so its launches will fail; "
        f"`stoker deploy {deployed.cloud} {option}` allows it"
    )


def _name(role: str) -> str:
    """Without its account and its folders. A profile goes by the name of its role where nobody chose another."""
    return role.rpartition("/")[2]
