"""The Cloud Storage of tests is as strict as the real one, and stricter: what it does not know it refuses."""

from __future__ import annotations

import hashlib
import http.client
import importlib
import json
import re
import uuid
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from tests.support.gcs import GcsServer
from tests.support.machines.store_door import StoreDoor
from tests.support.servers import isolated, pytest_isolated

PART = 5 << 20


@dataclass(frozen=True)
class Said:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def all(self, tag: str) -> list[str]:
        return re.findall(f"<{tag}>([^<]*)</{tag}>", self.body.decode())

    @property
    def code(self) -> str:
        return self.all("Code")[0]


@dataclass(frozen=True)
class Wire:
    """One bucket, without obstore between."""

    address: str
    bucket: str
    token: str

    def ask(
        self,
        method: str,
        name: str = "",
        body: bytes = b"",
        *,
        query: Mapping[str, object] | None = None,
        **headers: str,
    ) -> Said:
        """Headers with underscores for dashes."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        path = f"/{self.bucket}/{name}" if name else f"/{self.bucket}"
        sent = {"authorization": f"Bearer {self.token}"} | {key.replace("_", "-"): to for key, to in headers.items()}
        connection.request(method, f"{path}?{urlencode(query)}" if query else path, body, sent)
        answer = connection.getresponse()
        told = Said(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
        connection.close()
        return told

    def listing(self, **query: object) -> Said:
        return self.ask("GET", query={"list-type": 2} | {key.replace("_", "-"): to for key, to in query.items()})


@pytest.fixture
def wire(gcs: GcsServer) -> Wire:
    token = f"ya29.{uuid.uuid4().hex}"
    gcs.allow(token)
    return Wire(urlsplit(gcs.endpoint).netloc, gcs.new_bucket(), token)


if not isolated():

    def test_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)

else:
    # ── Who asks ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(
        "header", ["", "Bearer", "Bearer nobody", "Basic abc", "Bearer a.b.c", "Bearer e30.e30.AA"]
    )
    def test_who_is_not_known_is_refused(wire: Wire, header: str) -> None:
        said = wire.ask("PUT", "k", b"x", authorization=header)
        assert (said.status, said.code) == (401, "AuthenticationRequired")
        assert wire.ask("GET", "k").status == 404

    def test_the_key_file_gets_tokens_as_google_gives_them(wire: Wire, gcs: GcsServer) -> None:
        accounts = importlib.import_module("google.oauth2.service_account")
        transport = importlib.import_module("google.auth.transport.requests")
        path = gcs.env["GOOGLE_APPLICATION_CREDENTIALS"]
        scope = "https://www.googleapis.com/auth/cloud-platform"
        made = accounts.Credentials.from_service_account_file(path, scopes=[scope])
        made.refresh(transport.Request())
        assert wire.ask("PUT", "k", authorization=f"Bearer {made.token}").status == 200
        # What it signs for itself is good as well, and only as it was signed.
        made = made.with_always_use_jwt_access(True)
        made._create_self_signed_jwt(None)
        made.refresh(transport.Request())
        assert made.token.count(".") == 2
        assert wire.ask("PUT", "k", authorization=f"Bearer {made.token}").status == 200
        head, claims, signature = made.token.split(".")
        for forged in (f"{head}.{claims}x.{signature}", f"{head}.{claims}.{signature[:-8]}AAAAAAAA"):
            assert wire.ask("PUT", "k", authorization=f"Bearer {forged}").status == 401

    def test_a_token_ends(wire: Wire, gcs: GcsServer) -> None:
        gcs.allow("short", lifetime_s=0.0)
        assert wire.ask("GET", "k", authorization="Bearer short").status == 401
        gcs.revoke(wire.token)
        assert wire.ask("GET", "k").status == 401

    # ── What it does not know ─────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
    @pytest.mark.parametrize(
        "header", ["x_goog_if_metageneration_match", "x_goog_copy_source", "x_amz_acl", "if_unmodified_since"]
    )
    def test_headers_it_has_not_heard_of(wire: Wire, method: str, header: str) -> None:
        wire.ask("PUT", "k", b"old")
        query = {"uploads": ""} if method == "POST" else None
        assert wire.ask(method, "k", b"", query=query, **{header: "0"}).status == 400
        assert wire.ask("GET", "k").body == b"old"

    @pytest.mark.parametrize("header", ["if_none_match", "if_match"])
    def test_conditions_of_s3_are_not_overlooked_on_a_write(wire: Wire, header: str) -> None:
        said = wire.ask("PUT", "k", b"x", **{header: "*"})
        assert (said.status, said.code) == (400, "InvalidArgument")

    @pytest.mark.parametrize(
        ("method", "name", "query"),
        [
            ("GET", "", {}),
            ("GET", "", {"list-type": 1}),
            ("GET", "", {"list-type": 2, "versions": ""}),
            ("GET", "", {"list-type": 2, "max-keys": "many"}),
            ("GET", "", {"list-type": 2, "continuation-token": "!"}),
            ("PUT", "", {}),
            ("DELETE", "", {}),
            ("GET", "k", {"acl": ""}),
            ("PUT", "k", {"compose": ""}),
            ("PUT", "k", {"uploadId": "x"}),
            ("POST", "k", {}),
        ],
    )
    def test_parameters_it_has_not_heard_of(wire: Wire, method: str, name: str, query: dict[str, object]) -> None:
        assert wire.ask(method, name, b"", query=query).status == 400

    def test_a_condition_that_is_no_number(wire: Wire) -> None:
        assert wire.ask("PUT", "k", b"x", x_goog_if_generation_match="*").status == 400

    # ── Objects ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_generations_are_conditions(wire: Wire) -> None:
        first = wire.ask("PUT", "k", b"1", x_goog_if_generation_match="0")
        assert first.status == 200
        said = wire.ask("PUT", "k", b"2", x_goog_if_generation_match="0")
        assert (said.status, said.code) == (412, "PreconditionFailed")
        now = first.headers["x-goog-generation"]
        second = wire.ask("PUT", "k", b"2", x_goog_if_generation_match=now)
        assert second.status == 200 and int(second.headers["x-goog-generation"]) > int(now)
        for method in ("PUT", "GET", "DELETE"):
            assert wire.ask(method, "k", x_goog_if_generation_match=now).status == 412
        assert wire.ask("GET", "k").body == b"2"
        assert wire.ask("GET", "k", query={"generation": now}).status == 404
        assert wire.ask("DELETE", "k", x_goog_if_generation_match=second.headers["x-goog-generation"]).status == 204
        assert wire.ask("PUT", "k", b"3", x_goog_if_generation_match="0").status == 200

    def test_what_is_told_of_an_object(wire: Wire) -> None:
        digest = hashlib.md5(b"hello")
        wire.ask("PUT", "k", b"hello", content_type="text/plain", x_goog_meta_a="b")
        for method, body in (("GET", b"hello"), ("HEAD", b"")):
            said = wire.ask(method, "k")
            assert said.status == 200 and said.body == body
            assert said.headers["etag"] == f'"{digest.hexdigest()}"'
            assert said.headers["x-goog-hash"] == f"md5={b64encode(digest.digest()).decode()}"
            assert said.headers["content-type"] == "text/plain"
            assert said.headers["x-goog-meta-a"] == "b"
            assert said.headers["content-length"] == "5"
            assert said.headers["last-modified"].endswith(" GMT")

    def test_bytes_that_are_not_those_sent(wire: Wire) -> None:
        good = b64encode(hashlib.md5(b"x").digest()).decode()
        assert wire.ask("PUT", "k", b"x", x_goog_hash=f"md5={good}").status == 200
        for header in ({"x_goog_hash": f"md5={good}"}, {"content_md5": good}):
            said = wire.ask("PUT", "k", b"y", **header)
            assert (said.status, said.code) == (400, "BadDigest")

    @pytest.mark.parametrize(
        ("asked", "status", "body"),
        [
            ("bytes=0-3", 206, b"0123"),
            ("bytes=7-", 206, b"789"),
            ("bytes=7-99", 206, b"789"),
            ("bytes=-2", 206, b"89"),
            ("bytes=10-", 416, None),
            ("bytes=5-2", 416, None),
            ("bytes=x", 400, None),
            ("bytes=0-1,4-5", 400, None),
        ],
    )
    def test_ranges(wire: Wire, asked: str, status: int, body: bytes | None) -> None:
        wire.ask("PUT", "k", b"0123456789")
        said = wire.ask("GET", "k", range=asked)
        assert said.status == status
        if body is not None:
            assert said.body == body and said.headers["content-range"].endswith("/10")
        elif status == 416:
            assert said.headers["content-range"] == "bytes */10"

    def test_etags_are_conditions_of_reading(wire: Wire) -> None:
        etag = wire.ask("PUT", "k", b"1").headers["etag"]
        assert wire.ask("GET", "k", if_match=etag, range="bytes=0-0").status == 206
        assert wire.ask("GET", "k", if_none_match=etag).status == 304
        wire.ask("PUT", "k", b"2")
        assert wire.ask("GET", "k", if_match=etag, range="bytes=0-0").status == 412
        assert wire.ask("GET", "k", if_none_match=etag).status == 200

    def test_absence(wire: Wire) -> None:
        for method in ("GET", "DELETE"):
            assert wire.ask(method, "none").code == "NoSuchKey"
        elsewhere = Wire(wire.address, "nowhere", wire.token)
        assert elsewhere.ask("PUT", "k", b"x").code == "NoSuchBucket"
        assert elsewhere.listing().code == "NoSuchBucket"
        assert elsewhere.ask("HEAD", "k").body == b""

    # ── Listings ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_a_listing_is_sorted_by_bytes(wire: Wire) -> None:
        for name in ("b", "a%2Fb", "a-b", "%C3%BC", "%F0%9F%99%82", "%EF%BC%A1", "B"):
            wire.ask("PUT", name)
        keys = wire.listing().all("Key")
        assert keys == sorted(keys, key=str.encode)
        # By UTF-16 units, as some stores do it, these two would stand the other way round.
        assert keys[-2:] == ["Ａ", "🙂"]

    @pytest.mark.parametrize("limit", [1, 2, 3, 1000])
    def test_pages_are_the_whole(wire: Wire, limit: int) -> None:
        for name in ("a/1", "a/2", "a/b/1", "a/b/2", "a/c/1", "a/d", "b/1"):
            wire.ask("PUT", name)
        for query, wanted in (
            ({"prefix": "a/"}, ["a/1", "a/2", "a/b/1", "a/b/2", "a/c/1", "a/d"]),
            ({"prefix": "a/", "delimiter": "/"}, ["a/1", "a/2", "a/d", "a/b/", "a/c/"]),
            ({"start_after": "a/b/1"}, ["a/b/2", "a/c/1", "a/d", "b/1"]),
        ):
            found: list[str] = []
            more: dict[str, object] = {}
            while True:
                said = wire.listing(max_keys=limit, **query, **more)
                page = said.all("Key") + [name for name in said.all("Prefix") if name != query.get("prefix", "")]
                assert len(page) == int(said.all("KeyCount")[0]) <= limit
                found += page
                if said.all("IsTruncated") == ["false"]:
                    break
                more = {"continuation_token": said.all("NextContinuationToken")[0]}
            assert sorted(found) == sorted(wanted)
            assert len(found) == len(wanted)

    # ── In parts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(wire: Wire) -> str:
        return wire.ask("POST", "k", query={"uploads": ""}).all("UploadId")[0]

    def part(wire: Wire, upload: str, number: int, data: bytes) -> str:
        said = wire.ask("PUT", "k", data, query={"partNumber": number, "uploadId": upload})
        assert said.status == 200
        return said.headers["etag"]

    def complete(wire: Wire, upload: str, parts: list[tuple[int, str]]) -> Said:
        inner = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in parts)
        body = f"<CompleteMultipartUpload>{inner}</CompleteMultipartUpload>".encode()
        return wire.ask("POST", "k", body, query={"uploadId": upload})

    def test_parts_appear_as_a_whole(wire: Wire, gcs: GcsServer) -> None:
        upload = begin(wire)
        last = part(wire, upload, 7, b"z")
        first = part(wire, upload, 2, b"a" * PART)
        assert wire.ask("HEAD", "k").status == 404 and wire.listing().all("Key") == []
        assert gcs.open_uploads(f"gs://{wire.bucket}/x") == 1
        said = complete(wire, upload, [(2, first), (7, last)])
        assert said.status == 200
        found = wire.ask("GET", "k")
        assert found.body == b"a" * PART + b"z"
        assert found.headers["x-goog-generation"] == said.headers["x-goog-generation"]
        # https://cloud.google.com/storage/docs/xml-api/post-object-complete: not of an MD5.
        assert re.fullmatch('"[0-9a-f]{32}"', found.headers["etag"]) is None
        assert gcs.open_uploads(f"gs://{wire.bucket}") == 0
        assert complete(wire, upload, [(2, first)]).code == "NoSuchUpload"

    def test_parts_that_do_not_fit(wire: Wire) -> None:
        upload = begin(wire)
        one, two = part(wire, upload, 1, b"small"), part(wire, upload, 2, b"too")
        assert complete(wire, upload, [(1, one), (2, two)]).code == "EntityTooSmall"
        assert complete(wire, upload, [(2, two), (1, one)]).code == "InvalidPartOrder"
        assert complete(wire, upload, [(1, two)]).code == "InvalidPart"
        assert complete(wire, upload, [(3, two)]).code == "InvalidPart"
        assert complete(wire, upload, []).status == 400
        assert wire.ask("PUT", "k", query={"partNumber": 0, "uploadId": upload}).status == 400
        assert wire.ask("POST", "k", b"<nonsense", query={"uploadId": upload}).status == 400
        assert wire.ask("HEAD", "k").status == 404

    def test_an_upload_that_is_withdrawn(wire: Wire, gcs: GcsServer) -> None:
        upload = begin(wire)
        assert wire.ask("DELETE", "k", query={"uploadId": upload}).status == 204
        assert wire.ask("PUT", "k", query={"partNumber": 1, "uploadId": upload}).code == "NoSuchUpload"
        assert gcs.open_uploads(f"gs://{wire.bucket}") == 0

    # ── What tests ask of it ──────────────────────────────────────────────────────────────────────────────────────────

    def test_faults_befall_what_they_name(wire: Wire, gcs: GcsServer) -> None:
        gcs.fail(503, "ServiceUnavailable", methods=("PUT",), prefix="jobs/", times=2)
        assert [wire.ask("PUT", name).status for name in ("jobs/a", "work/a", "jobs/a", "jobs/a")] == [
            503,
            200,
            503,
            200,
        ]
        gcs.fail(for_s=0.0)
        assert wire.ask("PUT", "k").status == 200
        gcs.fail()
        assert wire.ask("GET", "k").status == 500
        gcs.clear()
        assert wire.ask("GET", "k").status == 200
        assert gcs.requests() == {"GET 200": 1}

    def test_a_reply_is_lost_after_all_was_done(wire: Wire, gcs: GcsServer) -> None:
        gcs.lose_replies("PUT")
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            wire.ask("PUT", "k", b"x")
        assert wire.ask("GET", "k").body == b"x"

    def test_it_is_the_same_behind_a_door(wire: Wire, gcs: GcsServer) -> None:
        door = StoreDoor("127.0.0.1", int(wire.address.rpartition(":")[2]))
        behind = Wire(f"127.0.0.1:{door.port}", wire.bucket, wire.token)
        assert behind.ask("PUT", "k", b"x", host="storage.example").status == 200
        assert wire.ask("GET", "k").body == b"x"
        shown = GcsServer(f"http://127.0.0.1:{door.port}", {**gcs.env, "STORAGE_EMULATOR_HOST": "elsewhere"})
        assert Wire(wire.address, shown.new_bucket(), wire.token).listing().status == 200

    def test_the_key_file_is_a_service_accounts(gcs: GcsServer) -> None:
        said = json.loads(Path(gcs.env["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
        assert said["type"] == "service_account" and said["project_id"] == gcs.env["GOOGLE_CLOUD_PROJECT"]
        assert said["token_uri"].startswith(gcs.endpoint)
