"""The identity of a machine: its service account, and the scopes of that account's tokens."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from stoker.model.errors import UserError
from stoker.model.resources import GceResources

# The name of the account that `stoker iam gce` describes.
DEFAULT_ACCOUNT = "stoker-node"
# The account's roles decide what it may do; narrower scopes would only repeat that decision.
DEFAULT_SCOPE = "cloud-platform"
_AUTH = "https://www.googleapis.com/auth/"
# gcloud's short names of scopes that differ from the end of the scope's address.
_SHORT = {
    "storage-ro": "devstorage.read_only",
    "storage-rw": "devstorage.read_write",
    "storage-full": "devstorage.full_control",
    "logging-write": "logging.write",
    "monitoring-write": "monitoring.write",
    "monitoring": "monitoring",
    "compute-ro": "compute.readonly",
    "compute-rw": "compute",
    "bigquery": "bigquery",
    "pubsub": "pubsub",
}
_ACCOUNT = re.compile(r"default|[a-z][-a-z0-9]*|[^@\s/]+@[^@\s/]+\.[^@\s/]+")
_SCOPE = re.compile(r"https://www\.googleapis\.com/auth/[a-z0-9._-]+|[a-z0-9._-]+")


def account(project: str, gce: GceResources) -> dict[str, Any]:
    """The service account as a field of the launch request."""
    scopes = [scope(name) for name in gce.scopes or (DEFAULT_SCOPE,)]
    return {"email": email(project, gce.service_account or DEFAULT_ACCOUNT), "scopes": scopes}


def email(project: str, name: str) -> str:
    """The address of an account from its address or its name in the project. `default` is Compute Engine's own."""
    if name == "default" or "@" in name:
        return name
    # For the project `example.com:vision` the domain is vision.example.com.
    domain, _, own = project.rpartition(":")
    return f"{name}@{own}.{domain}.iam.gserviceaccount.com" if domain else f"{name}@{own}.iam.gserviceaccount.com"


def checked(project: str, name: str, field: str) -> str:
    """The address of an account that a person named in `field`. Raises UserError for an invalid name."""
    if name == "default" or not _ACCOUNT.fullmatch(name):
        raise UserError(f"{field}: {name!r} is no account; give its address")
    return email(project, name)


def path(email: str) -> str:
    """The account's path in the IAM API, with the account's own project.

    With `-` as the project, IAM answers 403 instead of 404 for an account that does not exist.
    """
    name, _, domain = email.partition("@")
    own = domain.removesuffix(".iam.gserviceaccount.com")
    if own == domain:
        # Compute Engine's default account has the project's number in its name; for others the project is not known.
        number = name.removesuffix("-compute") if domain == "developer.gserviceaccount.com" else ""
        project = number if number.isdigit() else "-"
    else:
        within, _, around = own.partition(".")
        project = f"{around}:{within}" if around else within
    return f"/v1/projects/{project}/serviceAccounts/{quote(email, safe='@')}"


def scope(name: str) -> str:
    """The address of a scope, from the address itself or a short name as gcloud takes it."""
    return name if name.startswith(_AUTH) else _AUTH + _SHORT.get(name, name)


def check(gce: GceResources) -> None:
    """Raise UserError for an invalid account or scope."""
    if gce.service_account is not None and not _ACCOUNT.fullmatch(gce.service_account):
        raise UserError(f"resources.gce.service_account: {gce.service_account!r} is no account; give its address")
    for name in gce.scopes:
        if not _SCOPE.fullmatch(name):
            raise UserError(f"resources.gce.scopes: {name!r} is no scope; name one such as cloud-platform")
