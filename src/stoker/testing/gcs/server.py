"""Cloud Storage's XML API, as far as obstore speaks it, with the bucket in the path. Run by `gcs_server`.

What it has not heard of is refused with 400, be it a parameter, a condition or an `x-goog-` header: a server that
overlooks a condition makes every test of it pass. Nothing depends on the Host header, so it may be reached under any
address. `/_control` takes the test's orders and `/_token` gives tokens to a service account: no bucket is named so.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from stoker.testing.gcs.faults import Fault, Faults
from stoker.testing.gcs.objects import PAGE, Objects, Page, Refusal, Stored
from stoker.testing.gcs.tokens import LIFETIME_S, Account, Tokens

_XML = "<?xml version='1.0' encoding='UTF-8'?>"
_XMLNS = "http://doc.s3.amazonaws.com/2006-03-01"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
# Kept with the object and given back with it.
_KEPT = ("content-type", "cache-control", "content-disposition", "content-encoding", "content-language")
_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
_EVERYWHERE = frozenset({"x-goog-user-project", "x-goog-api-client"})
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@dataclass(frozen=True)
class Asked:
    """One request for a bucket or an object."""

    method: str
    bucket: str
    name: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def only(self, *, parameters: tuple[str, ...] = (), conditions: tuple[str, ...] = ()) -> None:
        """Refuse whatever else was asked for."""
        for name in self.query:
            if name not in parameters:
                raise Refusal(400, "InvalidArgument", f"parameter {name}")
        for name in self.headers:
            unheard = name.startswith(("x-goog-", "x-amz-")) and not name.startswith("x-goog-meta-")
            if (unheard or name in _CONDITIONS) and name not in conditions and name not in _EVERYWHERE:
                raise Refusal(400, "InvalidArgument", f"header {name}")

    def number(self, name: str, where: dict[str, str]) -> int | None:
        text = where.get(name)
        if text is None:
            return None
        if not text.isdecimal():
            raise Refusal(400, "InvalidArgument", f"{name}: {text[:80]}")
        return int(text)

    @property
    def if_generation(self) -> int | None:
        return self.number("x-goog-if-generation-match", self.headers)

    @property
    def kept(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name, value) for name, value in self.headers.items() if name in _KEPT or name.startswith("x-goog-meta-")
        )


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Service:
    """Everything but the connections."""

    tokens: Tokens
    objects: Objects = field(default_factory=Objects)
    faults: Faults = field(default_factory=Faults)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def answer(self, asked: Asked) -> Answer:
        """Raises Refusal."""
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not self.tokens.good(token):
            raise Refusal(401, "AuthenticationRequired", "no bearer token that is known here")
        if not asked.name:
            return self._list(asked)
        match asked.method:
            case "GET" | "HEAD":
                return self._get(asked)
            case "PUT" if "uploadId" in asked.query:
                return self._put_part(asked)
            case "PUT":
                return self._put(asked)
            case "POST" if "uploads" in asked.query:
                return self._begin(asked)
            case "POST":
                return self._complete(asked)
            case "DELETE" if "uploadId" in asked.query:
                asked.only(parameters=("uploadId",))
                self.objects.abort_upload(asked.bucket, asked.name, asked.query["uploadId"])
                return Answer(204)
            case "DELETE":
                asked.only(conditions=("x-goog-if-generation-match",))
                self.objects.delete(asked.bucket, asked.name, asked.if_generation)
                return Answer(204)
            case _:
                raise Refusal(405, "MethodNotAllowed", asked.method)

    # ── https://cloud.google.com/storage/docs/xml-api/get-bucket-list ─────────────────────────────────────────────────

    def _list(self, asked: Asked) -> Answer:
        if asked.method != "GET" or asked.query.get("list-type") != "2":
            raise Refusal(400, "InvalidArgument", "of buckets, only listings of type 2 are known here")
        known = ("list-type", "prefix", "delimiter", "continuation-token", "start-after", "max-keys")
        asked.only(parameters=known)
        limit = asked.number("max-keys", asked.query)
        after = asked.query.get("start-after", "")
        if "continuation-token" in asked.query:
            after = _continued(asked.query["continuation-token"])
        prefix, delimiter = asked.query.get("prefix", ""), asked.query.get("delimiter", "")
        page = self.objects.list(asked.bucket, prefix, delimiter, after, min(PAGE if limit is None else limit, PAGE))
        return _xml(_listing(asked.bucket, prefix, delimiter, page))

    # ── https://cloud.google.com/storage/docs/xml-api/get-object-download ─────────────────────────────────────────────

    def _get(self, asked: Asked) -> Answer:
        asked.only(parameters=("generation",), conditions=("if-match", "if-none-match", "x-goog-if-generation-match"))
        found = self.objects.get(asked.bucket, asked.name, asked.number("generation", asked.query))
        if asked.if_generation not in (None, found.generation):
            raise Refusal(412, "PreconditionFailed", "x-goog-if-generation-match")
        if "if-match" in asked.headers and not _matches(found, asked.headers["if-match"]):
            raise Refusal(412, "PreconditionFailed", "If-Match")
        headers = _about(found)
        if "if-none-match" in asked.headers and _matches(found, asked.headers["if-none-match"]):
            return Answer(304, headers=headers)
        span = _span(asked.headers.get("range"), len(found.data))
        if span is None:
            return Answer(200, found.data, headers)
        told = ("Content-Range", f"bytes {span.start}-{span.stop - 1}/{len(found.data)}")
        return Answer(206, found.data[span.start : span.stop], (*headers, told))

    # ── https://cloud.google.com/storage/docs/xml-api/put-object-upload ───────────────────────────────────────────────

    def _put(self, asked: Asked) -> Answer:
        asked.only(conditions=("x-goog-if-generation-match", "x-goog-hash"))
        _check_md5(asked)
        made = self.objects.put(
            asked.bucket, asked.name, asked.body, if_generation=asked.if_generation, headers=asked.kept
        )
        return Answer(200, headers=_written(made))

    # ── https://cloud.google.com/storage/docs/multipart-uploads ───────────────────────────────────────────────────────

    def _begin(self, asked: Asked) -> Answer:
        asked.only(parameters=("uploads",))
        number = self.objects.begin_upload(asked.bucket, asked.name, asked.kept)
        told = {"Bucket": asked.bucket, "Key": asked.name, "UploadId": number}
        return _xml(_element("InitiateMultipartUploadResult", told))

    def _put_part(self, asked: Asked) -> Answer:
        asked.only(parameters=("partNumber", "uploadId"), conditions=("x-goog-hash",))
        _check_md5(asked)
        part = asked.number("partNumber", asked.query)
        if part is None:
            raise Refusal(400, "InvalidArgument", "partNumber is missing")
        etag = self.objects.put_part(asked.bucket, asked.name, asked.query["uploadId"], part, asked.body)
        return Answer(200, headers=(("ETag", etag),))

    def _complete(self, asked: Asked) -> Answer:
        asked.only(parameters=("uploadId",))
        if "uploadId" not in asked.query:
            raise Refusal(400, "InvalidArgument", "a POST begins or completes an upload")
        parts = _parts(asked.body)
        made = self.objects.complete_upload(asked.bucket, asked.name, asked.query["uploadId"], parts)
        told = {"Bucket": asked.bucket, "Key": asked.name, "ETag": made.etag}
        done = _xml(_element("CompleteMultipartUploadResult", told))
        return Answer(200, done.body, (*done.headers, ("x-goog-generation", str(made.generation))))

    # ── The test's own ────────────────────────────────────────────────────────────────────────────────────────────────

    def obey(self, order: dict[str, Any]) -> Any:
        match order["do"]:
            case "new_bucket":
                return self.objects.new_bucket(order["name"])
            case "open_uploads":
                return self.objects.open_uploads(order["bucket"])
            case "allow":
                return self.tokens.allow(order["token"], order["lifetime_s"])
            case "revoke":
                return self.tokens.revoke(order["token"])
            case "rate_limit":
                self.objects.rate_limited = order["on"]
            case "fault":
                return self.faults.add(Fault(**{**order["fault"], "methods": tuple(order["fault"]["methods"])}))
            case "clear":
                self.objects.rate_limited = False
                return self.faults.clear()
            case "requests":
                with self.lock:
                    found = dict(self.counts)
                    if order["reset"]:
                        self.counts.clear()
                    return found
            case other:
                raise ValueError(f"there is no order {other!r}")
        return None


# ── The words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _listing(bucket: str, prefix: str, delimiter: str, page: Page) -> str:
    head = {"Name": bucket, "Prefix": prefix, "KeyCount": str(len(page.objects) + len(page.prefixes))}
    if delimiter:
        head["Delimiter"] = delimiter
    head["IsTruncated"] = "true" if page.then else "false"
    if page.then:
        head["NextContinuationToken"] = base64.urlsafe_b64encode(page.then.encode()).decode()
    inner = "".join(
        _element(
            "Contents",
            {
                "Key": one.name,
                "Generation": str(one.generation),
                "MetaGeneration": "1",
                "LastModified": datetime.fromtimestamp(one.modified_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "ETag": one.etag,
                "Size": str(len(one.data)),
            },
        )
        for one in page.objects
    )
    inner += "".join(_element("CommonPrefixes", {"Prefix": name}) for name in page.prefixes)
    return _element("ListBucketResult", head, inner)


def _element(name: str, fields: dict[str, str], inner: str = "") -> str:
    told = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in fields.items())
    return f"<{name} xmlns='{_XMLNS}'>{told}{inner}</{name}>" if "Result" in name else f"<{name}>{told}{inner}</{name}>"


def _xml(text: str) -> Answer:
    return Answer(200, (_XML + text).encode(), (("Content-Type", "application/xml; charset=UTF-8"),))


def _refused(refusal: Refusal) -> Answer:
    told = {"Code": refusal.code, "Message": refusal.message}
    if refusal.details:
        told["Details"] = refusal.details
    headers = [("Content-Type", "application/xml; charset=UTF-8")]
    if refusal.status == 401:
        headers.append(("WWW-Authenticate", 'Bearer realm="https://accounts.google.com/"'))
    if refusal.size is not None:
        headers.append(("Content-Range", f"bytes */{refusal.size}"))
    return Answer(refusal.status, (_XML + _element("Error", told)).encode(), tuple(headers))


def _about(found: Stored) -> tuple[tuple[str, str], ...]:
    return (
        *((name.title(), value) for name, value in found.headers),
        ("Last-Modified", formatdate(int(found.modified_s), usegmt=True)),
        ("Accept-Ranges", "bytes"),
        ("x-goog-stored-content-length", str(len(found.data))),
        *_written(found),
    )


def _written(made: Stored) -> tuple[tuple[str, str], ...]:
    # The real one tells CRC32C as well, and nothing else of what came in parts. It takes minutes in plain Python.
    hashed = (("x-goog-hash", f"md5={made.md5}"),) if made.md5 else ()
    return (
        ("ETag", made.etag),
        ("x-goog-generation", str(made.generation)),
        ("x-goog-metageneration", "1"),
        *hashed,
    )


def _matches(found: Stored, header: str) -> bool:
    return header.strip() == "*" or found.etag in [tag.strip() for tag in header.split(",")]


def _span(header: str | None, size: int) -> range | None:
    if header is None:
        return None
    match = _RANGE.fullmatch(header)
    if match is None or match[0] == "bytes=-":
        raise Refusal(400, "InvalidArgument", f"Range: {header[:80]}")
    first, last = match[1], match[2]
    if not first:
        begin, end = max(0, size - int(last)), size
    else:
        begin, end = int(first), min(size, int(last) + 1) if last else size
    if begin >= end:
        raise Refusal(416, "InvalidRange", header, size=size)
    return range(begin, end)


def _check_md5(asked: Asked) -> None:
    wanted = [asked.headers[name] for name in ("content-md5",) if name in asked.headers]
    for part in filter(None, asked.headers.get("x-goog-hash", "").split(",")):
        kind, _, value = part.strip().partition("=")
        if kind != "md5":
            raise Refusal(400, "InvalidArgument", f"x-goog-hash: {kind} is not known here")
        wanted.append(value)
    if wanted and {base64.b64encode(hashlib.md5(asked.body).digest()).decode()} != set(wanted):
        raise Refusal(400, "BadDigest")


def _continued(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise Refusal(400, "InvalidArgument", "continuation-token") from None


def _parts(body: bytes) -> list[tuple[int, str]]:
    try:
        root = ElementTree.fromstring(body)
        found = []
        for part in root:
            told = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in part}
            if set(told) != {"PartNumber", "ETag"}:
                raise ValueError(f"{sorted(told)} is not a part")
            etag = told["ETag"].strip('"')
            found.append((int(told["PartNumber"]), f'"{etag}"'))
        return found
    except (ElementTree.ParseError, ValueError) as error:
        raise Refusal(400, "MalformedCompleteMultipartUploadRequest", str(error)) from None


# ── Connections ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _handler(service: Service) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # One packet for head and body: else the second waits until the first was acknowledged.
        wbufsize = -1
        disable_nagle_algorithm = True

        def answer(self) -> None:
            if self.command in ("PUT", "POST") and not (self.headers.get("Content-Length") or "").isdecimal():
                self.close_connection = True
                return self.send(_refused(Refusal(411, "MissingContentLength")))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            split = urlsplit(self.path)
            match split.path:
                case "/_control":
                    return self.send(_told(service.obey, body))
                case "/_token":
                    return self.send(_granted(service.tokens, body))
            try:
                self.send(self.store_answer(split.path, split.query, body))
            except ConnectionAbortedError:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            return None

        def store_answer(self, path: str, query: str, body: bytes) -> Answer:
            bucket, _, name = path.lstrip("/").partition("/")
            try:
                asked = Asked(
                    self.command,
                    unquote(bucket, errors="strict"),
                    unquote(name, errors="strict"),
                    dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")),
                    {key.lower(): value for key, value in self.headers.items()},
                    body,
                )
            except ValueError as error:
                return _refused(Refusal(400, "InvalidURI", str(error)))
            fault = service.faults.meet(asked.method, asked.name)
            try:
                if fault is not None and not fault.lose_reply:
                    raise Refusal(fault.status, fault.code)
                answer = service.answer(asked)
            except Refusal as refusal:
                answer = _refused(refusal)
            service.count(f"{asked.method} {answer.status}")
            if fault is not None and fault.lose_reply:
                raise ConnectionAbortedError("the reply is lost")
            return answer

        def send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            if answer.status not in (204, 304):
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD" and answer.status not in (204, 304):
                self.wfile.write(answer.body)
            self.wfile.flush()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _told(control: Callable[[dict[str, Any]], Any], body: bytes) -> Answer:
    try:
        return Answer(200, json.dumps({"answer": control(json.loads(body))}).encode())
    except (ValueError, KeyError, TypeError) as error:
        return Answer(400, repr(error).encode())


def _granted(tokens: Tokens, body: bytes) -> Answer:
    form = parse_qs(body.decode(errors="replace"))
    token = tokens.grant(form["assertion"][0]) if form.get("grant_type") == [_GRANT] and "assertion" in form else None
    if token is None:
        return Answer(400, b'{"error": "invalid_grant", "error_description": "not signed by an account known here"}')
    said = {"access_token": token, "expires_in": LIFETIME_S, "token_type": "Bearer"}
    return Answer(200, json.dumps(said).encode(), (("Content-Type", "application/json"),))


def main() -> None:
    """Read the account from standard input, tell the port on standard output, and end with the standard input."""
    said = json.loads(sys.stdin.readline())
    account = Account(int(said["modulus"]), int(said["exponent"]), {"private_key_id": said["private_key_id"]})

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # Sixteen writers of a test begin at the same moment.
        request_queue_size = 256

    server = Server(("127.0.0.1", 0), _handler(Service(Tokens(account))))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
