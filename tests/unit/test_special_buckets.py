"""Buckets on S3 that Stoker does not use: they are refused before anything is launched, in one line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stoker.agent.inputs.source import InputSource, NothingThere
from stoker.model.errors import StoreDenied, StoreUnavailable, UserError
from stoker.model.spec import Input, Spec
from stoker.store import s3
from stoker.store.base import open_store, parse_bucket_url
from stoker.submit import check_inputs

EMPTY = '<?xml version="1.0"?><ListBucketResult><Name>b</Name><KeyCount>0</KeyCount></ListBucketResult>'
DENIED = '<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>'


@pytest.mark.parametrize(
    ("bucket", "said"),
    [
        # "Directory bucket names must … end with the suffix --x-s3", and so on (bucket naming rules).
        ("training--use1-az4--x-s3", "a directory bucket (S3 Express One Zone)"),
        ("training--use1-az4--xa-s3", "an access point of a directory bucket"),
        ("training--table-s3", "a table bucket"),
        ("training--ol-s3", "an Object Lambda access point"),
    ],
)
def test_a_bucket_of_another_kind_is_refused_wherever_it_is_named(bucket: str, said: str) -> None:
    for opened in (parse_bucket_url, open_store):
        with pytest.raises(UserError) as raised:
            opened(f"s3://{bucket}/team")
        assert str(raised.value).startswith(f"{bucket} is {said}") and "general purpose bucket" in str(raised.value)
    assert parse_bucket_url("s3://training-x-s3/team")[1] == "training-x-s3"
    assert parse_bucket_url("s3://my-ap-abc123-s3alias/team")[1] == "my-ap-abc123-s3alias"


class Bucket(BaseHTTPRequestHandler):
    """ "For DELETE, GET, HEAD, POST, and PUT requests, include x-amz-request-payer : requester as a header" …

    … "If you don't include it, Amazon S3 returns Error Code 403 (Access Denied)" (Requester Pays buckets). A bucket
    whose name says `private` denies everything.
    """

    def do_GET(self) -> None:
        pays = self.headers.get("x-amz-request-payer") == "requester" and "private" not in self.path
        body = (EMPTY if pays else DENIED).encode()
        self.send_response(200 if pays else 403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def s3_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("s3_server")
def test_a_bucket_whose_readers_pay_is_refused_before() -> None:
    def reading(url: str, **more: str) -> Spec:
        return Spec(name="j", run="true", inputs={"data": Input(url, **more)})  # type: ignore[arg-type]

    assert s3.is_requester_pays("s3://paid/x") and not s3.is_requester_pays("s3://private/x")
    for check in (check_inputs.check_readable, check_inputs.refuse_requester_pays):
        with pytest.raises(UserError) as raised:
            check(reading("s3://paid/x"))
        said = str(raised.value)
        assert said.startswith("inputs.data: s3://paid/x is in a bucket whose readers pay") and "\n" not in said
        assert "aws s3 cp --recursive --request-payer requester s3://paid/x" in said
        check(reading("s3://paid/x", mode="stream"))
    # Machines have credentials of their own: what denies this computer may serve them.
    check_inputs.refuse_requester_pays(reading("s3://private/x"))
    with pytest.raises(UserError, match=r"inputs\.data: "):
        check_inputs.check_readable(reading("s3://private/x"))


def test_every_input_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those after one that is only passed on, one that is no bucket, and one that does not answer."""
    asked: list[str] = []

    def find(self: InputSource) -> tuple[str, str | None]:
        asked.append(self.url)
        raise StoreUnavailable("busy") if len(asked) < 3 else NothingThere("there is nothing")

    monkeypatch.setattr(InputSource, "find", find)
    inputs = {
        "stream": Input("s3://stream/x", mode="stream"),
        "folder": Input("/folder"),
        "busy": Input("s3://busy/x"),
        "google": Input("gs://busy/x"),
        "empty": Input("s3://empty/x"),
    }
    with pytest.raises(UserError, match=r"^inputs\.empty: there is nothing; check the URL$"):
        check_inputs.check_readable(Spec(name="j", run="true", inputs=inputs))
    assert asked == ["s3://busy/x", "gs://busy/x", "s3://empty/x"]

    def deny(self: InputSource) -> tuple[str, str | None]:
        asked.append(self.url)
        raise StoreUnavailable("busy") if "busy" in self.url else StoreDenied("no")

    asked.clear()
    monkeypatch.setattr(InputSource, "find", deny)
    monkeypatch.setattr(s3, "is_requester_pays", lambda url: True)
    with pytest.raises(UserError, match=r"^inputs\.empty: s3://empty/x is in a bucket whose readers pay"):
        check_inputs.refuse_requester_pays(Spec(name="j", run="true", inputs=inputs))
    assert asked == ["s3://busy/x", "s3://empty/x"]
    with pytest.raises(UserError, match=r"^inputs\.google: no$"):
        check_inputs.check_readable(Spec(name="j", run="true", inputs={"google": Input("gs://denied/x")}))
