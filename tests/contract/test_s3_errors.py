"""What S3 may answer, or not answer, and what is made of it. Runs where nothing but loopback can be reached."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from bucket_calls import CALLS, assert_changed_file_is_refused, assert_large_files_need_little_memory

from stoker.model.errors import NoCredentials, StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.store import bucket
from stoker.store.base import Store, open_store
from tests.support.servers import S3Server, isolated, pytest_isolated


@dataclass
class Script:
    """A server that answers each method with what is next for it, the last answer again and again."""

    answers: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    signers: list[str] = field(default_factory=list)

    def next(self, method: str) -> tuple[int, str]:
        self.seen.append(method)
        waiting = self.answers.get(method, [(500, "InternalError")])
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


def handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.signers.append(self.headers.get("Authorization", ""))
            status, code = script.next(self.command)
            body = b"" if status == 200 else f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"e"')
            self.send_header("Last-Modified", "Tue, 01 Jan 2030 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(script))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    script.answers["endpoint"] = [(0, f"http://127.0.0.1:{server.server_address[1]}")]
    yield script
    server.shutdown()
    server.server_close()


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    # One is enough to see that there are any, and the pauses between them take their time.
    monkeypatch.setattr(bucket, "_RETRIES", 1)
    return monkeypatch


@pytest.fixture
def store(script: Script, clean: pytest.MonkeyPatch) -> Store:
    clean.setenv("AWS_ENDPOINT_URL", script.answers["endpoint"][0][1])
    return open_store("s3://bucket/prefix")


if not isolated():

    def test_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)

else:

    def test_a_conflict_is_not_existence(store: Store, script: Script) -> None:
        script.answers |= {
            "PUT": [(409, "ConditionalRequestConflict"), (409, "ConditionalRequestConflict"), (200, "")],
            "HEAD": [(404, "")],
            "GET": [(404, "NoSuchKey")],
        }
        # Whoever made the conflict failed in the end: the object was never there, and now it is mine.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "_bucket_seen", True)
            assert store.create("k", b"x") is True
        assert script.seen.count("PUT") == 3

    def test_a_conflict_that_somebody_won_is_existence(store: Store, script: Script) -> None:
        script.answers |= {"PUT": [(409, "ConditionalRequestConflict")], "HEAD": [(200, "")]}
        assert store.create("k", b"x") is False

    def test_a_conflict_that_does_not_end_is_an_outage(store: Store, script: Script) -> None:
        script.answers |= {"PUT": [(409, "ConditionalRequestConflict")], "HEAD": [(404, "")]}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.sleep", lambda _: None)
            patch.setattr(store, "_bucket_seen", True)
            with pytest.raises(StoreUnavailable):
                store.create("k", b"x")

    def test_a_failed_precondition_is_existence(store: Store, script: Script) -> None:
        script.answers |= {"PUT": [(412, "PreconditionFailed")]}
        assert store.create("k", b"x") is False

    def test_a_passing_error_is_tried_again(store: Store, script: Script) -> None:
        script.answers |= {"PUT": [(503, "SlowDown"), (200, "")]}
        assert store.create("k", b"x") is True

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize(
        ("status", "code", "error"),
        [
            (403, "AccessDenied", StoreDenied),
            (401, "Unauthorized", StoreDenied),
            (400, "ExpiredToken", StoreDenied),
            (404, "NoSuchBucket", StoreDenied),
            (301, "PermanentRedirect", StoreDenied),
            (500, "InternalError", StoreUnavailable),
            (503, "SlowDown", StoreUnavailable),
            (429, "TooManyRequests", StoreUnavailable),
        ],
    )
    def test_errors_are_told_apart(
        store: Store, script: Script, call: str, status: int, code: str, error: type[StoreError]
    ) -> None:
        script.answers |= {method: [(status, code)] for method in ("GET", "PUT", "HEAD", "POST", "DELETE")}
        with pytest.raises(error) as caught:
            CALLS[call](store)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500

    @pytest.mark.parametrize("call", CALLS)
    def test_a_bucket_that_is_not_there_is_not_an_empty_one(s3_url: str, call: str) -> None:
        with pytest.raises(StoreDenied, match="the bucket stoker-none does not exist"):
            CALLS[call](open_store("s3://stoker-none/prefix"))

    @pytest.mark.parametrize("call", CALLS)
    def test_nobody_listening_is_an_outage(clean: pytest.MonkeyPatch, call: str) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            clean.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
            with pytest.raises(StoreUnavailable):
                CALLS[call](open_store("s3://bucket"))

    def test_a_server_that_says_nothing_is_an_outage(clean: pytest.MonkeyPatch) -> None:
        clean.setattr(bucket, "_QUICK_TIMEOUT_S", 0.5)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(64)
            clean.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
            store = open_store("s3://bucket")
            for call in CALLS.values():
                with pytest.raises(StoreUnavailable):
                    call(store)

    def test_no_credentials_are_named(script: Script, clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
        clean.setenv("AWS_ENDPOINT_URL", script.answers["endpoint"][0][1])
        clean.setenv("HOME", str(tmp_path))
        clean.delenv("AWS_ACCESS_KEY_ID")
        clean.delenv("AWS_SECRET_ACCESS_KEY")
        # A machine may get its own in a moment; a person has to.
        assert issubclass(NoCredentials, StoreUnavailable) and NoCredentials.exit_code == 2
        with pytest.raises(NoCredentials, match="no AWS credentials"):
            open_store("s3://bucket").get("k")

    def test_a_profile_without_boto3_is_the_users_mistake(clean: pytest.MonkeyPatch) -> None:
        clean.setattr(importlib.util, "find_spec", lambda _: None)
        clean.delenv("AWS_ACCESS_KEY_ID")
        clean.setenv("AWS_PROFILE", "jane")
        with pytest.raises(UserError, match="AWS_PROFILE=jane needs boto3"):
            open_store("s3://bucket")

    def test_a_profile_is_read_by_boto3(script: Script, clean: pytest.MonkeyPatch) -> None:
        def credentials() -> dict[str, object]:
            return {
                "access_key_id": "FROMPROFILE",
                "secret_access_key": "s",
                "token": None,
                "expires_at": None,
            }

        class Boto3:
            Boto3CredentialProvider = staticmethod(lambda: credentials)

        clean.setattr(importlib.util, "find_spec", lambda _: True)
        clean.setattr(importlib, "import_module", lambda _: Boto3)
        clean.delenv("AWS_ACCESS_KEY_ID")
        clean.setenv("AWS_PROFILE", "jane")
        clean.setenv("AWS_ENDPOINT_URL", script.answers["endpoint"][0][1])
        script.answers |= {"PUT": [(200, "")]}
        open_store("s3://bucket").put("k", b"x")
        assert "Credential=FROMPROFILE/" in script.signers[0]

    def test_an_upload_that_was_begun_is_counted(s3_url: str, s3: S3Server) -> None:
        # So that the test below cannot pass because nothing is ever counted.
        bucket = s3_url.removeprefix("s3://").partition("/")[0]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(urllib.request.Request(f"{s3.endpoint}/{bucket}/k?uploads", method="POST"), timeout=30).close()
        assert s3.open_uploads(s3_url) == 1

    def test_a_file_that_changes_while_it_is_sent_is_never_stored(s3_url: str, s3: S3Server, tmp_path: Path) -> None:
        assert_changed_file_is_refused(s3_url, tmp_path, s3.open_uploads)

    def test_large_files_need_little_memory(s3_url: str, tmp_path: Path) -> None:
        assert_large_files_need_little_memory(s3_url, tmp_path)
