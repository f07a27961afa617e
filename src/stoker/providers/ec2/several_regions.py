"""A job in several regions: what it names by id is in one of them alone, so that each launch uses what is in its own.

Subnets and security groups are matched to their regions; a reservation or an image by its id would leave nothing for
the other regions, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.model.errors import InvalidRequest, UserError
from stoker.model.resources import Ec2Resources, Resources
from stoker.model.secret_refs import parse
from stoker.model.spec import Spec
from stoker.providers.ec2.client import pages
from stoker.providers.ec2.errors import call_aws

GROUPS_FIELD = "resources.ec2.security_groups"
SUBNETS_FIELD = "resources.ec2.subnet"
# A placeholder for the security groups that only EC2 can tell: `filled` replaces it.
GROUP_IDS = "(the security groups of that region)"
# References to secrets that have a name, and are looked up in the region of the machine unless that is an ARN.
_BY_REGION = ("aws-sm", "aws-ssm", "aws-codeartifact")


def check(resources: Resources) -> None:
    """Raise UserError for an id that is in one region only, if the job names several. Pure."""
    if not resources.names_several:
        return
    regions = " and ".join(resources.regions)
    # "AMIs are a regional resource. Therefore, to make an AMI available in a specific Region, you must copy the AMI to
    # that Region", where it has another id: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/CopyingAMIs.html
    if (resources.image or "").startswith("ami-"):
        raise UserError(
            f"resources.image: {resources.image} is in one region, and the job may run in {regions}; "
            "name the image by an alias, its name or ssm:PARAMETER"
        )
    reservation = ((resources.ec2 and resources.ec2.reservation) or "").removeprefix("block:")
    if reservation.startswith(("cr-", "arn:")):
        raise UserError(
            f"resources.ec2.reservation: {reservation} is in one region, and the job may run in {regions}; "
            "name that region alone"
        )


def remarks(spec: Spec) -> Iterator[str]:
    """Lines about a job in several regions that may surprise."""
    resources = spec.resources
    if not resources.names_several:
        return
    references = {f"secrets.{name}": text for name, text in spec.secrets.items()}
    for field, text in references.items():
        reference = parse(text)
        if reference.kind in _BY_REGION and not reference.name.startswith("arn:"):
            regions = " and ".join(resources.regions)
            arn = "" if reference.kind == "aws-codeartifact" else ", or write its ARN"
            yield f"{field}: {text} is looked up in the machine's region; keep it in {regions}{arn}"


def filter_by(name: str, ids: tuple[str, ...]) -> dict[str, Any]:
    """The parameters that list those of these ids that are in the region. A request by id fails for one that is not."""
    return {"Filters": [{"Name": name, "Values": list(dict.fromkeys(ids))}]}


def find_groups(ec2: Any, asked: Mapping[str, Any]) -> tuple[str, ...]:
    """The security groups of the job that are in this region. Raises InvalidRequest if none is."""
    named = asked["Filters"][0]["Values"]
    found = _ids(ec2.describe_security_groups, "SecurityGroups", "GroupId", GROUPS_FIELD, asked)
    if not found:
        where = ec2.meta.region_name
        raise InvalidRequest(f"{GROUPS_FIELD}: none of {', '.join(named)} is in {where}; name one there")
    return tuple(each for each in named if each in found)


def filled(asked: Mapping[str, Any], groups: tuple[str, ...]) -> dict[str, Any]:
    """The request to launch, with these security groups where the placeholder was. No groups change nothing."""
    return {key: _filled(value, groups) for key, value in asked.items()} if groups else dict(asked)


def _filled(value: Any, groups: tuple[str, ...]) -> Any:
    if value == [GROUP_IDS]:
        return list(groups)
    if isinstance(value, list):
        return [_filled(each, groups) for each in value]
    return filled(value, groups) if isinstance(value, dict) else value


def check_ids(clients: Callable[[str], Any], resources: Resources) -> None:
    """Raise UserError for a subnet or a security group that is in none of the regions."""
    ec2 = resources.ec2 or Ec2Resources()
    for field, named, operation, part, key, name in (
        (SUBNETS_FIELD, ec2.subnet, "describe_subnets", "Subnets", "SubnetId", "subnet-id"),
        (GROUPS_FIELD, ec2.security_groups, "describe_security_groups", "SecurityGroups", "GroupId", "group-id"),
    ):
        if not named:
            continue
        found: set[str] = set()
        for region in resources.regions:
            found |= _ids(getattr(clients(region), operation), part, key, field, filter_by(name, named))
        if stray := next((each for each in named if each not in found), None):
            raise UserError(f"{field}: {stray} is in none of {', '.join(resources.regions)}")


def _ids(call: Callable[..., Any], part: str, key: str, field: str, asked: Mapping[str, Any]) -> set[str]:
    return {str(each[key]) for each in call_aws(field, lambda: list(pages(call, part, **asked)))}
