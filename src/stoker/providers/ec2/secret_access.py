"""The permissions with which a machine's role reads the secrets of jobs and makes their tokens. Makes no requests."""

from __future__ import annotations

from typing import Any

from stoker.model import channel_address, secret_refs
from stoker.model.errors import UserError
from stoker.model.secret_refs import Reference
from stoker.providers.ec2.permissions import allow

# Reads besides the token, which alone grants no access.
_ARTIFACT_READS = ["codeartifact:GetRepositoryEndpoint", "codeartifact:ReadFromRepository"]
_IMAGE_READS = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]

# The actions on notification channels, with the Sids of their statements.
_CHANNELS = {
    "sns:Publish": "Tell",
    "secretsmanager:GetSecretValue": "ReadChannelSecrets",
    "ssm:GetParameter": "ReadChannelParameters",
}

NOTE = (
    "A secret or parameter that is encrypted with a key of your own also needs kms:Decrypt on that key; with AWS's own "
    "keys it does not."
)


def statements(secrets: tuple[str, ...]) -> list[dict[str, Any]]:
    """The statements for these references. Raises UserError for one that machines on EC2 cannot resolve."""
    found: list[dict[str, Any]] = []
    for number, text in enumerate(secrets, 1):
        found += _statements(number, _parsed(text))
    return found


def channels(notify: tuple[str, ...]) -> list[dict[str, Any]]:
    """The statements for governors: topics that they publish to, and secrets that are addresses.

    Other channels need no permission. One statement for each action, because IAM limits the length of a role's
    policies.
    """
    wanted: dict[str, list[str]] = {}
    for to in notify:
        topic = channel_address.topic_of(to)
        if topic is not None:
            wanted.setdefault("sns:Publish", []).append(topic)
        elif to.startswith("aws-"):
            for each in _statements(0, _parsed(to)):
                wanted.setdefault(each["Action"], []).append(each["Resource"])
    named = {action: list(dict.fromkeys(resources)) for action, resources in wanted.items()}
    return [allow(_CHANNELS[action], action, resources) for action, resources in named.items()]


def _parsed(text: str) -> Reference:
    kinds = tuple(kind for kind in secret_refs.KINDS if kind.startswith("aws-"))
    try:
        wanted = secret_refs.parse(text)
    except ValueError:
        wanted = None
    if wanted is None or wanted.kind not in kinds:
        raise UserError(f"--secret: machines on EC2 read {secret_refs.expected(kinds)}; give what the job file has")
    return wanted


def _statements(number: int, wanted: Reference) -> list[dict[str, Any]]:
    name = wanted.name
    match wanted.kind:
        case "aws-sm":
            # Secrets Manager appends six characters to every ARN.
            where = name if name.startswith("arn:") else f"arn:aws:secretsmanager:*:*:secret:{name}-??????"
            return [allow(f"ReadSecret{number}", "secretsmanager:GetSecretValue", where)]
        case "aws-ssm":
            # A version or a label is not part of the resource.
            where = (
                name if name.startswith("arn:") else f"arn:aws:ssm:*:*:parameter/{name.partition(':')[0].lstrip('/')}"
            )
            return [allow(f"ReadSecret{number}", "ssm:GetParameter", where)]
        case "aws-codeartifact":
            owner = wanted.detail or "*"
            domain = f"arn:aws:codeartifact:*:{owner}:domain/{name}"
            bearer = {"StringEquals": {"sts:AWSServiceName": "codeartifact.amazonaws.com"}}
            return [
                allow(f"MakeToken{number}", "codeartifact:GetAuthorizationToken", domain),
                allow(f"BearToken{number}", "sts:GetServiceBearerToken", "*", bearer),
                allow(f"ReadPackages{number}", _ARTIFACT_READS, f"arn:aws:codeartifact:*:{owner}:repository/{name}/*"),
            ]
        case _:
            return [
                allow(f"MakeToken{number}", "ecr:GetAuthorizationToken", "*"),
                allow(f"ReadImages{number}", _IMAGE_READS, "arn:aws:ecr:*:*:repository/*"),
            ]
