"""Query the instance metadata service (IMDSv2) of this machine.

AWS_EC2_METADATA_SERVICE_ENDPOINT overrides its address. There is no fallback to version 1. Runs on Python 3.6 or newer:
see the package.
"""

import http.client
import json
import os
import threading
import time
from typing import NamedTuple
from urllib.parse import urlsplit

from stoker.cloudapi.aws.sigv4 import Credentials

LINK_LOCAL = "http://169.254.169.254"
# A session lasts at most six hours; it is renewed long before.
_TOKEN_TTL_S = 21600
_TOKEN_USE_S = 10800.0


class ImdsError(OSError):
    """The service did not answer, or its answer is malformed. This says nothing about the requested value."""


class ImdsAnswer(NamedTuple):
    """One answer.

    `text` is None if the value does not exist. `date` is the service's own clock as in HTTP, or empty.
    """

    text: "str | None"
    date: str


class Imds:
    """One machine's metadata. Thread-safe."""

    def __init__(self, endpoint: "str | None" = None, timeout_s: float = 2.0) -> None:
        where = endpoint or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or LINK_LOCAL
        parts = urlsplit(where)
        self._host = parts.netloc
        self._base = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._token = ""
        self._token_until_s = 0.0

    def get(self, path: str) -> "str | None":
        """Return the value at `latest/<path>`, or None if there is none. Raises ImdsError."""
        return self.ask(path).text

    def ask(self, path: str) -> ImdsAnswer:
        """Return the same with the date of the answer. Raises ImdsError."""
        for fresh in (False, True):
            status, text, date = self._call("GET", path, {"X-aws-ec2-metadata-token": self._session(fresh)})
            if status == 200:
                return ImdsAnswer(text, date)
            if status == 404:
                return ImdsAnswer(None, date)
            # 401: the service does not know the session, for example after its restart.
            if status != 401:
                break
        raise ImdsError(f"the metadata service answered {status} for {path}")

    def credentials(self) -> "Credentials | None":
        """Return the credentials of the machine's role, or None if it has none (yet). Raises ImdsError."""
        place = "meta-data/iam/security-credentials/"
        role = self.get(place)
        if not role or not role.strip():
            return None
        text = self.get(place + role.split()[0])
        if text is None:
            return None
        try:
            tree = json.loads(text)
            if tree.get("Code", "Success") != "Success":
                problem = tree.get("Message", tree["Code"])
                raise ImdsError(f"the metadata service has no credentials: {problem}")
            return Credentials(tree["AccessKeyId"], tree["SecretAccessKey"], tree.get("Token"))
        except (ValueError, RecursionError, KeyError, AttributeError) as error:
            raise ImdsError(f"the role's credentials cannot be read: {error!r}") from None

    def _session(self, fresh: bool) -> str:
        with self._lock:
            if fresh or not self._token or time.monotonic() >= self._token_until_s:
                wanted = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
                status, text, _ = self._call("PUT", "api/token", wanted)
                if status != 200:
                    raise ImdsError(f"the metadata service answered {status} when asked for a session")
                self._token, self._token_until_s = text, time.monotonic() + _TOKEN_USE_S
            return self._token

    def _call(self, method: str, path: str, headers: "dict[str, str]") -> "tuple[int, str, str]":
        # Without a proxy: the address is local to this machine.
        connection = http.client.HTTPConnection(self._host, timeout=self._timeout_s)
        try:
            connection.request(method, f"{self._base}/latest/{path}", headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace"), answer.getheader("Date") or ""
        except (OSError, http.client.HTTPException) as error:
            raise ImdsError(f"the metadata service does not answer: {error or type(error).__name__}") from None
        finally:
            connection.close()
