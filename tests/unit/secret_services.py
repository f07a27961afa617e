"""Services that keep secrets, on loopback: AWS's four, which check signatures as botocore makes them, and Google's."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_services
from aws_services import serving
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials


@dataclass
class Vault:
    """What AWS keeps. Every request must be signed with `keys`, for the right service and region."""

    keys: Credentials
    region: str = "us-east-1"
    secrets: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    # Answers to give before the right ones: `status code`, or "" for none at all.
    trouble: list[str] = field(default_factory=list)
    ahead: timedelta = timedelta(0)
    asked: list[str] = field(default_factory=list)
    tokens: int = 0
    endpoint: str = ""


_TARGETS = {
    "secretsmanager.GetSecretValue": "secretsmanager",
    "AmazonSSM.GetParameter": "ssm",
    "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken": "ecr",
}


def _handler(vault: Vault) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None: ...

        def tell(self, status: int, tree: object) -> None:
            data = json.dumps(tree).encode()
            self.send_response_only(status)
            self.send_header("Date", format_datetime(datetime.now(timezone.utc) + vault.ahead, usegmt=True))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def refuse(self, code: str, message: str = "as the test wants it", status: int = 400) -> None:
            self.tell(status, {"__type": f"com.amazonaws#{code}", "message": message})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            target = self.headers.get("X-Amz-Target", "")
            vault.asked.append(target or self.path)
            if vault.trouble:
                status, _, code = vault.trouble.pop(0).partition(" ")
                if not status:
                    self.close_connection = True
                    return
                self.refuse(code, status=int(status))
                return
            service = _TARGETS.get(target, "codeartifact")
            if not self.is_signed(service, body):
                self.refuse("InvalidSignatureException", "The request signature we calculated does not match")
                return
            if service == "codeartifact":
                self.artifacts()
                return
            tree = json.loads(body)
            getattr(self, service)(tree)

        def is_signed(self, service: str, body: bytes) -> bool:
            given = self.headers.get("Authorization", "")
            names = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
            stamp = self.headers.get("x-amz-date", "")
            at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
            if abs(at - datetime.now(timezone.utc) - vault.ahead) > timedelta(minutes=5):
                return False
            signed = {name: self.headers[name] for name in names if name != "host"}
            url = f"http://{self.headers['Host']}{self.path}"
            again = AWSRequest("POST", url, headers=signed, data=body)
            again.context["timestamp"] = stamp
            signer = SigV4Auth(vault.keys, service, vault.region)
            text = signer.string_to_sign(again, signer.canonical_request(again))
            right = self.headers.get("x-amz-security-token") == vault.keys.token
            return right and {"host", "x-amz-date"} <= set(names) and given.endswith(signer.signature(text, again))

        def secretsmanager(self, tree: dict[str, Any]) -> None:
            assert set(tree) == {"SecretId"}, tree
            value = vault.secrets.get(tree["SecretId"])
            if value is None:
                self.refuse("ResourceNotFoundException", "Secrets Manager can't find the specified secret.")
            elif isinstance(value, bytes):
                self.tell(200, {"Name": tree["SecretId"], "SecretBinary": base64.b64encode(value).decode()})
            else:
                self.tell(200, {"Name": tree["SecretId"], "SecretString": value})

        def ssm(self, tree: dict[str, Any]) -> None:
            assert tree.keys() == {"Name", "WithDecryption"} and tree["WithDecryption"] is True, tree
            if tree["Name"] not in vault.parameters:
                self.refuse("ParameterNotFound", "")
            else:
                self.tell(200, {"Parameter": {"Name": tree["Name"], "Value": vault.parameters[tree["Name"]]}})

        def ecr(self, tree: dict[str, Any]) -> None:
            assert tree == {}
            vault.tokens += 1
            token = base64.b64encode(f"AWS:ecr-password-{vault.tokens}".encode()).decode()
            self.tell(200, {"authorizationData": [{"authorizationToken": token, "expiresAt": 1.7e9}]})

        def artifacts(self) -> None:
            parts = urlsplit(self.path)
            assert parts.path == "/v1/authorization-token"
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            vault.tokens += 1
            token = f"artifact-token-{vault.tokens} {query}"
            self.tell(200, {"authorizationToken": token, "expiration": 1.7e9})

    return Handler


@contextmanager
def vault_service(key: str, secret: str, token: str | None = None) -> Iterator[Vault]:
    vault = Vault(Credentials(key, secret, token))
    with serving(_handler(vault)) as endpoint:
        vault.endpoint = endpoint
        yield vault


@dataclass
class GoogleVault:
    """What Secret Manager keeps: versions by their whole names. `tokens` are those that it takes."""

    tokens: set[str] = field(default_factory=set)
    versions: dict[str, bytes] = field(default_factory=dict)
    trouble: list[tuple[int, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    billed: list[str | None] = field(default_factory=list)
    logins: list[dict[str, str]] = field(default_factory=list)
    login_status: int = 200
    endpoint: str = ""


def _google_handler(vault: GoogleVault, metadata: google_services.Metadata | None) -> type[BaseHTTPRequestHandler]:
    class Handler(google_services._Handler):
        def do_POST(self) -> None:
            """Google's tokens for people."""
            form = {name: values[0] for name, values in parse_qs(self.body().decode()).items()}
            vault.logins.append(form)
            self.tell(vault.login_status, {"access_token": "ya29.a-person", "expires_in": 3599})

        def do_GET(self) -> None:
            path = unquote(self.path)
            vault.asked.append(path)
            vault.billed.append(self.headers.get("X-Goog-User-Project"))
            if vault.trouble:
                status, word = vault.trouble.pop(0)
                if not status:
                    self.close_connection = True
                    return
                self.fail(status, word)
                return
            name = path.removeprefix("/v1/").removesuffix(":access")
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            if token not in vault.tokens and not (metadata is not None and self.knows(metadata)):
                self.fail(401, "UNAUTHENTICATED")
            elif name not in vault.versions:
                self.fail(404, "NOT_FOUND", f"Secret [{name}] not found or has no versions.")
            else:
                data = base64.b64encode(vault.versions[name]).decode()
                crc = str(int(hashlib.sha256(vault.versions[name]).hexdigest()[:8], 16))
                self.tell(200, {"name": name, "payload": {"data": data, "dataCrc32c": crc}})

    return Handler


@contextmanager
def google_vault_service(metadata: google_services.Metadata | None = None) -> Iterator[GoogleVault]:
    vault = GoogleVault()
    with google_services.serving(_google_handler(vault, metadata)) as host:
        vault.endpoint = f"http://{host}/"
        yield vault
