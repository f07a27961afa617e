"""Ask Compute Engine's metadata server about the machine this runs on.

GCE_METADATA_HOST says where it is, else GCE_METADATA_IP, else it is where it always is. What answers without Google's
header is not it. Runs on Python 3.6 or newer: see the package.
"""

import http.client
import json
import os
import threading
import time
from urllib.parse import quote

LINK_LOCAL = "169.254.169.254"
# The server shows a new token five minutes before the old one ends, and the same one until then.
_TOKEN_SPARE_S = 225.0
# What a long poll may take longer than it was asked to.
_SLACK_S = 5.0
_MOST_BYTES = 1 << 20
# The etag that nothing ever has: the answer comes at once.
_NO_ETAG = "NONE"

_ACCOUNT = "instance/service-accounts/default/"
SCOPES = _ACCOUNT + "scopes"
EMAIL = _ACCOUNT + "email"


class MetadataError(OSError):
    """It did not answer, or not with sense. Says nothing about what was asked."""


class NoServiceAccount(MetadataError):
    """It answered: the machine has no service account."""


class Metadata:
    """One machine's metadata. Safe to use from several threads. Tries everything once: patience is the caller's."""

    def __init__(self, host: "str | None" = None, timeout_s: float = 2.0) -> None:
        self._host = host or os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP") or LINK_LOCAL
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._token = ""
        self._token_ends_s = 0.0

    def get(self, path: str) -> "str | None":
        """What stands at `computeMetadata/v1/<path>`, or None where nothing does. Raises MetadataError."""
        return self._call(path, self._timeout_s)[0]

    def wait(self, path: str, etag: str, timeout_s: float) -> "tuple[str | None, str]":
        """The value and its etag, once it is another than `etag` says, or when the time is over.

        With an empty `etag` the answer comes at once. Raises MetadataError.
        """
        last = quote(etag or _NO_ETAG, safe="")
        query = f"?wait_for_change=true&timeout_sec={max(1, int(timeout_s)):d}&last_etag={last}"
        return self._call(path + query, timeout_s + _SLACK_S)

    def token(self, fresh: bool = False) -> "tuple[str, float]":
        """An access token of the machine's service account, and for how many seconds it is good.

        Kept until shortly before its end; `fresh` asks for another one all the same. Raises MetadataError, and of these
        NoServiceAccount where there is none.
        """
        with self._lock:
            if fresh or time.monotonic() >= self._token_ends_s - _TOKEN_SPARE_S:
                try:
                    self._renew()
                except MetadataError:
                    # The old one is good for a while yet.
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
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataError(f"the service account's token cannot be read: {error!r}") from None

    def _call(self, path: str, timeout_s: float) -> "tuple[str | None, str]":
        # Past any proxy: this address means this machine.
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
            raise MetadataError(f"{self._host} answers, but is no metadata server of Google's")
        if answer.status == 404:
            return None, etag
        if answer.status != 200:
            raise MetadataError(f"the metadata server answered {answer.status} for {path.partition('?')[0]}")
        return text, etag
