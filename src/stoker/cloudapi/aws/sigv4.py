"""Sign a request with AWS Signature Version 4, in headers.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html

Runs on Python 3.6 or newer: see the package.
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"
# Characters that are never encoded in a signed request; in a path, slashes neither.
_UNRESERVED = "-_.~"


class Credentials(NamedTuple):
    """AWS credentials. Those of a role have a token, and expire."""

    key: str
    secret: str
    token: "str | None" = None


def sign(
    method: str,
    url: str,
    credentials: Credentials,
    region: str,
    at: datetime,
    headers: "Mapping[str, str] | None" = None,
    payload_digest: str = hashlib.sha256(b"").hexdigest(),
    service: str = "s3",
) -> "dict[str, str]":
    """Return the headers to send with this request, including `headers`. Pure.

    `url` is as it will be sent: its path is encoded once (see `encoded`), which is what S3 signs. `at` is UTC.
    `payload_digest` is the SHA-256 of the body, in hexadecimal.
    """
    stamp = at.strftime("%Y%m%dT%H%M%SZ")
    sent = dict(headers or {})
    sent["x-amz-date"] = stamp
    if service == "s3":
        sent["x-amz-content-sha256"] = payload_digest
    if credentials.token:
        sent["x-amz-security-token"] = credentials.token
    parts = urlsplit(url)
    signed = {name.lower(): " ".join(value.split()) for name, value in sent.items()}
    signed["host"] = parts.netloc
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        [
            method,
            parts.path or "/",
            _canonical_query(parts.query),
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            names,
            payload_digest,
        ]
    )
    scope = "/".join((stamp[:8], region, service, "aws4_request"))
    text = "\n".join((_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    signature = hmac.new(_key(credentials.secret, scope), text.encode(), hashlib.sha256).hexdigest()
    sent["Authorization"] = (
        f"{_ALGORITHM} Credential={credentials.key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return sent


def encoded(path: str) -> str:
    """Encode a path for a signed URL."""
    return quote(path, safe="/" + _UNRESERVED)


def _canonical_query(query: str) -> str:
    pairs: list[tuple[str, str]] = []
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        pairs.append((_normalised(name), _normalised(value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _normalised(text: str) -> str:
    """Normalise the encoding, whichever the URL was written with."""
    return quote(unquote(text), safe=_UNRESERVED)


def _key(secret: str, scope: str) -> bytes:
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
