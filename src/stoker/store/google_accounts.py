"""Whom Google's storage is asked as: the application-default credentials, in the order that all its libraries know.

A file that GOOGLE_APPLICATION_CREDENTIALS names, the file that `gcloud auth application-default login` writes, the
metadata server of the machine. obstore reads keys of service accounts and logins of people by itself, and asks the
metadata server; for any other kind of file there is google-auth, which machines do not need.
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
    """What obstore's GCSStore has to be told of credentials. Asks nobody.

    Raises UserError for a file that is named and cannot be used.
    """
    path = credentials_file()
    if path is None:
        return {}
    kind = _kind(path)
    if kind in _OBSTORE_KNOWS:
        return {"application_credentials": str(path)}
    return {"credential_provider": GoogleAuthTokens(path, kind)}


def credentials_file() -> Path | None:
    """The person's credentials; None where there is no file, and the metadata server is asked."""
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
    """Changes whenever the person's credentials do; None where there is no file."""
    try:
        path = credentials_file()
        found = path.stat() if path is not None else None
    except (UserError, OSError):
        return None
    return None if found is None else (str(path), found.st_mtime_ns, found.st_size)


def _kind(path: Path) -> str:
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as Google credentials: {error}") from error
    kind = said.get("type") if isinstance(said, dict) else None
    if not isinstance(kind, str):
        raise UserError(f"{path} does not hold Google credentials; `gcloud auth application-default login` writes them")
    return kind


class GoogleAuthTokens:
    """Tokens for kinds of credentials that obstore does not know: workload identity, impersonation. Thread-safe.

    obstore calls it when it has no token, or one that ends within `refresh_threshold`.
    """

    refresh_threshold = timedelta(minutes=4)

    def __init__(self, path: Path, kind: str, scopes: tuple[str, ...] = _SCOPES) -> None:
        if not _installed():
            raise UserError(f"{path}: credentials of type {kind} need google-auth: pip install 'stoker[gcp]'")
        auth = importlib.import_module("google.auth")
        try:
            with warnings.catch_warnings():
                # It warns of files from strangers. This one is the person's own.
                warnings.simplefilter("ignore", DeprecationWarning)
                # Without scopes, which are added below, it does not look for a project on the network.
                found, _ = auth.load_credentials_from_file(str(path), request=_send)
        except Exception as error:
            # google-auth's errors are many, and all of them are about the user's file.
            lines = str(error).splitlines() or [type(error).__name__]
            raise UserError(f"{path} cannot be used as Google credentials: {lines[0][:300]}") from error
        scoped = importlib.import_module("google.auth.credentials").with_scopes_if_required
        self._credentials: Any = scoped(found, scopes)
        self._lock = threading.Lock()

    def __call__(self) -> dict[str, object]:
        with self._lock:
            self._credentials.refresh(_send)
            expiry: datetime | None = self._credentials.expiry
            # google-auth's times are UTC without saying so.
            ends = expiry.replace(tzinfo=timezone.utc) if expiry is not None and expiry.tzinfo is None else expiry
            return {"token": self._credentials.token, "expires_at": ends}


def _installed() -> bool:
    try:
        return importlib.util.find_spec("google.auth") is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True)
class _Answer:
    """As google-auth wants it."""

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
    """The wire for google-auth, which brings none of its own. An error status is an answer."""
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
