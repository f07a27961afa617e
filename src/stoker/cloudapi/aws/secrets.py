"""Read secrets and create temporary tokens, with signed requests. Standard library alone.

https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_GetSecretValue.html
https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_GetParameter.html
https://docs.aws.amazon.com/codeartifact/latest/APIReference/API_GetAuthorizationToken.html
https://docs.aws.amazon.com/AmazonECR/latest/APIReference/API_GetAuthorizationToken.html
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from stoker.cloudapi.aws.identity import AwsIdentity, domain_of
from stoker.cloudapi.aws.signed_calls import SignedCalls, rpc_headers
from stoker.cloudapi.http_exchange import NoAnswer

_ABSENT = ("ResourceNotFoundException", "ParameterNotFound", "ParameterVersionNotFound")
_DENIED = ("AccessDeniedException", "AccessDenied", "KMSAccessDeniedException")
# Rejected credentials: those of a machine may be expired, or not known everywhere yet.
_STALE = (
    "ExpiredTokenException",
    "ExpiredToken",
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "IncompleteSignature",
)
_LATER = ("ThrottlingException", "TooManyRequestsException", "LimitExceededException", "InternalServiceError")


class AwsError(OSError):
    """AWS refused (`code` is its error code), or did not answer (`code` is empty)."""

    def __init__(self, code: str, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.absent = code in _ABSENT
        self.denied = code in _DENIED
        self.stale = code in _STALE
        self.later = not code or status >= 500 or status == 429 or code.startswith(_LATER)


@dataclass(frozen=True)
class _Service:
    """An AWS service: `name` in signatures, `host` in addresses, `variable` as the suffix of the override variable."""

    name: str
    host: str
    variable: str


_SECRETS = _Service("secretsmanager", "secretsmanager", "SECRETSMANAGER")
_PARAMETERS = _Service("ssm", "ssm", "SSM")
_ARTIFACTS = _Service("codeartifact", "codeartifact", "CODEARTIFACT")
_REGISTRY = _Service("ecr", "api.ecr", "ECR")


class Aws:
    """AWS with one identity. Every method raises AwsError."""

    def __init__(self, identity: AwsIdentity, environ: Mapping[str, str]) -> None:
        self._identity = identity
        self._environ = environ
        self._calls = SignedCalls()

    def region_of(self, name: str) -> str:
        """Return the region in an ARN, else the default."""
        parts = name.split(":")
        return parts[3] if len(parts) > 5 and parts[0] == "arn" and parts[3] else self._identity.region

    def secret(self, name: str) -> bytes:
        """Return the current version of a secret, by name or ARN."""
        tree = self._rpc(_SECRETS, self.region_of(name), "secretsmanager.GetSecretValue", {"SecretId": name})
        text, binary = tree.get("SecretString"), tree.get("SecretBinary")
        if isinstance(text, str):
            return text.encode("utf-8", "surrogateescape")
        return _decoded(binary, "GetSecretValue")

    def parameter(self, name: str) -> bytes:
        """Return a parameter, decrypted, by name or ARN."""
        params = {"Name": name, "WithDecryption": True}
        tree = self._rpc(_PARAMETERS, self.region_of(name), "AmazonSSM.GetParameter", params)
        return _text(tree.get("Parameter"), "Value", "GetParameter").encode()

    def artifact_token(self, domain: str, owner: str) -> str:
        """Return a token for a CodeArtifact domain. It is valid as long as the credentials are, up to 12 hours."""
        query = f"domain={quote(domain, safe='')}" + (f"&domain-owner={owner}" if owner else "")
        url = f"{self._endpoint(_ARTIFACTS, self._identity.region)}/v1/authorization-token?{query}"
        tree = self._post(_ARTIFACTS, self._identity.region, url, {}, b"", "GetAuthorizationToken")
        return _text(tree, "authorizationToken", "GetAuthorizationToken")

    def registry_password(self, region: str) -> str:
        """Return the password of the user `AWS` for a region's registries that these credentials may use. 12 hours."""
        target = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
        tree = self._rpc(_REGISTRY, region or self._identity.region, target, {})
        data = tree.get("authorizationData")
        first = data[0] if isinstance(data, list) and data else None
        token = _text(first, "authorizationToken", "GetAuthorizationToken")
        return _decoded(token, "GetAuthorizationToken").decode().partition(":")[2]

    def _endpoint(self, service: _Service, region: str) -> str:
        named = self._environ.get(f"AWS_ENDPOINT_URL_{service.variable}") or self._environ.get("AWS_ENDPOINT_URL")
        if not region:
            raise AwsError("NoRegion", "no region is set; set AWS_REGION, or give the ARN")
        domain = self._identity.domain if region == self._identity.region else domain_of(region)
        return (named or f"https://{service.host}.{region}.{domain}").rstrip("/")

    def _rpc(self, service: _Service, region: str, target: str, params: Mapping[str, Any]) -> dict[str, Any]:
        url, body = self._endpoint(service, region) + "/", json.dumps(params).encode()
        return self._post(service, region, url, rpc_headers(target), body, target.rpartition(".")[2])

    def _post(
        self, service: _Service, region: str, url: str, headers: Mapping[str, str], body: bytes, operation: str
    ) -> dict[str, Any]:
        """Send one request; repeat it at once if only the clock was wrong."""
        for _ in range(2):
            try:
                reply = self._calls.post(url, service.name, region, self._identity.credentials, headers, body)
            except NoAnswer as error:
                raise AwsError("", str(error)) from None
            if not reply.code:
                return reply.tree
            if reply.code != "InvalidSignatureException" or not reply.clock_was_wrong:
                break
        raise AwsError(reply.code, reply.refusal(operation), reply.status)


def _text(tree: object, name: str, operation: str) -> str:
    value = tree.get(name) if isinstance(tree, dict) else None
    if not isinstance(value, str):
        # The answer itself is not shown: it may contain a secret.
        raise AwsError("", f"{operation} was answered without {name}")
    return value


def _decoded(value: object, operation: str) -> bytes:
    try:
        return base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError):
        raise AwsError("", f"{operation} was answered with something that cannot be read") from None
