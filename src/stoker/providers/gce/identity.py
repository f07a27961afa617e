"""Who a machine is: its service account, and what the tokens of that account may be used for."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from stoker.model.errors import UserError
from stoker.model.spec import GceResources

# What `stoker iam gce` calls the account that it describes.
DEFAULT_ACCOUNT = "stoker-node"
# What the account may do is decided by its roles; scopes would only be a second lock with the same key.
DEFAULT_SCOPE = "cloud-platform"
_AUTH = "https://www.googleapis.com/auth/"
# gcloud's short names that are not simply the end of the address.
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
    """The service account as a request has it."""
    scopes = [scope(name) for name in gce.scopes or (DEFAULT_SCOPE,)]
    return {"email": email(project, gce.service_account or DEFAULT_ACCOUNT), "scopes": scopes}


def email(project: str, name: str) -> str:
    """An account by its address, or by the name that it has in the project; `default` is Compute Engine's own."""
    if name == "default" or "@" in name:
        return name
    # Of `example.com:vision`, it is vision.example.com.
    domain, _, own = project.rpartition(":")
    return f"{name}@{own}.{domain}.iam.gserviceaccount.com" if domain else f"{name}@{own}.iam.gserviceaccount.com"


def checked(project: str, name: str, field: str) -> str:
    """The address of an account that somebody named. Raises UserError for what cannot be one."""
    if name == "default" or not _ACCOUNT.fullmatch(name):
        raise UserError(f"{field}: {name!r} is no account; give its address")
    return email(project, name)


def path(email: str) -> str:
    """Where IAM tells of an account. By its own project: of an account that is not there, IAM says where nobody names
    the project that it may not be seen."""
    name, _, domain = email.partition("@")
    own = domain.removesuffix(".iam.gserviceaccount.com")
    if own == domain:
        # Compute Engine's default one has its project's number in its name; of others, nobody knows the project.
        number = name.removesuffix("-compute") if domain == "developer.gserviceaccount.com" else ""
        project = number if number.isdigit() else "-"
    else:
        within, _, around = own.partition(".")
        project = f"{around}:{within}" if around else within
    return f"/v1/projects/{project}/serviceAccounts/{quote(email, safe='@')}"


def scope(name: str) -> str:
    """The whole address of a scope, which people may write as gcloud lets them."""
    return name if name.startswith(_AUTH) else _AUTH + _SHORT.get(name, name)


def check(gce: GceResources) -> None:
    """Raise UserError for what cannot be an account or a scope."""
    if gce.service_account is not None and not _ACCOUNT.fullmatch(gce.service_account):
        raise UserError(f"resources.gce.service_account: {gce.service_account!r} is no account; give its address")
    for name in gce.scopes:
        if not _SCOPE.fullmatch(name):
            raise UserError(f"resources.gce.scopes: {name!r} is no scope; name one such as cloud-platform")
