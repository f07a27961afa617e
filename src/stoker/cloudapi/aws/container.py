"""The credentials of a container's role, for containers without machine metadata: on SageMaker and ECS.

https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stoker.cloudapi.aws.imds import Imds, ImdsAnswer, ImdsError
from stoker.cloudapi.aws.sigv4 import Credentials
from stoker.cloudapi.http_exchange import exchange
from stoker.model import codec
from stoker.model.errors import CodecError

RELATIVE = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"
FULL = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
_TOKEN, _TOKEN_FILE = "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
_HOST = "http://169.254.170.2"
_TIMEOUT_S = 5.0


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
        url = f"{_HOST}{relative}" if relative else self._environ.get(FULL, "")
        try:
            answer = exchange("GET", url, self._headers(), timeout_s=_TIMEOUT_S)
        except OSError as error:
            raise ImdsError(f"the container's credentials are not available: {error}") from None
        if answer.status != 200:
            raise ImdsError(f"the container's credentials are refused: {answer.status}")
        try:
            tree = codec.parse(answer.data)
            return Credentials(tree["AccessKeyId"], tree["SecretAccessKey"], tree.get("Token"))
        except (CodecError, KeyError, TypeError) as error:
            raise ImdsError(f"the container's credentials cannot be read: {error!r}") from None

    def _headers(self) -> dict[str, str]:
        file = self._environ.get(_TOKEN_FILE)
        token = Path(file).read_text().strip() if file else self._environ.get(_TOKEN)
        return {"Authorization": token} if token else {}
