"""Addresses of machines and logs in AWS's console. Pure."""

from __future__ import annotations

from urllib.parse import quote

from stoker.cloudapi.aws.logs import log_stream
from stoker.model.spec import Logs
from stoker.providers.console_links import NodeIdentity
from stoker.providers.ec2 import tags


def name(node: NodeIdentity) -> str:
    """The `Name` tag under which the console lists the machine."""
    return tags.name(node.job, node.attempt, 0 if node.nodes == 1 else None)


def machine(instance: str, region: str | None) -> str | None:
    """The page of one instance. EC2 shows it for an hour after its end."""
    return f"{home('ec2', region)}#InstanceDetails:instanceId={instance}" if region else None


def log(logs: Logs, job: str, attempt: int, rank: int, region: str | None) -> str | None:
    """The page of one log stream."""
    group, stream = logs.cloudwatch, log_stream(job, attempt, rank)
    if group is None:
        return None
    where = f"log-groups/log-group/{_twice(group)}/log-events/{_twice(stream)}"
    return f"{home('cloudwatch', region)}#logsV2:{where}" if region else None


def own_logs(instance: str, region: str | None) -> None:
    """None: EC2 keeps a machine's console output for an hour, and nothing that could be queried later."""


def own_logs_link(instance: str, region: str | None) -> None:
    """None: see `own_logs`."""


def home(service: str, region: str | None) -> str:
    """The console's address, which differs by partition."""
    domain = f"{region}.console.aws.amazon.com"
    if str(region).startswith("cn-"):
        domain = f"{region}.console.amazonaws.cn"
    elif str(region).startswith("us-gov-"):
        domain = "console.amazonaws-us-gov.com"
    return f"https://{domain}/{service}/home?region={region}"


def _twice(name: str) -> str:
    """Encode a name twice, as the console expects it, with a dollar instead of the second percent sign."""
    return quote(quote(name, safe=""), safe="").replace("%", "$")
