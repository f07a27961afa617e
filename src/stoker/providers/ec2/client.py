"""boto3 clients: made when first used, one for each service and region."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from stoker.model.errors import AuthDenied, NotInstalled, UserError

# The command that installs boto3.
INSTALL = "pip install 'stoker[aws]'"
# EC2 answers in well under a second; a request that hangs is better repeated by the next pass than waited for.
_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 30
# A governor repeats its passes anyway. A few quick retries bridge a short failure; more would only hide an outage.
_ATTEMPTS = 3
# A governor may run for months while the user's files change: credentials are read again after this long.
_SESSION_S = 900.0


def installed() -> bool:
    """Return True if boto3 is installed."""
    return importlib.util.find_spec("boto3") is not None


def environment_region() -> str | None:
    """The region of the variables that every SDK reads. AWS's files are not read, for offline use."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


class Clients:
    """boto3's clients for one account. Sends no request until a client is used."""

    def __init__(self) -> None:
        self._session: Any = None
        self._clients: dict[tuple[str, str, int, float], Any] = {}
        self._lock = threading.Lock()
        self._session_made_s = 0.0

    def get(
        self, service: str, region: str | None, *, attempts: int = _ATTEMPTS, read_timeout_s: float = _READ_TIMEOUT_S
    ) -> Any:
        """Return a client. Raises UserError without boto3 or a region, AuthDenied for a profile that does not exist."""
        with self._lock:
            if time.monotonic() - self._session_made_s > _SESSION_S:
                self._session, self._clients = None, {}
            # First, because it reports in one line that boto3 is missing.
            session = self.session()
            where = region or session.region_name
            if where is None:
                raise UserError("resources.region: name a region, such as us-east-1, or set AWS_REGION")
            key = (service, where, attempts, read_timeout_s)
            if key not in self._clients:
                from botocore.config import Config

                settings = Config(
                    connect_timeout=_CONNECT_TIMEOUT_S,
                    read_timeout=read_timeout_s,
                    # A router on the way to AWS may drop a connection that is silent for minutes.
                    tcp_keepalive=True,
                    retries={"mode": "standard", "total_max_attempts": attempts},
                    user_agent_extra="stoker",
                )
                self._clients[key] = session.client(service, region_name=where, config=settings)
            return self._clients[key]

    def default_region(self) -> str | None:
        """The region of the user's own AWS settings."""
        region: str | None = self.session().region_name
        return region

    def session(self) -> Any:
        if self._session is None:
            if not installed():
                raise NotInstalled(f"resources.provider: ec2 needs boto3; {INSTALL}")
            import boto3
            from botocore.exceptions import BotoCoreError

            self._session_made_s = time.monotonic()
            try:
                # boto3 itself reads only AWS_DEFAULT_REGION; every other SDK, and Stoker's advice, uses AWS_REGION.
                self._session = boto3.session.Session(region_name=os.environ.get("AWS_REGION") or None)
            except BotoCoreError as error:
                raise AuthDenied(f"AWS's settings cannot be used: {error}") from error
        return self._session


def pages(call: Callable[..., Any], part: str, **asked: Any) -> Iterator[Any]:
    """Yield the members of `part` from all pages of a call's answer."""
    token = ""
    while True:
        answer = call(**asked, **({"NextToken": token} if token else {}))
        yield from answer.get(part, ())
        # The last page has an empty token in some calls, and none in others.
        token = answer.get("NextToken") or ""
        if not token:
            return
