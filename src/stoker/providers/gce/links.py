"""Links to Google's console. Pure."""

from __future__ import annotations

from urllib.parse import quote

from stoker.cloudapi.google.logs import query
from stoker.model.spec import Logs
from stoker.providers.console_links import NodeIdentity
from stoker.providers.gce import names
from stoker.providers.gce.places import ProjectRegion, split_id

_CONSOLE = "https://console.cloud.google.com"
# Cloud Logging's default retention.
_LONGEST = "P30D"


def name(node: NodeIdentity) -> str:
    """The name under which the console lists the machine."""
    return names.of_rank(names.of_claim(node.store, node.job, node.claim), node.rank)


def machine(instance: str, region: str | None) -> str | None:
    """The page of one machine; None where the project is not known."""
    if not region or "/" not in region:
        return None
    zone, number = split_id(instance)
    return (
        f"{_CONSOLE}/compute/instancesDetail/zones/{zone}/instances/{number}?project={ProjectRegion.of(region).project}"
    )


def log(logs: Logs, job: str, attempt: int, rank: int, region: str | None) -> str | None:
    """The page of one node's lines in Cloud Logging; None where they are not sent there."""
    name = logs.cloud_logging
    if name is None or not region or "/" not in region:
        return None
    project = ProjectRegion.of(region).project
    return _explored(query(project, name, job, attempt, rank), project)


def own_logs(instance: str, region: str | None) -> str:  # noqa: ARG001 - the number is enough
    """The filter, for Logs Explorer or `gcloud logging read`, of what Google and the machine's agents logged."""
    return f'resource.type="gce_instance" AND resource.labels.instance_id="{split_id(instance)[1]}"'


def own_logs_link(instance: str, region: str | None) -> str | None:
    """The same, opened in Logs Explorer; None where the project is not known."""
    if not region or "/" not in region:
        return None
    return _explored(own_logs(instance, region), ProjectRegion.of(region).project)


def _explored(filter: str, project: str) -> str:
    """The page of Logs Explorer with this filter. Without a duration it would show the last hour alone."""
    asked = f"query={quote(filter, safe='')};duration={_LONGEST}"
    return f"{_CONSOLE}/logs/query;{asked}?project={project}"
