"""Google's services on loopback, for tests of what a machine does without an SDK: metadata, a bucket, the compute API
and Cloud Logging. All of them want the token that the metadata server gives out."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

EMAIL = "node@vision-1.iam.gserviceaccount.com"
ACCOUNT = "instance/service-accounts/default/"
PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
NUMBER = "4242424242424242424"
NAME = "stoker-train-abcd-7-1"
ZONE = "us-central1-b"
PROJECT = "vision-1"


class Metadata:
    """What the machine is told. `put` wakes whoever waits for a change; without Google's header there is a 403."""

    def __init__(self, **values: str) -> None:
        self._changed = threading.Condition()
        self.values: dict[str, str] = {
            "instance/id": NUMBER,
            "instance/name": NAME,
            "instance/zone": f"projects/123456789/zones/{ZONE}",
            "instance/preempted": "FALSE",
            "instance/maintenance-event": "NONE",
            "instance/network-interfaces/0/ip": "10.0.0.7",
            "project/project-id": PROJECT,
            ACCOUNT + "email": EMAIL,
            ACCOUNT + "scopes": f"{PLATFORM}\n",
        } | values
        self.tokens = 0
        self.token_s = 3600
        self.has_account = True
        self.asked: list[str] = []
        self.waiting = 0
        # Answers to give before the right ones: a status, or 0 for none at all.
        self.trouble: list[int] = []
        self.flavor: str | None = "Google"
        self.host = ""
        self.closed = False

    @property
    def token(self) -> str:
        """The newest one that was given out."""
        return f"ya29.token-{self.tokens}"

    def put(self, path: str, value: str) -> None:
        with self._changed:
            self.values[path] = value
            self._changed.notify_all()

    def hang_up(self) -> None:
        """Answer whoever waits, with an error."""
        with self._changed:
            self.trouble.append(503)
            self._changed.notify_all()

    def answer_for(self, path: str) -> str | None:
        if path == ACCOUNT + "token" and self.has_account:
            self.tokens += 1
            return json.dumps({"access_token": self.token, "expires_in": self.token_s, "token_type": "Bearer"})
        return self.values.get(path)

    def wait(self, path: str, etag: str, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        with self._changed:
            self.waiting += 1
            try:
                while etag_of(self.values.get(path)) == etag and not self.trouble and not self.closed:
                    if not self._changed.wait(max(0.0, until_s - time.monotonic())):
                        return
            finally:
                self.waiting -= 1

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


def etag_of(value: str | None) -> str:
    return hashlib.sha256((value or "").encode()).hexdigest()[:16]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None: ...

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def tell(self, status: int, tree: object) -> None:
        self.answer(status, json.dumps(tree).encode(), Content_Type="application/json")

    def fail(self, status: int, reason: str, message: str = "as the test wants it") -> None:
        self.tell(status, {"error": {"code": status, "status": reason, "message": message}})

    def stumbles(self, trouble: list[int]) -> bool:
        if not trouble:
            return False
        status = trouble.pop(0)
        if status:
            self.answer(status, Metadata_Flavor="Google")
        self.close_connection = True
        return True

    def knows(self, metadata: Metadata) -> bool:
        return self.headers.get("Authorization") == f"Bearer {metadata.token}" and metadata.tokens > 0


def _metadata_handler(told: Metadata) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            path = parts.path.removeprefix("/computeMetadata/v1/")
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            told.asked.append(path)
            if not told.trouble and query.get("wait_for_change") == "true":
                told.wait(path, query.get("last_etag", ""), float(query.get("timeout_sec", "3600")))
            if self.stumbles(told.trouble) or told.closed:
                self.close_connection = True
                return
            if self.headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in self.headers:
                self.answer(403)
                return
            value = told.answer_for(path)
            headers = {"ETag": etag_of(value)} | ({"Metadata_Flavor": told.flavor} if told.flavor else {})
            self.answer(404 if value is None else 200, (value or "not found").encode(), **headers)

    return Handler


@dataclass
class Bucket:
    """Objects by path, `bucket/key`, through the XML API."""

    metadata: Metadata
    objects: dict[str, bytes] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    trouble: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""


def _bucket_handler(bucket: Bucket) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        def do_GET(self) -> None:
            self.serve("GET")

        def do_PUT(self) -> None:
            self.serve("PUT")

        def serve(self, method: str) -> None:
            data = self.body()
            key = unquote(urlsplit(self.path).path).lstrip("/")
            bucket.asked.append(f"{method} {key}")
            if self.stumbles(bucket.trouble):
                return
            if not self.knows(bucket.metadata):
                self.error(401, "AuthenticationRequired")
            elif key in bucket.denied or PLATFORM not in bucket.metadata.values.get(ACCOUNT + "scopes", ""):
                self.error(403, "AccessDenied")
            elif method == "PUT":
                bucket.objects[key] = data
                self.answer(200)
            elif key in bucket.objects:
                self.answer(200, bucket.objects[key])
            else:
                self.error(404, "NoSuchKey")

        def error(self, status: int, code: str) -> None:
            self.answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())

    return Handler


@dataclass
class Compute:
    """The compute API as far as a machine uses it: it deletes itself. `machines` are `projects/…/instances/NAME`."""

    metadata: Metadata
    machines: set[str] = field(default_factory=set)
    trouble: list[int] = field(default_factory=list)
    denied: bool = False
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""


def _compute_handler(compute: Compute) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        def do_DELETE(self) -> None:
            path = self.path.removeprefix("/compute/v1/")
            compute.asked.append(f"DELETE {path}")
            if self.stumbles(compute.trouble):
                return
            if not self.knows(compute.metadata):
                self.fail(401, "UNAUTHENTICATED")
            elif compute.denied or PLATFORM not in compute.metadata.values.get(ACCOUNT + "scopes", ""):
                self.fail(403, "PERMISSION_DENIED")
            elif path in compute.machines:
                compute.machines.remove(path)
                self.tell(200, {"kind": "compute#operation", "status": "RUNNING"})
            else:
                self.fail(404, "NOT_FOUND")

    return Handler


@dataclass
class Logging:
    """`entries:write`, stricter than Google's. `broken` is what a client did that would be refused there."""

    metadata: Metadata
    endpoint: str = ""
    calls: int = 0
    batches: list[list[dict[str, Any]]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    # What to answer instead: a status of Google's (`PERMISSION_DENIED`), or "" for no answer at all.
    trouble: str | None = None
    # Taken, but the reply is lost: so many times.
    lose: int = 0
    # Entries with these texts are refused, and the others taken (partialSuccess).
    refuses: set[str] = field(default_factory=set)
    most_body: int = 0

    @property
    def entries(self) -> list[dict[str, Any]]:
        """What a query would show: no entry twice, in order of time and insertId."""
        found = {(each["timestamp"], each["insertId"]): each for batch in self.batches for each in batch}
        return [found[key] for key in sorted(found)]

    @property
    def texts(self) -> list[str]:
        return [each["textPayload"] for each in self.entries]

    def check(self, tree: dict[str, Any], size: int) -> None:
        self.most_body = max(self.most_body, size)
        if size > 10_000_000:
            self.broken.append(f"a request of {size} bytes")
        unknown = set(tree) - {"logName", "resource", "labels", "entries", "partialSuccess", "dryRun"}
        if unknown or tree.get("partialSuccess") is not True:
            self.broken.append(f"unknown fields {unknown}, or no partialSuccess")
        if not 0 < len(tree["entries"]) <= 1000:
            self.broken.append(f"{len(tree['entries'])} entries")
        around = len(json.dumps([tree["logName"], tree["resource"], tree["labels"]]).encode())
        for each in tree["entries"]:
            if set(each) != {"timestamp", "insertId", "textPayload"}:
                self.broken.append(f"an entry with {sorted(each)}")
            # As the service keeps it, not as it is written in the request.
            if sum(len(value.encode()) for value in each.values()) + around > 256_000:
                self.broken.append("an entry that is too large")


_STATUS = {"PERMISSION_DENIED": 403, "UNAUTHENTICATED": 401, "INVALID_ARGUMENT": 400, "RESOURCE_EXHAUSTED": 429}
_PARTIAL = "type.googleapis.com/google.logging.v2.WriteLogEntriesPartialErrors"


def _logging_handler(service: Logging) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        def do_POST(self) -> None:
            data = self.body()
            service.calls += 1
            if service.trouble is not None:
                self.close_connection = not service.trouble
                if service.trouble:
                    self.fail(_STATUS.get(service.trouble, 503), service.trouble)
                return
            if self.path != "/v2/entries:write" or self.headers.get("Content-Type") != "application/json":
                service.broken.append(f"POST {self.path}")
            if not self.knows(service.metadata):
                self.fail(401, "UNAUTHENTICATED")
                return
            tree = json.loads(data)
            service.check(tree, len(data))
            whole = {name: tree[name] for name in ("logName", "resource", "labels")}
            refused = [n for n, each in enumerate(tree["entries"]) if each["textPayload"] in service.refuses]
            service.batches.append([whole | each for n, each in enumerate(tree["entries"]) if n not in refused])
            if service.lose:
                service.lose -= 1
                self.close_connection = True
            elif refused:
                told = {str(n): {"code": 3, "message": "timestamp too far in the future"} for n in refused}
                details = [{"@type": _PARTIAL, "logEntryErrors": told}]
                status = {"code": 400, "status": "INVALID_ARGUMENT", "message": "some were not", "details": details}
                self.tell(400, {"error": status})
            else:
                self.tell(200, {})

    return Handler


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """`host:port` of a server that answers with this handler."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def metadata_server(**values: str) -> Iterator[Metadata]:
    told = Metadata(**values)
    with serving(_metadata_handler(told)) as host:
        told.host = host
        try:
            yield told
        finally:
            told.close()


@contextmanager
def bucket_service(metadata: Metadata) -> Iterator[Bucket]:
    bucket = Bucket(metadata)
    with serving(_bucket_handler(bucket)) as host:
        bucket.endpoint = f"http://{host}"
        yield bucket


@contextmanager
def compute_service(metadata: Metadata) -> Iterator[Compute]:
    compute = Compute(metadata, {f"projects/{PROJECT}/zones/{ZONE}/instances/{NAME}"})
    with serving(_compute_handler(compute)) as host:
        compute.endpoint = f"http://{host}/compute/v1/"
        yield compute


@contextmanager
def logging_service(metadata: Metadata) -> Iterator[Logging]:
    service = Logging(metadata)
    with serving(_logging_handler(service)) as host:
        service.endpoint = f"http://{host}/"
        yield service
    assert not service.broken
