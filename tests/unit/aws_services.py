"""A metadata service and a bucket on loopback, for tests of what a machine does before it has an SDK."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ROLE = "stoker-node"
KEY, SECRET, TOKEN = "ASIAEXAMPLE", "a/secret+of=theirs", "a//session+token=="


def role_values() -> dict[str, str]:
    place = "meta-data/iam/security-credentials/"
    held = {
        "Code": "Success",
        "AccessKeyId": KEY,
        "SecretAccessKey": SECRET,
        "Token": TOKEN,
        "Expiration": "2099-01-01T00:00:00Z",
    }
    return {place: ROLE, place + ROLE: json.dumps(held)}


@dataclass
class Metadata:
    """What the machine is told. Version 2 only: without a session of this service there is a 401."""

    values: dict[str, str] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    # Answers to give before the right ones: a status, or 0 for none at all.
    trouble: list[int] = field(default_factory=list)
    date: datetime | None = None
    endpoint: str = ""


@dataclass
class Bucket:
    """Objects by path, `bucket/key`. Every request must be signed with the role's credentials."""

    objects: dict[str, bytes] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    # S3's message for what is denied.
    message: str = "Access Denied"
    trouble: list[int] = field(default_factory=list)
    region: str = "us-east-1"
    asked: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    endpoint: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None: ...

    def answer(self, status: int, data: bytes = b"", date: datetime | None = None) -> None:
        self.send_response_only(status)
        self.send_header("Date", format_datetime(date or datetime.now(timezone.utc), usegmt=True))
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
        self.send_header("Last-Modified", format_datetime(datetime.now(timezone.utc), usegmt=True))
        self.end_headers()
        self.wfile.write(data)

    def stumbles(self, trouble: list[int]) -> bool:
        if not trouble:
            return False
        status = trouble.pop(0)
        if status:
            self.answer(status)
        self.close_connection = True
        return True


def _metadata_handler(told: Metadata) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        def do_PUT(self) -> None:
            if self.stumbles(told.trouble):
                return
            if self.path != "/latest/api/token" or not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                self.answer(400)
                return
            session = uuid.uuid4().hex
            told.sessions.add(session)
            self.answer(200, session.encode())

        def do_GET(self) -> None:
            if self.stumbles(told.trouble):
                return
            path = self.path.removeprefix("/latest/")
            told.asked.append(path)
            if self.headers.get("X-aws-ec2-metadata-token") not in told.sessions:
                self.answer(401)
            elif path in told.values:
                self.answer(200, told.values[path].encode(), told.date)
            else:
                self.answer(404, b"<html>not found</html>", told.date)

    return Handler


def _bucket_handler(bucket: Bucket) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        def do_GET(self) -> None:
            self.serve("GET")

        def do_HEAD(self) -> None:
            self.serve("HEAD")

        def do_PUT(self) -> None:
            self.serve("PUT")

        def serve(self, method: str) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.stumbles(bucket.trouble):
                return
            key = self.path.partition("?")[0].lstrip("/")
            bucket.asked.append(f"{method} {key}")
            if not is_signed(self, method, bucket.region):
                bucket.refused.append(key)
                self.error(403, "SignatureDoesNotMatch")
            elif key in bucket.denied:
                self.error(403, "AccessDenied")
            elif method == "PUT":
                bucket.objects[key] = data
                self.answer(200)
            elif key in bucket.objects:
                self.answer(200, bucket.objects[key])
            else:
                self.error(404, "NoSuchKey")

        def error(self, status: int, code: str) -> None:
            message = bucket.message if code == "AccessDenied" else code
            self.answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())

    return Handler


def is_signed(request: BaseHTTPRequestHandler, method: str, region: str) -> bool:
    """Whether botocore would have signed it just so, with the role's credentials."""
    given = request.headers.get("Authorization", "")
    names = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    signed = {name: request.headers[name] for name in names if name in request.headers}
    url = f"http://{request.headers['Host']}{request.path}"
    again = AWSRequest(method, url, headers={name: value for name, value in signed.items() if name != "host"})
    again.context["timestamp"] = request.headers.get("x-amz-date", "")
    signer = S3SigV4Auth(Credentials(KEY, SECRET, TOKEN), "s3", region)
    text = signer.string_to_sign(again, signer.canonical_request(again))
    wanted = {"host", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token"} <= set(names)
    right = request.headers.get("x-amz-security-token") == TOKEN and f"Credential={KEY}/" in given
    return wanted and right and given.endswith(f"Signature={signer.signature(text, again)}")


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server that answers with this handler."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def metadata_service(**values: str) -> Iterator[Metadata]:
    told = Metadata()
    told.values = {
        "meta-data/instance-id": "i-0123456789abcdef0",
        "meta-data/ami-launch-index": "1",
        "meta-data/placement/availability-zone": "us-east-1b",
        "meta-data/placement/region": "us-east-1",
        "meta-data/local-ipv4": "10.0.0.7",
        **role_values(),
    } | values
    with serving(_metadata_handler(told)) as endpoint:
        told.endpoint = endpoint
        yield told


@contextmanager
def bucket_service() -> Iterator[Bucket]:
    bucket = Bucket()
    with serving(_bucket_handler(bucket)) as endpoint:
        bucket.endpoint = endpoint
        yield bucket
