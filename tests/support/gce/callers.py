"""Who asks: the test with its service account, or a machine with the token that its metadata server gave it."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.gce.errors import Failure
from tests.support.gce.instances import Instance
from tests.support.gcs import tokens as gcs_tokens
from tests.support.gcs.tokens import Account, Tokens

ALL_SCOPES = "https://www.googleapis.com/auth/cloud-platform"
_LIFE_S = 3599
_DAY_S = 86_400.0
_STORAGE_SCOPES = frozenset(
    f"https://www.googleapis.com/auth/{name}"
    for name in ("cloud-platform", "devstorage.read_only", "devstorage.read_write", "devstorage.full_control")
)


@dataclass(frozen=True)
class Caller:
    """Who asks. `instance` is the machine whose token it is, None for the test."""

    email: str
    scopes: frozenset[str]
    instance: Instance | None = None


class Callers:
    """Knows every token. `allow` lets one into the store too."""

    def __init__(self, key_file: Path, allow: Callable[[str, float], None]) -> None:
        self._tokens = Tokens(_account(json.loads(key_file.read_text())))
        self._allow = allow
        self._lock = threading.Lock()
        self._by_token: dict[str, Instance] = {}
        self._by_number: dict[str, str] = {}

    def token_for_test(self) -> str:
        """A token of the test's own, for whoever signs nothing."""
        token = f"ya29.test-{secrets.token_hex(16)}"
        self._tokens.allow(token, _DAY_S)
        self._allow(token, _DAY_S)
        return token

    def grant(self, assertion: str) -> dict[str, Any]:
        """A token for what the service account signed. Raises Failure (400)."""
        token = self._tokens.grant(assertion)
        if token is None:
            raise Failure(400, "invalid_grant", "Invalid JWT Signature.")
        self._allow(token, float(_LIFE_S))
        return {"access_token": token, "expires_in": _LIFE_S, "token_type": "Bearer"}

    def token_for(self, instance: Instance) -> dict[str, object]:
        """The token that a machine's metadata server gives it: the same each time, as Google's does for a while."""
        with self._lock:
            known = self._by_number.get(instance.number)
            token = known or f"ya29.machine-{secrets.token_hex(16)}"
            self._by_number[instance.number] = token
            self._by_token[token] = instance
        if known is None and _STORAGE_SCOPES & _scopes(instance):
            self._allow(token, _DAY_S)
        return {"access_token": token, "expires_in": _LIFE_S, "token_type": "Bearer"}

    def of(self, authorization: str) -> Caller:
        """Who has this token. Raises Failure (401)."""
        kind, _, token = authorization.partition(" ")
        if kind.lower() == "bearer" and token:
            with self._lock:
                instance = self._by_token.get(token)
            if instance is not None:
                email = instance.draft.body["serviceAccounts"][0]["email"]
                return Caller(email, _scopes(instance), instance)
            if self._tokens.good(token):
                return Caller(gcs_tokens.EMAIL, frozenset({ALL_SCOPES}))
        told = (
            "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid"
            " authentication credential."
        )
        raise Failure(401, "authError", told)


def _scopes(instance: Instance) -> frozenset[str]:
    accounts = instance.draft.body.get("serviceAccounts") or [{}]
    return frozenset(accounts[0].get("scopes", ()))


def _account(key_file: dict[str, str]) -> Account:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(key_file["private_key"].encode(), None)
    assert isinstance(key, RSAPrivateKey)
    numbers = key.public_key().public_numbers()
    return Account(numbers.n, numbers.e, key_file)
