"""The APIs around Compute Engine, as far as somebody asks them whether a project is ready: permissions and accounts."""

from __future__ import annotations

from tests.support.gce.catalog import PROJECTS, accounts, number_of
from tests.support.gce.discovery import Method
from tests.support.gce.errors import Failure, Json, not_found
from tests.support.gce.faults import Faults

# Their discovery documents.
APIS = (("cloudresourcemanager", "v1"), ("iam", "v1"))


def answer(method: Method, body: Json, faults: Faults) -> Json:
    """Do what is asked. Raises Failure."""
    match method.id:
        case "cloudresourcemanager.projects.testIamPermissions":
            if method.path["resource"] not in PROJECTS:
                raise Failure(403, "forbidden", "The caller does not have permission")
            return _granted(body, faults)
        case "iam.projects.serviceAccounts.get":
            return _account(method.path["serviceAccountsId"])
        case "iam.projects.serviceAccounts.testIamPermissions":
            _account(method.path["serviceAccountsId"])
            return _granted(body, faults)
        case _:
            raise Failure(501, "notImplemented", f"this cloud has no {method.id}")


def _granted(body: Json, faults: Faults) -> Json:
    granted = [each for each in body.get("permissions") or [] if not faults.forbids(each)]
    return {"permissions": granted} if granted else {}


def _account(email: str) -> Json:
    for project in PROJECTS:
        if email in accounts(project):
            return {
                "name": f"projects/{project}/serviceAccounts/{email}",
                "projectId": project,
                "uniqueId": number_of(email),
                "email": email,
            }
    raise not_found(f"projects/-/serviceAccounts/{email}")
