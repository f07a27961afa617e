"""The credentials of a container's role, for containers without machine metadata: on SageMaker and ECS.

https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from stoker.cloudapi.aws.imds import Imds, ImdsAnswer, ImdsError
from stoker.cloudapi.aws.sigv4 import Credentials

RELATIVE = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
FULL = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
_TOKEN, _TOKEN_FILE = "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
_HOST = "http://169.254.170.2"
_TIMEOUT_S = 5.0
_ANSWER_BYTES = 1 << 16


def metadata(environ: Mapping[str, str]) -> Imds:
    """Return the source of credentials: the container's own role if it has one, else the machine's."""
    if environ.get(RELATIVE) or environ.get(FULL):
        return ContainerRole(environ)
    return Imds(environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"))


class ContainerRole(Imds):
    """The part of a machine's metadata service that a container has: its credentials and its region."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(_HOST, _TIMEOUT_S)
        self._environ = environ

    def ask(self, path: str) -> ImdsAnswer:
        """Answer without a request: the region is in the environment, and nothing else is known."""
        region = self._environ.get("AWS_REGION") or self._environ.get("AWS_DEFAULT_REGION")
        return ImdsAnswer(region if path == "meta-data/placement/region" else None, "")

    def credentials(self) -> Credentials | None:
        """Return the credentials of the container's role. Raises ImdsError."""
        relative = self._environ.get(RELATIVE)
        parts = urlsplit(f"{_HOST}{relative}" if relative else self._environ.get(FULL, ""))
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        # Without a proxy: the address is local to this container.
        connection = kind(parts.netloc, timeout=_TIMEOUT_S)
        try:
            where = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request("GET", where, headers=self._headers())
            answer = connection.getresponse()
            text = answer.read(_ANSWER_BYTES).decode(errors="replace")
            if answer.status != 200:
                raise ImdsError(f"the container's credentials are refused: {answer.status}")
            tree = json.loads(text)
            return Credentials(tree["AccessKeyId"], tree["SecretAccessKey"], tree.get("Token"))
        except (ValueError, KeyError, TypeError) as error:
            raise ImdsError(f"the container's credentials cannot be read: {error!r}") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, ImdsError):
                raise
            raise ImdsError(f"the container's credentials are not available: {error or type(error).__name__}") from None
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        file = self._environ.get(_TOKEN_FILE)
        token = Path(file).read_text().strip() if file else self._environ.get(_TOKEN)
        return {"Authorization": token} if token else {}
