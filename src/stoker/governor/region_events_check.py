"""Check from its record whether a deployed governor gets the events of a job's machines. Pure.

Without them it governs all the same: its clock wakes it once a minute while a job is active.
"""

from __future__ import annotations

from stoker.governor.deployment_record import CLOUDS, DeploymentRecord
from stoker.model.errors import UserError
from stoker.model.spec import Spec
from stoker.providers import registry


def events_warning(deployed: DeploymentRecord, spec: Spec) -> str | None:
    """A warning about regions of the job whose events do not reach the governor; None where all do."""
    cloud = CLOUDS.get(deployed.cloud)
    if cloud is None or not cloud.regional_events:
        return None
    try:
        if cloud.scheme not in registry.capabilities(spec.resources.provider).stores:
            return None
    except UserError:
        return None  # A provider that is not installed here.
    heard = (deployed.region, *deployed.elsewhere)
    silent = [region for region in spec.resources.regions if region not in heard]
    if not silent:
        return None
    options = " ".join(f"--events-from {region}" for region in silent)
    return (
        f"resources.region: the governor {deployed.name} gets no events from {', '.join(silent)}, and looks there once "
        f"a minute; `stoker deploy {deployed.cloud} {options}` forwards them"
    )
