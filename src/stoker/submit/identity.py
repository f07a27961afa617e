"""Find the submitter of a job: the identity that the bucket's cloud knows, else the user of this computer.

AWS is asked with the credentials that the bucket is written with (GetCallerIdentity). Google's accounts are named in
their credentials, or in the token that they are exchanged for. A folder knows no identities: there the submitter is the
operating system's user, marked `os:`. The client records the submitter itself, so the record is no proof: a person with
write access to the bucket can write it by other means.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import os
import pwd
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stoker.cloudapi.aws import identity as aws
from stoker.cloudapi.aws import sigv4
from stoker.cloudapi.aws.imds import ImdsError
from stoker.cloudapi.google.metadata import EMAIL, Metadata, MetadataError
from stoker.model import codec
from stoker.model.errors import CodecError, UserError
from stoker.model.spec import LOCAL_SUBMITTER, SUBMITTER_TAG, Spec
from stoker.store.base import Store
from stoker.store.gcs import emulator_address
from stoker.store.google_accounts import credentials_file
from stoker.store.s3 import endpoint_address

_ASK_S = 5.0
_MOST_BYTES = 1 << 20
_ARN = re.compile(r"arn:[^:\s]+:(?:iam|sts)::[^:\s]*:\S+")
_FROM_STS = re.compile(r"<Arn>([^<]+)</Arn>")
_ASSUMED = re.compile(r"arn:(?P<partition>[^:]+):sts::(?P<account>[0-9]+):assumed-role/(?P<role>[^/]+)/.+")
_IMPERSONATED = re.compile(r"/serviceAccounts/([^/:]+@[^/:]+):")


@dataclass(frozen=True)
class Submitter:
    """`name` is what rules see. `doubt` says why it is not the cloud's identity, where there should be one."""

    name: str
    doubt: str = ""


class _Unknown(Exception):
    """The cloud did not name the identity; the message says why."""


def user_at_host() -> str:
    """The user of this computer as `user@host`, for people to read. Not an identity that rules see."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # A container without a passwd entry.
    return f"{user}@{socket.gethostname()}"


def with_submitter(spec: Spec, store: Store, *, offline: bool = False) -> tuple[Spec, tuple[str, ...]]:
    """The spec with the tag of its submitter, and a warning where that is in doubt. `offline` asks no cloud."""
    if offline and not store.is_local:
        return replace(spec, tags=spec.written_tags), ()
    found = submitter_of(store.url)
    warnings = (f"{found.doubt}; rules see {found.name} as the submitter",) if found.doubt else ()
    return replace(spec, tags={**spec.tags, SUBMITTER_TAG: found.name}), warnings


def submitter_of(url: str, environ: Mapping[str, str] = os.environ) -> Submitter:
    """The identity that writes to this store. Asks the cloud of the store, at its configured address alone."""
    ask = {"s3": _from_aws, "gs": _from_google}.get(url.partition("://")[0])
    if ask is None:
        return Submitter(local_user())
    try:
        return Submitter(ask(environ))
    except _Unknown as error:
        return Submitter(local_user(), str(error))


def local_user() -> str:
    """The operating system's user, by its number: environment variables can be set to any name."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())  # A container without a passwd entry.
    return f"{LOCAL_SUBMITTER}{name}@{socket.gethostname()}"


def role_of_session(arn: str) -> str:
    """The role of an assumed-role session; any other ARN unchanged.

    The name of a session is chosen by the person that assumes the role, so it identifies no one.
    """
    session = _ASSUMED.fullmatch(arn)
    if session is None:
        return arn
    return f"arn:{session['partition']}:iam::{session['account']}:role/{session['role']}"


# ── AWS ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_aws(environ: Mapping[str, str]) -> str:
    endpoint = environ.get("AWS_ENDPOINT_URL_STS") or environ.get("AWS_ENDPOINT_URL")
    if not endpoint and endpoint_address():
        raise _Unknown("the bucket is not Amazon's, and AWS_ENDPOINT_URL_STS names no service that knows identities")
    try:
        found = aws.find(environ)
    except (aws.NoIdentity, ImdsError) as error:
        raise _Unknown(f"AWS was not asked who submits: {error}") from None
    region = found.region or "us-east-1"
    url = (endpoint or f"https://sts.{region}.{found.domain}").rstrip("/") + "/"
    body = b"Action=GetCallerIdentity&Version=2011-06-15"
    headers = sigv4.sign(
        "POST",
        url,
        found.credentials,
        region,
        datetime.now(timezone.utc),
        headers={"Content-Type": "application/x-www-form-urlencoded"},
        payload_digest=hashlib.sha256(body).hexdigest(),
        service="sts",
    )
    answer = _response_text("AWS", urllib.request.Request(url, data=body, headers=headers, method="POST"))
    arn = _FROM_STS.search(answer)
    if arn is None or _ARN.fullmatch(arn[1]) is None:
        raise _Unknown("AWS did not tell who submits")
    return role_of_session(arn[1])


# ── Google ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_google(environ: Mapping[str, str]) -> str:
    try:
        path = credentials_file()
        said: Any = json.loads(path.read_bytes()) if path is not None else None
    except (UserError, OSError, ValueError) as error:
        raise _Unknown(f"Google's credentials cannot be read: {error}") from None
    if said is None:
        return _checked(_machine_account(environ))
    impersonated = _IMPERSONATED.search(str(said.get("service_account_impersonation_url") or ""))
    if impersonated is not None:
        return _checked(impersonated[1])
    match said.get("type"):
        case "service_account":
            return _checked(str(said.get("client_email") or ""))
        case "authorized_user":
            return _checked(_person_account(said))
        case kind:
            raise _Unknown(f"Google's credentials of type {kind} do not tell who submits")


def _checked(email: str) -> str:
    if re.fullmatch(r"[^@\s:]+@[^@\s:]+", email) is None:
        raise _Unknown("Google's credentials do not tell who submits")
    return email


def _machine_account(environ: Mapping[str, str]) -> str:
    """The service account of this machine. Only machines of Google have the metadata server that knows it."""
    there = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_IP")
    try:
        board = Path("/sys/class/dmi/id/product_name").read_text(encoding="ascii", errors="replace")
    except OSError:
        board = ""
    if not there and not board.startswith("Google"):
        raise _Unknown("there are no Google credentials to tell who submits")
    try:
        return Metadata().get(EMAIL) or ""
    except MetadataError as error:
        raise _Unknown(f"Google's metadata server did not tell who submits: {error}") from None


def _person_account(said: Mapping[str, Any]) -> str:
    """Exchange a person's login for a token, which names the account if the login allowed that."""
    address = said.get("token_uri")
    if not address and emulator_address():
        raise _Unknown("the bucket is not Google's, and token_uri in the credentials names no service to ask")
    fields = {name: str(said.get(name) or "") for name in ("client_id", "client_secret", "refresh_token")}
    body = urllib.parse.urlencode({**fields, "grant_type": "refresh_token"}).encode()
    request = urllib.request.Request(str(address or "https://oauth2.googleapis.com/token"), data=body, method="POST")
    try:
        token = str(codec.parse(_response_text("Google", request))["id_token"])
        part = token.split(".")[1]
        claims = codec.parse(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return str(claims["email"])
    except (CodecError, ValueError, KeyError, IndexError, TypeError):
        raise _Unknown(
            "Google did not tell who submits; `gcloud auth application-default login` asks for the right to"
        ) from None


def _response_text(cloud: str, request: urllib.request.Request) -> str:
    try:
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:
            data: bytes = answer.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else str(error)
        raise _Unknown(f"{cloud} did not tell who submits ({reason})") from None
    return data.decode(errors="replace")
