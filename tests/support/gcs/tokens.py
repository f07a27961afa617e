"""Who may ask: bearer tokens, and tokens that a service account signs for itself."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

EMAIL = "stoker@stoker-test.iam.gserviceaccount.com"
PROJECT = "stoker-test"
LIFETIME_S = 3600
_SCOPES = frozenset(
    f"https://www.googleapis.com/auth/{name}"
    for name in ("cloud-platform", "devstorage.read_write", "devstorage.full_control")
)
# PKCS #1 v1.5: what stands before a SHA-256 in a signature.
_SHA256 = bytes.fromhex("3031300d060960864801650304020105000420")
_SKEW_S = 60.0


@dataclass(frozen=True)
class Account:
    """A service account: its public key, and what its key file says."""

    modulus: int
    exponent: int
    key_file: dict[str, str]


def make_account() -> Account:
    """A new key each time: one that is written down somewhere is found by whoever looks for leaked keys."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    numbers = key.public_key().public_numbers()
    said = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": uuid.uuid4().hex,
        "private_key": pem,
        "client_email": EMAIL,
        "client_id": "100000000000000000000",
    }
    return Account(numbers.n, numbers.e, said)


class Tokens:
    """Which tokens are good. Threads may share it."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def allow(self, token: str, lifetime_s: float = LIFETIME_S) -> None:
        with self._lock:
            self._until[token] = time.monotonic() + lifetime_s

    def revoke(self, token: str) -> None:
        with self._lock:
            self._until.pop(token, None)

    def good(self, token: str) -> bool:
        with self._lock:
            if self._until.get(token, 0.0) > time.monotonic():
                return True
        said = self._signed(token)
        if said is None or said.get("iss") != EMAIL or said.get("sub") != EMAIL:
            return False
        return bool(_SCOPES & set(str(said.get("scope", "")).split()))

    def grant(self, assertion: str) -> str | None:
        """A token for what the service account signed, as Google's token endpoint gives them."""
        said = self._signed(assertion)
        if said is None or said.get("iss") != EMAIL:
            return None
        token = f"ya29.{uuid.uuid4().hex}"
        self.allow(token)
        return token

    def _signed(self, token: str) -> dict[str, Any] | None:
        """What a JSON Web Token says, where our account signed it and it is its time."""
        try:
            message, _, signature = token.rpartition(".")
            header, claims = (json.loads(_decoded(part)) for part in message.split("."))
            number = int.from_bytes(_decoded(signature), "big")
        except ValueError:
            return None
        if header.get("alg") != "RS256" or header.get("kid") != self._account.key_file["private_key_id"]:
            return None
        size = (self._account.modulus.bit_length() + 7) // 8
        found = pow(number, self._account.exponent, self._account.modulus).to_bytes(size, "big")
        tail = _SHA256 + hashlib.sha256(message.encode()).digest()
        wanted = b"\x00\x01" + b"\xff" * (size - len(tail) - 3) + b"\x00" + tail
        if not hmac.compare_digest(found, wanted):
            return None
        now = time.time()
        in_time = claims.get("iat", 0) <= now + _SKEW_S and now < claims.get("exp", 0) <= now + LIFETIME_S + _SKEW_S
        return dict(claims) if in_time else None


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
