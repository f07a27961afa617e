"""Cloud Storage's XML API, as far as obstore speaks it, with the bucket in the path. Run by `gcs_server`.

What it has not heard of is refused with 400, be it a parameter, a condition or an `x-goog-` header: a server that
overlooks a condition makes every test of it pass. Nothing depends on the Host header, so it may be reached under any
address. `/_control` takes the test's orders and `/_token` gives tokens to a service account: no bucket is named so.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from tests.support.gcs.faults import Fault, Faults
from tests.support.gcs.objects import PAGE, Objects, Refusal
from tests.support.gcs.tokens import LIFETIME_S, Account, Tokens
from tests.support.gcs.words import (
    Answer,
    Asked,
    about,
    check_md5,
    continued,
    element,
    listing,
    matches,
    parts_of,
    refused,
    span_of,
    written,
    xml,
)

_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


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
            after = continued(asked.query["continuation-token"])
        prefix, delimiter = asked.query.get("prefix", ""), asked.query.get("delimiter", "")
        page = self.objects.list(asked.bucket, prefix, delimiter, after, min(PAGE if limit is None else limit, PAGE))
        return xml(listing(asked.bucket, prefix, delimiter, page))

    # ── https://cloud.google.com/storage/docs/xml-api/get-object-download ─────────────────────────────────────────────

    def _get(self, asked: Asked) -> Answer:
        asked.only(parameters=("generation",), conditions=("if-match", "if-none-match", "x-goog-if-generation-match"))
        found = self.objects.get(asked.bucket, asked.name, asked.number("generation", asked.query))
        if asked.if_generation not in (None, found.generation):
            raise Refusal(412, "PreconditionFailed", "x-goog-if-generation-match")
        if "if-match" in asked.headers and not matches(found, asked.headers["if-match"]):
            raise Refusal(412, "PreconditionFailed", "If-Match")
        headers = about(found)
        if "if-none-match" in asked.headers and matches(found, asked.headers["if-none-match"]):
            return Answer(304, headers=headers)
        span = span_of(asked.headers.get("range"), len(found.data))
        if span is None:
            return Answer(200, found.data, headers)
        told = ("Content-Range", f"bytes {span.start}-{span.stop - 1}/{len(found.data)}")
        return Answer(206, found.data[span.start : span.stop], (*headers, told))

    # ── https://cloud.google.com/storage/docs/xml-api/put-object-upload ───────────────────────────────────────────────

    def _put(self, asked: Asked) -> Answer:
        asked.only(conditions=("x-goog-if-generation-match", "x-goog-hash"))
        check_md5(asked)
        made = self.objects.put(
            asked.bucket, asked.name, asked.body, if_generation=asked.if_generation, headers=asked.kept
        )
        return Answer(200, headers=written(made))

    # ── https://cloud.google.com/storage/docs/multipart-uploads ───────────────────────────────────────────────────────

    def _begin(self, asked: Asked) -> Answer:
        asked.only(parameters=("uploads",))
        number = self.objects.begin_upload(asked.bucket, asked.name, asked.kept)
        told = {"Bucket": asked.bucket, "Key": asked.name, "UploadId": number}
        return xml(element("InitiateMultipartUploadResult", told))

    def _put_part(self, asked: Asked) -> Answer:
        asked.only(parameters=("partNumber", "uploadId"), conditions=("x-goog-hash",))
        check_md5(asked)
        part = asked.number("partNumber", asked.query)
        if part is None:
            raise Refusal(400, "InvalidArgument", "partNumber is missing")
        etag = self.objects.put_part(asked.bucket, asked.name, asked.query["uploadId"], part, asked.body)
        return Answer(200, headers=(("ETag", etag),))

    def _complete(self, asked: Asked) -> Answer:
        asked.only(parameters=("uploadId",))
        if "uploadId" not in asked.query:
            raise Refusal(400, "InvalidArgument", "a POST begins or completes an upload")
        parts = parts_of(asked.body)
        made = self.objects.complete_upload(asked.bucket, asked.name, asked.query["uploadId"], parts)
        told = {"Bucket": asked.bucket, "Key": asked.name, "ETag": made.etag}
        done = xml(element("CompleteMultipartUploadResult", told))
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
                return self.send(refused(Refusal(411, "MissingContentLength")))
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
                return refused(Refusal(400, "InvalidURI", str(error)))
            fault = service.faults.meet(asked.method, asked.name)
            try:
                if fault is not None and not fault.lose_reply:
                    raise Refusal(fault.status, fault.code)
                answer = service.answer(asked)
            except Refusal as refusal:
                answer = refused(refusal)
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
