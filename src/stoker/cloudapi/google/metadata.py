"""Query Compute Engine's metadata server about this machine.

GCE_METADATA_HOST, else GCE_METADATA_IP, overrides its address. An answer without Google's header is not from it. Runs
on Python 3.6 or newer: see the package.
"""

import http.client
import json
import os
import threading
import time
from urllib.parse import quote

LINK_LOCAL = "169.254.169.254"
# The server provides a new token five minutes before the old one expires, and the same one until then.
_TOKEN_SPARE_S = 225.0
# Extra time that a long poll may take.
_SLACK_S = 5.0
_MOST_BYTES = 1 << 20
# An etag that no value has: the answer comes at once.
_NO_ETAG = "NONE"

_ACCOUNT = "instance/service-accounts/default/"
SCOPES = _ACCOUNT + "scopes"
EMAIL = _ACCOUNT + "email"


class MetadataError(OSError):
    """The server did not answer, or its answer is malformed. This says nothing about the requested value."""


class NoServiceAccount(MetadataError):
    """The server answered that the machine has no service account."""


class Metadata:
    """One machine's metadata. Thread-safe. Each request is sent once: retries are the caller's task."""

    def __init__(self, host: "str | None" = None, timeout_s: float = 2.0) -> None:
        self._host = host or os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP") or LINK_LOCAL
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._token = ""
        self._token_ends_s = 0.0

    def get(self, path: str) -> "str | None":
        """Return the value at `computeMetadata/v1/<path>`, or None if there is none. Raises MetadataError."""
        return self._call(path, self._timeout_s)[0]

    def wait(self, path: str, etag: str, timeout_s: float) -> "tuple[str | None, str]":
        """Return the value and its etag once the etag differs from `etag`, or at the timeout.

        With an empty `etag` the answer comes at once. Raises MetadataError.
        """
        last = quote(etag or _NO_ETAG, safe="")
        query = f"?wait_for_change=true&timeout_sec={max(1, int(timeout_s)):d}&last_etag={last}"
        return self._call(path + query, timeout_s + _SLACK_S)

    def token(self, fresh: bool = False) -> "tuple[str, float]":
        """Return an access token of the machine's service account, and its remaining lifetime in seconds.

        It is cached until shortly before it expires; `fresh` requests a new one. Raises MetadataError, or its subclass
        NoServiceAccount if there is no account.
        """
        with self._lock:
            if fresh or time.monotonic() >= self._token_ends_s - _TOKEN_SPARE_S:
                try:
                    self._renew()
                except MetadataError:
                    # The old token is still valid for a while.
                    if fresh or time.monotonic() >= self._token_ends_s:
                        raise
            return self._token, self._token_ends_s - time.monotonic()

    def _renew(self) -> None:
        asked_s = time.monotonic()
        text = self.get(_ACCOUNT + "token")
        if text is None:
            raise NoServiceAccount("the machine has no service account")
        try:
            tree = json.loads(text)
            self._token, self._token_ends_s = str(tree["access_token"]), asked_s + float(tree["expires_in"])
        except (ValueError, RecursionError, OverflowError, KeyError, TypeError) as error:
            raise MetadataError(f"the service account's token cannot be read: {error!r}") from None

    def _call(self, path: str, timeout_s: float) -> "tuple[str | None, str]":
        # Without a proxy: the address is local to this machine.
        connection = http.client.HTTPConnection(self._host, timeout=timeout_s)
        try:
            connection.request("GET", "/computeMetadata/v1/" + path, headers={"Metadata-Flavor": "Google"})
            answer = connection.getresponse()
            text = answer.read(_MOST_BYTES).decode(errors="replace")
            flavor, etag = answer.getheader("Metadata-Flavor"), answer.getheader("ETag") or ""
        except (OSError, http.client.HTTPException) as error:
            raise MetadataError(f"the metadata server does not answer: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if flavor != "Google":
            raise MetadataError(f"{self._host} answers, but is not Google's metadata server")
        if answer.status == 404:
            return None, etag
        if answer.status != 200:
            raise MetadataError(f"the metadata server answered {answer.status} for {path.partition('?')[0]}")
        return text, etag
