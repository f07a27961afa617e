"""The account's limits on machines: EC2 counts vCPUs for each family, separately for spot and on-demand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stoker.model.errors import ProviderError, UserError
from stoker.model.offerings import Offering
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import call_aws

SERVICE = "ec2"


@dataclass(frozen=True)
class Quota:
    """One limit. `families` are the prefixes of the machine types that count against it."""

    code: str
    name: str
    families: tuple[str, ...]
    spot: bool
    # Shown to jobs that need it alone.
    rare: bool = False


_STANDARD = ("a", "c", "d", "h", "i", "m", "r", "t", "z")

# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-quotas.html and …/using-spot-limits.html
QUOTAS = (
    Quota("L-1216C47A", "on-demand standard machines", _STANDARD, False),
    Quota("L-DB2E81BA", "on-demand G machines", ("g", "gr", "vt"), False),
    Quota("L-417A185B", "on-demand P machines", ("p",), False),
    Quota("L-34B43A08", "spot standard machines", _STANDARD, True),
    Quota("L-3819A6DF", "spot G machines", ("g", "gr", "vt"), True),
    Quota("L-7212CCBC", "spot P machines up to P4", ("p2", "p3", "p4"), True),
    Quota("L-C4BD4855", "spot P5 machines", ("p5",), True),
    Quota("L-2C3B7624", "on-demand Trn machines", ("trn",), False, rare=True),
    Quota("L-6B0D517C", "spot Trn machines", ("trn",), True, rare=True),
    Quota("L-1945791B", "on-demand Inf machines", ("inf",), False, rare=True),
    Quota("L-B5D1601B", "spot Inf machines", ("inf",), True, rare=True),
    Quota("L-6E869C2A", "on-demand DL machines", ("dl",), False, rare=True),
    Quota("L-85EED4F7", "spot DL machines", ("dl",), True, rare=True),
)


def quota_of(machine: str, spot: bool) -> Quota | None:
    """The limit that applies to a machine type; None if the table does not know it."""
    match = re.match(r"([a-z]+)([0-9]*)", machine)
    if match is None:
        return None
    letters, generation = match[1], match[2]
    for quota in QUOTAS:
        if quota.spot == spot and (letters in quota.families or f"{letters}{generation}" in quota.families):
            return quota
    return None


def needed(offerings: Iterable[Offering], nodes: int) -> dict[str, int]:
    """The fewest vCPUs that allow at least one of these offerings, by the code of its limit."""
    least: dict[str, int] = {}
    for offering in offerings:
        quota = quota_of(offering.machine, offering.spot)
        if quota is not None and offering.cpus and offering.reservation is None:
            wanted = offering.cpus * nodes
            least[quota.code] = min(wanted, least.get(quota.code, wanted))
    return least


def check_quota(clients: Clients, offerings: Sequence[Offering]) -> None:
    """Raise UserError if the account may have none of these, spot or on-demand.

    One call for each limit, until one is not zero; none for machines without GPUs, of which every account may have
    some. An unknown limit rules out nothing.
    """
    # The machines of a reservation were granted to the account with it, or by the account that shares it.
    if any(each.reservation is not None for each in offerings):
        return
    limits = {quota_of(each.machine, each.spot) for each in offerings}
    if not offerings or not all(each.gpus for each in offerings) or None in limits:
        return
    region = offerings[0].region
    found = sorted((limit for limit in limits if limit is not None), key=lambda limit: limit.name)
    try:
        client = clients.get("service-quotas", region, attempts=1)
        for limit in found:
            asked = {"ServiceCode": SERVICE, "QuotaCode": limit.code}
            answer = call_aws("quota", lambda: client.get_service_quota(**asked))  # noqa: B023 - called at once
            if float(answer["Quota"]["Value"]) > 0:
                return
    except ProviderError:
        return
    limits_text = " and ".join(f"{limit.name} ({limit.code}) is 0" for limit in found)
    more = f"ask for more: {increase_command(found[0], region, offerings[0].cpus)}"
    raise UserError(f"the account may have none of these machines: its quota of {limits_text}; {more}")


def increase_command(quota: Quota, region: str | None, vcpus: int | None) -> str:
    """The command that requests a higher limit."""
    return (
        f"aws service-quotas request-service-quota-increase --region {region}"
        f" --service-code {SERVICE} --quota-code {quota.code} --desired-value {vcpus or 8}"
    )
