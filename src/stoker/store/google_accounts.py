"""Google's application-default credentials, found in the same order as by Google's libraries.

The order: a file named by GOOGLE_APPLICATION_CREDENTIALS, the file that `gcloud auth application-default login` writes,
the metadata server of the machine. obstore itself reads keys of service accounts and logins of people, and queries the
metadata server; any other kind of file needs google-auth, which machines do not need.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from stoker.model.errors import UserError

_OBSTORE_KNOWS = ("service_account", "authorized_user")
_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_TIMEOUT_S = 10.0


def obstore_options() -> dict[str, Any]:
    """Options of obstore's GCSStore for the credentials. Makes no request.

    Raises UserError for a named file that cannot be used.
    """
    path = credentials_file()
    if path is None:
        return {}
    kind = _kind(path)
    if kind in _OBSTORE_KNOWS:
        return {"application_credentials": str(path)}
    return {"credential_provider": GoogleAuthTokens(path, kind)}


def credentials_file() -> Path | None:
    """The file with the person's credentials; None if there is none, and the metadata server is used."""
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named:
        path = Path(named).expanduser().absolute()
        if not path.is_file():
            raise UserError(f"GOOGLE_APPLICATION_CREDENTIALS: there is no file {path}; name one, or unset it")
        return path
    folder = os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud"
    path = Path(folder).expanduser().absolute() / "application_default_credentials.json"
    return path if path.is_file() else None


def credentials_stamp() -> tuple[str, int, int] | None:
    """A value that changes whenever the file with the person's credentials does; None without a file."""
    try:
        path = credentials_file()
        found = path.stat() if path is not None else None
    except (UserError, OSError):
        return None
    return None if found is None else (str(path), found.st_mtime_ns, found.st_size)


def _kind(path: Path) -> str:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as Google credentials: {error}") from error
    kind = content.get("type") if isinstance(content, dict) else None
    if not isinstance(kind, str):
        raise UserError(f"{path} does not hold Google credentials; `gcloud auth application-default login` writes them")
    return kind


class GoogleAuthTokens:
    """Tokens for credentials that obstore does not support: workload identity, impersonation. Thread-safe.

    obstore calls it without a token, or with one that expires within `refresh_threshold`.
    """

    refresh_threshold = timedelta(minutes=4)

    def __init__(self, path: Path, kind: str, scopes: tuple[str, ...] = _SCOPES) -> None:
        if not _installed():
            raise UserError(f"{path}: credentials of type {kind} need google-auth: pip install 'stoker[gcp]'")
        auth = importlib.import_module("google.auth")
        try:
            with warnings.catch_warnings():
                # google-auth warns of untrusted files. This one is the person's own.
                warnings.simplefilter("ignore", DeprecationWarning)
                # Scopes are added below: without them, this call does not look for a project on the network.
                found, _ = auth.load_credentials_from_file(str(path), request=_send)
        except Exception as error:
            # google-auth has many errors, and all of them here are about the user's file.
            lines = str(error).splitlines() or [type(error).__name__]
            raise UserError(f"{path} cannot be used as Google credentials: {lines[0][:300]}") from error
        scoped = importlib.import_module("google.auth.credentials").with_scopes_if_required
        self._credentials: Any = scoped(found, scopes)
        self._lock = threading.Lock()

    def __call__(self) -> dict[str, object]:
        with self._lock:
            self._credentials.refresh(_send)
            expiry: datetime | None = self._credentials.expiry
            # Times of google-auth are in UTC, without a time zone.
            ends = expiry.replace(tzinfo=timezone.utc) if expiry is not None and expiry.tzinfo is None else expiry
            return {"token": self._credentials.token, "expires_at": ends}


def _installed() -> bool:
    try:
        return importlib.util.find_spec("google.auth") is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True)
class _Answer:
    """A response in the form that google-auth expects."""

    status: int
    headers: Mapping[str, str]
    data: bytes


def _send(
    url: str,
    method: str = "GET",
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = _TIMEOUT_S,
    **_: object,
) -> _Answer:
    """HTTP transport for google-auth, which has none of its own. An error status is returned as a response."""
    data = body.encode() if isinstance(body, str) else body
    request = urllib.request.Request(url, data=data, headers=dict(headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout or _TIMEOUT_S) as answer:
            return _Answer(answer.status, dict(answer.headers), answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return _Answer(error.code, dict(error.headers), error.read())
    except OSError as error:
        transport = importlib.import_module("google.auth.exceptions").TransportError
        raise transport(f"{url} does not answer: {error}") from error
