"""Google's APIs over HTTP: httpx for the wire, google-auth for credentials. Both are imported when first used."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from stoker.errors import AuthDenied, ProviderError, Transient, UserError
from stoker.providers.gce.errors import first_line, refused

Service = Literal["compute", "cloudbilling", "logging", "cloudresourcemanager", "iam", "serviceusage", "storage"]

# As gcloud names them, so that one setting moves both.
_OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
_CONNECT_S = 5.0
_READ_S = 30.0
# A long poll answers within two minutes, done or not; nobody here waits that long for one.
_POLL_S = 60.0
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# Passes are repeated by nature. A few quick retries bridge a hiccup; more would only hide an outage.
_ATTEMPTS = 3
_FIRST_PAUSE_S = 0.3
# A governor may run for months, and the person's files change meanwhile: credentials are read again.
_CREDENTIALS_S = 900.0


class Api:
    """Google's APIs for whoever this computer's credentials are. Asks nobody until it is used. Thread-safe.

    Every call raises the errors of `ProviderError`, and UserError where something has to be installed first. What may
    be repeated without harm (anything but a POST) is repeated a few times where nobody answers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Any = None
        self._credentials: Any = None
        self._project: str | None = None
        self._read_s = 0.0

    # ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, path: str, params: Mapping[str, Any] | None = None, *, service: Service = "compute") -> Any:
        """The answer to a GET. `path` begins with a slash, as in `/compute/v1/projects/P`."""
        return self.send("GET", path, params=params, service=service)

    def pages(
        self, path: str, params: Mapping[str, Any] | None = None, *, service: Service = "compute"
    ) -> Iterator[Any]:
        """Every page of a list."""
        asked = dict(params or {})
        while True:
            page = self.get(path, asked, service=service)
            yield page
            if not page.get("nextPageToken"):
                return
            asked["pageToken"] = page["nextPageToken"]

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        service: Service = "compute",
        what: str = "",
        polls: bool = False,
    ) -> Any:
        """One request, and its answer. `what` begins the message of whatever goes wrong. `polls`: it answers late."""
        import httpx

        url = f"{origin(service)}{path}"
        timeout = httpx.Timeout(_READ_S if not polls else _POLL_S, connect=_CONNECT_S)
        attempts = 1 if method == "POST" else _ATTEMPTS
        pause_s = _FIRST_PAUSE_S
        while True:
            attempts -= 1
            try:
                return self._once(method, url, body, params, what or path, timeout)
            except Transient:
                # A status of the server's own trouble, or no answer.
                if attempts <= 0:
                    raise
            time.sleep(pause_s)
            pause_s *= 2

    def _once(self, method: str, url: str, body: Any, params: Mapping[str, Any] | None, what: str, timeout: Any) -> Any:
        import httpx

        headers = self._headers()
        try:
            answer = self._http().request(method, url, json=body, params=params, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            host = urlsplit(url).netloc
            raise Transient(f"{what}: {host} does not answer: {first_line(error) or type(error).__name__}") from error
        try:
            told = answer.json() if answer.content else {}
        except ValueError:
            told = {}
        if answer.is_success:
            return told
        if answer.status_code == 401:
            with self._lock:
                self._credentials = None
        raise refused(what, answer.status_code, told)

    # ── Who asks ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def default_project(self) -> str | None:
        """The project of the person's own settings."""
        named = os.environ.get("GOOGLE_CLOUD_PROJECT") or os.environ.get("CLOUDSDK_CORE_PROJECT")
        if named:
            return named
        self._ready()
        return self._project

    def identity(self) -> str:
        """Who the credentials are, as far as they tell."""
        found = self._ready()
        for name in ("service_account_email", "signer_email", "account"):
            value = getattr(found, name, None)
            if value and value != "default":
                return str(value)
        return type(found).__module__.rpartition(".")[2]

    def prepare(self) -> None:
        """Find credentials, and open what requests go through: all that stands before the first one."""
        self._ready()
        self._http()

    def _headers(self) -> dict[str, str]:
        credentials = self._ready()
        headers: dict[str, str] = {}
        from google.auth.exceptions import GoogleAuthError

        try:
            with self._lock:
                # Refreshes where the token has ended, or soon will.
                credentials.before_request(_Transport(self._http()), "GET", "", headers)
        except GoogleAuthError as error:
            raise Transient(
                f"Google's credentials cannot be used: {first_line(error)}; `gcloud auth application-default login`"
            ) from error
        return headers

    def _ready(self) -> Any:
        with self._lock:
            if self._credentials is None or time.monotonic() - self._read_s > _CREDENTIALS_S:
                self._credentials, self._project = _find_credentials()
                self._read_s = time.monotonic()
            return self._credentials

    def _http(self) -> Any:
        if self._client is None:
            import httpx

            self._client = httpx.Client(follow_redirects=False, headers={"User-Agent": "stoker"})
        return self._client


class _Transport:
    """What google-auth asks for tokens with."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> Any:
        import httpx
        from google.auth.exceptions import TransportError

        try:
            answer = self._client.request(method, url, content=body, headers=headers, timeout=timeout or _READ_S)
        except httpx.HTTPError as error:
            raise TransportError(error) from error
        return _Answer(answer)


class _Answer:
    """An answer as google-auth reads it."""

    def __init__(self, answer: Any) -> None:
        self.status: int = answer.status_code
        self.headers: Mapping[str, str] = answer.headers
        self.data: bytes = answer.content


def check_installed() -> None:
    """Raises UserError where what the provider needs is not installed."""
    missing = [name for name in ("httpx", "google.auth") if not _is_there(name)]
    if missing:
        raise UserError(f"resources.provider: gce needs {' and '.join(missing)}; pip install 'stoker[gcp]'")


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _find_credentials() -> tuple[Any, str | None]:
    check_installed()
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

    try:
        found, project = google.auth.default(scopes=_SCOPES)
    except DefaultCredentialsError as error:
        told = "`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
        raise Transient(f"no Google credentials here; {told}") from error
    except (GoogleAuthError, OSError, ValueError) as error:
        raise AuthDenied(f"Google's settings cannot be used: {first_line(error)}") from error
    return found, project


def origin(service: Service) -> str:
    """Where a service is, without the part of its path that every request names itself."""
    moved = os.environ.get(f"{_OVERRIDE}{service.upper()}")
    if moved:
        parts = urlsplit(moved)
        return f"{parts.scheme}://{parts.netloc}"
    return f"https://{service}.googleapis.com"


__all__ = ["Api", "ProviderError", "Service", "check_installed", "origin"]
