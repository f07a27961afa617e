"""Read secrets from Secret Manager, as the machine's service account or as a user.

Standard library alone, except for kinds of credentials that only google-auth can read.

https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets.versions/access
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from stoker.cloudapi.google.metadata import Metadata
from stoker.cloudapi.http_exchange import NoAnswer, exchange, json_object, with_scheme
from stoker.cloudapi.machine_vendor import is_elsewhere
from stoker.model.errors import UserError
from stoker.store.google_accounts import GoogleAuthTokens, credentials_file

_ENDPOINT = "https://secretmanager.googleapis.com"
_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"
_TOKENS = "https://oauth2.googleapis.com/token"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class GoogleError(OSError):
    """Google refused (`status` is its status name), or did not answer (`status` is empty)."""

    def __init__(self, status: str, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.absent = status == "NOT_FOUND"
        self.denied = status == "PERMISSION_DENIED"
        self.stale = status == "UNAUTHENTICATED" or code == 401
        self.later = not status or code >= 500 or code == 429


@dataclass(frozen=True)
class GoogleIdentity:
    """A token, and its default project. `machine`: it belongs to the machine's service account."""

    token: str = field(repr=False)
    project: str
    machine: bool
    # The project that is billed for a user's requests.
    billed: str = ""


def find(environ: Mapping[str, str], metadata: Metadata | None = None) -> GoogleIdentity:
    """Return the user's application-default credentials, else the account of a machine of Google.

    Raises UserError for an unusable file, GoogleError, and MetadataError if only the machine could have credentials.
    """
    path = credentials_file()
    if path is None:
        placed = any(environ.get(name) for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"))
        if metadata is None and not placed and is_elsewhere("google"):
            raise UserError("there are no Google credentials; `gcloud auth application-default login` makes some")
        metadata = metadata or Metadata()
        return GoogleIdentity(metadata.token()[0], (metadata.get("project/project-id") or "").strip(), machine=True)
    tree = _read(path)
    named = environ.get("GOOGLE_CLOUD_PROJECT") or environ.get("CLOUDSDK_CORE_PROJECT")
    billed = str(tree.get("quota_project_id") or "")
    project = str(named or tree.get("project_id") or billed)
    kind = str(tree.get("type") or "")
    token = _login(tree) if kind == "authorized_user" else _from_library(path, kind)
    return GoogleIdentity(token, project, machine=False, billed=billed if kind == "authorized_user" else "")


class SecretManager:
    """Secret Manager with one identity."""

    def __init__(self, identity: GoogleIdentity, environ: Mapping[str, str]) -> None:
        self._identity = identity
        self._endpoint = with_scheme(environ.get(_VARIABLE) or _ENDPOINT).rstrip("/")

    def access(self, name: str, version: str) -> bytes:
        """Return a version of a secret, by name or as `projects/…/secrets/…`. Raises GoogleError."""
        if "/" not in name:
            if not self._identity.project:
                raise GoogleError(
                    "NO_PROJECT", "no project is known; set GOOGLE_CLOUD_PROJECT, or write the whole name"
                )
            name = f"projects/{self._identity.project}/secrets/{name}"
        if "/versions/" not in name:
            name = f"{name}/versions/{version or 'latest'}"
        headers = {"Authorization": "Bearer " + self._identity.token}
        if self._identity.billed:
            headers["X-Goog-User-Project"] = self._identity.billed
        status, tree = _send("GET", f"{self._endpoint}/v1/{quote(name, safe='/:')}:access", headers)
        if status != 200:
            raise _refusal(status, tree)
        payload = tree.get("payload")
        data = payload.get("data") if isinstance(payload, dict) else None
        try:
            # An empty secret has no data.
            return base64.b64decode(str(data or ""), validate=True)
        except (binascii.Error, ValueError):
            raise GoogleError("", "the secret was answered with something that cannot be read") from None


def _refusal(status: int, tree: Mapping[str, Any]) -> GoogleError:
    error = tree.get("error")
    error = error if isinstance(error, dict) else {}
    status_name, detail = str(error.get("status") or status), str(error.get("message") or "")
    text = f"versions.access was answered with {status_name}{': ' + detail if detail else ''}"
    return GoogleError(status_name, text, status)


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as Google credentials: {error}") from None
    return tree if isinstance(tree, dict) else {}


def _login(tree: Mapping[str, Any]) -> str:
    """Return a token for a user, from the file that `gcloud auth application-default login` wrote."""
    form = {"grant_type": "refresh_token"}
    form |= {name: str(tree.get(name) or "") for name in ("client_id", "client_secret", "refresh_token")}
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    status, answer = _send("POST", str(tree.get("token_uri") or _TOKENS), headers, urlencode(form).encode())
    token = answer.get("access_token")
    if status == 200 and isinstance(token, str):
        return token
    if 400 <= status < 500 and status != 429:
        raise UserError("Google no longer accepts your login; run `gcloud auth application-default login`")
    raise GoogleError("", f"Google did not answer to your login: {status}")


def _from_library(path: Path, kind: str) -> str:
    try:
        return str(GoogleAuthTokens(path, kind, (_SCOPE,))()["token"])
    except UserError:
        raise
    except Exception as error:
        # google-auth has many exception types, and not all of them tell if the failure is temporary.
        lines = str(error).splitlines() or [type(error).__name__]
        raise GoogleError("", f"Google did not answer to your credentials: {lines[0][:300]}") from error


def _send(method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    try:
        answer = exchange(method, url, headers, body)
    except NoAnswer as error:
        raise GoogleError("", str(error)) from None
    return answer.status, json_object(answer.data)
