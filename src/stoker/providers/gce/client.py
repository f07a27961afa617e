"""Google's APIs over HTTP: httpx for requests, google-auth for credentials. Both are imported when first used."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from stoker.model import codec
from stoker.model.errors import AuthDenied, CodecError, NotInstalled, ProviderError, Transient
from stoker.providers.cloud_errors import first_line
from stoker.providers.gce import settings
from stoker.providers.gce.errors import response_error
from stoker.store.base import GOOGLE_LOGIN

Service = Literal[
    "compute",
    "cloudbilling",
    "cloudfunctions",
    "cloudresourcemanager",
    "cloudscheduler",
    "iam",
    "logging",
    "monitoring",
    "pubsub",
    "run",
    "secretmanager",
    "serviceusage",
    "storage",
]

# The variables of gcloud, so that one setting redirects both.
_OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
_CONNECT_S = 5.0
_READ_S = 30.0
# For lookups before a submission, which can be skipped: behind a closed firewall no answer ever comes.
_HURRIED_S = 5.0
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# The governor repeats its passes anyway. A few quick retries bridge a short failure; more would hide an outage.
_ATTEMPTS = 3
_FIRST_PAUSE_S = 0.3
# A governor may run for months while the credential files change, so that credentials are read again.
_CREDENTIALS_S = 900.0


class _Unauthenticated(Transient):
    """The credentials were not accepted."""


@dataclass(frozen=True)
class AggregatedList:
    """An aggregated list: each item with its zone or region, and the zones and regions that gave no answer."""

    items: tuple[tuple[str, Mapping[str, Any]], ...]
    silent: frozenset[str]

    def answered(self, *places: str) -> AggregatedList:
        """Return this list. Raises Transient where one of these zones gave no answer: absence would prove nothing."""
        missing = sorted(self.silent & set(places))
        if missing:
            raise Transient(f"{', '.join(missing)} cannot be reached now")
        return self

    def within(self, region: str) -> AggregatedList:
        """The part of one region. Raises Transient where the region, or one of its zones, gave no answer."""
        self.answered(*(name for name in self.silent if region in (name, name.rpartition("-")[0])))
        return replace(
            self, items=tuple(pair for pair in self.items if region in (pair[0], pair[0].rpartition("-")[0]))
        )


class Api:
    """Google's APIs with this computer's credentials. Makes no call until it is used. Thread-safe.

    Every call raises the errors of `ProviderError`, and UserError where a package is not installed. Requests that are
    safe to repeat (all but POST) are repeated a few times where no answer comes.
    """

    def __init__(self) -> None:
        self._hurried = threading.local()
        self._lock = threading.Lock()
        self._client: Any = None
        self._credentials: Any = None
        self._project: str | None = None
        self._read_s = 0.0

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Make this thread's requests once and with a short timeout: a person waits, and the answer is optional."""
        self._hurried.on = True
        try:
            yield
        finally:
            self._hurried.on = False

    # ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────────

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

    def scoped(self, path: str, kind: str, params: Mapping[str, Any] | None = None) -> AggregatedList:
        """Every item of an aggregated list, and the zones and regions that gave no answer, whose items are unknown."""
        items: list[tuple[str, Mapping[str, Any]]] = []
        silent: set[str] = set()
        for page in self.pages(path, {**(params or {}), "returnPartialSuccess": "true"}):
            silent |= {_last(name) for name in page.get("unreachables") or ()}
            for scope, part in (page.get("items") or {}).items():
                code = (part.get("warning") or {}).get("code")
                if code not in (None, "NO_RESULTS_ON_PAGE"):
                    silent.add(_last(scope))
                items += [(_last(scope), each) for each in part.get(kind) or ()]
        return AggregatedList(tuple(items), frozenset(silent))

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        service: Service = "compute",
        what: str = "",
        read_s: float = _READ_S,
    ) -> Any:
        """Send one request and return its answer, within `read_s`. `what` begins the message of an error."""
        import httpx

        url = f"{origin(service)}{path}"
        hurried = getattr(self._hurried, "on", False)
        timeout = httpx.Timeout(_HURRIED_S if hurried else read_s, connect=_HURRIED_S if hurried else _CONNECT_S)
        attempts = 1 if hurried or method == "POST" else _ATTEMPTS
        pause_s = _FIRST_PAUSE_S
        while True:
            attempts -= 1
            try:
                return self._renewing(method, url, body, params, what or path, timeout)
            except Transient:
                # A server error, or no answer.
                if attempts <= 0:
                    raise
            time.sleep(pause_s)
            pause_s *= 2

    def _renewing(
        self, method: str, url: str, body: Any, params: Mapping[str, Any] | None, what: str, timeout: Any
    ) -> Any:
        """Send one request; where the credentials are not accepted any more, read them again and repeat it once."""
        try:
            return self._once(method, url, body, params, what, timeout)
        except _Unauthenticated:
            with self._lock:
                self._credentials = None
        return self._once(method, url, body, params, what, timeout)

    def _once(self, method: str, url: str, body: Any, params: Mapping[str, Any] | None, what: str, timeout: Any) -> Any:
        import httpx

        headers = self._headers()
        try:
            answer = self._http().request(method, url, json=body, params=params, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            host = urlsplit(url).netloc
            raise Transient(f"{what}: {host} does not answer: {first_line(error) or type(error).__name__}") from error
        try:
            content = codec.parse(answer.content) if answer.content else {}
        except CodecError:
            content = {}
        if answer.is_success:
            return content
        failure = response_error(what, answer.status_code, content)
        # 401: nothing was done. The same request succeeds once a person renews the login or the key.
        raise _Unauthenticated(str(failure)) if answer.status_code == 401 else failure

    # ── Credentials ───────────────────────────────────────────────────────────────────────────────────────────────────

    def default_project(self) -> str | None:
        """The project of the person's own settings."""
        named = os.environ.get("GOOGLE_CLOUD_PROJECT") or os.environ.get("CLOUDSDK_CORE_PROJECT")
        if named:
            return named
        self._ready()
        return self._project

    def identity(self) -> str:
        """The account of the credentials; a description of their source where they do not name one."""
        found = self._ready()
        for name in ("service_account_email", "signer_email", "account"):
            value = getattr(found, name, None)
            if value and value != "default":
                return str(value)
        return settings.describe_credentials()

    def prepare(self) -> None:
        """Find credentials and create the HTTP client, so that the first request is as fast as the others."""
        self._ready()
        self._http()

    def _headers(self) -> dict[str, str]:
        credentials = self._ready()
        headers: dict[str, str] = {}
        from google.auth.exceptions import GoogleAuthError

        try:
            with self._lock:
                # Refreshes a token that has expired, or soon will.
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
    """The transport through which google-auth fetches tokens."""

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
    """An HTTP response in the form that google-auth expects."""

    def __init__(self, answer: Any) -> None:
        self.status: int = answer.status_code
        self.headers: Mapping[str, str] = answer.headers
        self.data: bytes = answer.content


def check_installed() -> None:
    """Raise NotInstalled, a UserError, where a package that the provider needs is missing."""
    missing = [name for name in ("httpx", "google.auth") if not _is_there(name)]
    if missing:
        raise NotInstalled(f"resources.provider: gce needs {' and '.join(missing)}; pip install 'stoker[gcp]'")


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
        raise Transient(f"no Google credentials here; {GOOGLE_LOGIN}") from error
    except (GoogleAuthError, OSError, ValueError) as error:
        raise AuthDenied(f"Google's settings cannot be used: {first_line(error)}") from error
    return found, project


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def origin(service: Service) -> str:
    """The scheme and host of a service. Requests name the whole path themselves."""
    moved = os.environ.get(f"{_OVERRIDE}{service.upper()}")
    if moved:
        parts = urlsplit(moved)
        return f"{parts.scheme}://{parts.netloc}"
    return f"https://{service}.googleapis.com"


__all__ = ["Api", "ProviderError", "Service", "check_installed", "origin"]
