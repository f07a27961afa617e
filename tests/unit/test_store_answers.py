"""What errors of buckets mean, and what clients of buckets are told: without any server."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from obstore.exceptions import GenericError, InvalidPathError, PermissionDeniedError, PreconditionError

from stoker.model.errors import NoCredentials, StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.store import gcs, google_accounts, s3
from stoker.store.base import ObjectChanged, ObjectNamesUnusable
from stoker.store.obstore_errors import first_line, reason, translated

URL = "s3://bucket/prefix"


def answered(status: int, code: str = "", message: str = "", details: str = "") -> GenericError:
    parts = [f"<{name}>{text}</{name}>" for name, text in (("Code", code), ("Message", message)) if text]
    parts += [f"<Details>{details}</Details>"] if details else []
    return GenericError(f"Answered with status code: {status} : <Error>{''.join(parts)}</Error>\n\nDebug source:\nx")


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (answered(404, "NoSuchBucket"), StoreDenied, "the bucket bucket does not exist; check its name, or create it"),
        (PreconditionError("x"), ObjectChanged, f"{URL}: the object was overwritten while it was read"),
        (
            InvalidPathError('Path "a/\x01b": illegal'),
            ObjectNamesUnusable,
            f"{URL}: an object there is called a/\\u0001b, which cannot be the path of a file",
        ),
        (
            InvalidPathError('Path "a//b" contained empty path segment'),
            ObjectNamesUnusable,
            f"{URL}: an object there is called a//b, which cannot be the path of a file",
        ),
        (InvalidPathError("?!"), ObjectNamesUnusable, f"{URL}: an object there is called ?, which cannot be the path"),
        (PermissionDeniedError("not you"), StoreDenied, f"{URL} refused: not you"),
        (answered(400, "Bad", "a  b\nc"), StoreDenied, f"{URL} refused: Bad: a b c"),
        (answered(499, "Bad"), StoreDenied, f"{URL} refused: Bad"),
        (answered(403, "AccessDenied", "no", "joe may not"), StoreDenied, f"{URL} refused: AccessDenied: joe may not"),
        *((answered(code, "Later"), StoreUnavailable, f"{URL} did not answer: Later") for code in (408, 409, 425, 429)),
        (answered(500, "Oops"), StoreUnavailable, f"{URL} did not answer: Oops"),
        (answered(399, "Odd"), StoreUnavailable, f"{URL} did not answer: Odd"),
        (GenericError("connection refused\nmore"), StoreUnavailable, f"{URL} did not answer: connection refused"),
    ],
)
def test_what_an_error_of_a_bucket_means(error: Exception, kind: type[StoreError], told: str) -> None:
    found = translated(error, URL)
    assert type(found) is kind
    assert str(found).startswith(told) and "Debug" not in str(found)


def test_a_reason_is_one_short_line() -> None:
    assert len(reason(answered(400, "Bad", "x" * 1000))) == 300
    assert len(first_line(GenericError("y" * 1000))) == 300
    assert first_line(GenericError("")) == "GenericError"


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("Received redirect without LOCATION", s3.WrongRegion, "is in another region; set AWS_REGION to the bucket's"),
        ("http://169.254.169.254/latest: timed out", NoCredentials, "no AWS credentials; set AWS_ACCESS_KEY_ID"),
        ("http://169.254.170.2/v2: timed out", NoCredentials, "no AWS credentials; set AWS_ACCESS_KEY_ID"),
        ("connection refused", StoreUnavailable, "did not answer: connection refused"),
    ],
)
def test_what_s3_means(text: str, kind: type[StoreError], told: str) -> None:
    store = s3.S3Bucket(URL, quick=None, bulk=None)  # type: ignore[arg-type]
    found = store._translated(GenericError(text))
    assert type(found) is kind and told in str(found) and str(found).startswith(URL)


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("computeMetadata: status code: 404", NoCredentials, "this machine has no service account; give it one"),
        ("computeMetadata: timed out", NoCredentials, "no Google credentials; `gcloud auth application-default login`"),
        ("External GCP credential provider: expired", NoCredentials, "Google's credentials cannot be used: expired; `"),
        ("token request: status code: 400", NoCredentials, "Google no longer accepts your login; `gcloud"),
        ("token request: status code: 499", NoCredentials, "Google no longer accepts your login; `gcloud"),
        ("token request: status code: 500", StoreUnavailable, "Google did not answer to your login: token request"),
        ("token request: timed out", StoreUnavailable, "Google did not answer to your login: token request"),
        ("status code: 401", StoreDenied, "refused"),
        ("connection refused", StoreUnavailable, "did not answer: connection refused"),
    ],
)
def test_what_cloud_storage_means(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: type[StoreError], told: str
) -> None:
    monkeypatch.setattr(gcs, "credentials_stamp", lambda: None)
    store = gcs.GcsBucket("gs://b", lambda: (None, None))  # type: ignore[arg-type, return-value]
    found = store._translated(GenericError(text))
    assert type(found) is kind and told in str(found) and str(found).startswith("gs://b")


@pytest.mark.parametrize("text", ["status code: 401", "token request: x", "External GCP credential provider: x"])
def test_credentials_that_changed_are_read_again_where_google_refuses_them(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    stamps, made = iter(["old", "new", "new", "gone"]), iter([("a", "b"), ("c", "d")])
    monkeypatch.setattr(gcs, "credentials_stamp", lambda: next(stamps))

    def clients() -> Any:
        found = next(made, None)
        if found is None:
            raise UserError("half written")
        return found

    store = gcs.GcsBucket("gs://b", clients)
    found = store._translated(GenericError(text))
    assert type(found) is StoreUnavailable and "have changed, and are used from now on" in str(found)
    assert (store._quick, store._bulk) == ("c", "d")
    for _ in range(2):
        # They did not change again, and then they cannot be read.
        assert "have changed" not in str(store._translated(GenericError(text)))
    assert (store._quick, store._bulk) == ("c", "d")


def test_other_errors_of_google_read_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = iter(["old"])
    monkeypatch.setattr(gcs, "credentials_stamp", lambda: next(stamps))
    store = gcs.GcsBucket("gs://b", lambda: (None, None))  # type: ignore[arg-type, return-value]
    assert "did not answer" in str(store._translated(answered(503, "SlowDown")))


# ── What clients are told ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A person without credentials."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def opened(monkeypatch: pytest.MonkeyPatch, *, region: str | None = None, prefix: str = "p") -> dict[str, Any]:
    """What a client of S3 is made with."""
    made: list[dict[str, Any]] = []

    def make(bucket: str, **options: Any) -> None:
        made.append({"bucket": bucket, **options})

    monkeypatch.setattr(s3, "S3Store", make)
    store = s3.open_s3("b", prefix, region=region)
    assert store.url == (f"s3://b/{prefix}" if prefix else "s3://b")
    quick, bulk = made
    for each in made:
        del each["retry_config"]
        each["allow_http"] = each.pop("client_options")["allow_http"]
    assert quick == bulk
    return quick


def test_a_client_of_s3_asks_amazon_unless_told(bare: pytest.MonkeyPatch) -> None:
    assert opened(bare) == {"bucket": "b", "prefix": "p", "allow_http": False}
    assert opened(bare, region="r", prefix="") == {"bucket": "b", "prefix": None, "region": "r", "allow_http": False}


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize(("address", "plain"), [("http://here", True), ("https://here", False)])
def test_an_endpoint_of_ones_own_has_buckets_in_its_paths(
    bare: pytest.MonkeyPatch, variable: str, address: str, plain: bool
) -> None:
    bare.setenv("AWS_ENDPOINT_URL", "http://another")
    bare.setenv(variable, address)
    made = opened(bare)
    assert (made["endpoint"], made["virtual_hosted_style_request"], made["allow_http"]) == (address, False, plain)


@pytest.mark.parametrize(("value", "plain"), [("1", True), ("TRUE", True), ("yes", True), ("0", False), ("", False)])
def test_plain_http_may_be_allowed(bare: pytest.MonkeyPatch, value: str, plain: bool) -> None:
    bare.setenv("AWS_ALLOW_HTTP", value)
    assert opened(bare)["allow_http"] is plain


def test_the_metadata_server_is_where_every_sdk_looks_for_it(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1/")
    assert opened(bare)["metadata_endpoint"] == "http://127.0.0.1:1"
    # Not where a person has a profile.
    bare.setattr(s3, "_profile_credentials", lambda: "theirs")
    made = opened(bare)
    assert made["credential_provider"] == "theirs" and "metadata_endpoint" not in made


@pytest.mark.parametrize(
    "variable", ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"]
)
def test_profiles_are_not_read_where_there_are_other_credentials(bare: pytest.MonkeyPatch, variable: str) -> None:
    bare.setenv("AWS_PROFILE", "none-of-this-name")
    with pytest.raises(UserError, match=r"^AWS_PROFILE=none-of-this-name gives no credentials"):
        s3._profile_credentials()
    bare.setenv(variable, "x")
    assert s3._profile_credentials() is None


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        (None, ".aws/credentials"),
        (None, ".aws/config"),
        ("AWS_SHARED_CREDENTIALS_FILE", "elsewhere"),
        ("AWS_CONFIG_FILE", "elsewhere"),
    ],
)
def test_files_with_profiles_are_read_by_boto3_where_it_is_there(
    bare: pytest.MonkeyPatch, tmp_path: Path, variable: str | None, name: str
) -> None:
    assert s3._profile_credentials() is None, "there is nothing to read"
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    if variable is not None:
        bare.setenv(variable, str(path))
    assert type(s3._profile_credentials()).__name__ == "Boto3CredentialProvider"
    find = s3.importlib.util.find_spec
    bare.setattr(s3.importlib.util, "find_spec", lambda name: None if name == "boto3" else find(name))
    assert s3._profile_credentials() is None, "without a profile that was asked for, it is no mistake"
    bare.setenv("AWS_PROFILE", "mine")
    with pytest.raises(UserError, match=r"^AWS_PROFILE=mine needs boto3: install it, or set AWS_ACCESS_KEY_ID$"):
        s3._profile_credentials()


def test_files_without_a_profile_that_makes_sense_are_passed_over(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[default\n")
    assert s3._profile_credentials() is None


@pytest.mark.parametrize(
    ("host", "address"),
    [("", ""), (" ", ""), ("here:1", "http://here:1"), ("https://here/", "https://here"), ("http://x", "http://x")],
)
def test_where_cloud_storage_is(bare: pytest.MonkeyPatch, host: str, address: str) -> None:
    bare.setenv("STORAGE_EMULATOR_HOST", host)
    assert gcs.emulator_address() == address


@pytest.mark.parametrize(("host", "plain"), [("", False), ("here:1", True), ("https://here", False)])
def test_a_client_of_cloud_storage_goes_where_it_is(bare: pytest.MonkeyPatch, host: str, plain: bool) -> None:
    bare.setenv("STORAGE_EMULATOR_HOST", host)
    made: list[dict[str, Any]] = []
    bare.setattr(gcs, "GCSStore", lambda bucket, **options: made.append({"bucket": bucket, **options}))
    assert (gcs.open_gcs("b", "p").url, gcs.open_gcs("b", "").url) == ("gs://b/p", "gs://b")
    assert [(each["bucket"], each["prefix"]) for each in made] == [("b", "p")] * 2 + [("b", None)] * 2
    assert all(each["client_options"]["allow_http"] is plain for each in made)
    assert all(each.get("base_url") == (gcs.emulator_address() or None) for each in made)


# ── Google's accounts ─────────────────────────────────────────────────────────────────────────────────────────────────


def write(path: Path, **said: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said))
    return path


def test_credentials_of_google_are_looked_for_in_the_usual_order(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert google_accounts.credentials_file() is None
    assert google_accounts.obstore_options() == {} and google_accounts.credentials_stamp() is None
    name = "application_default_credentials.json"
    usual = write(tmp_path / ".config/gcloud" / name, type="authorized_user")
    assert google_accounts.credentials_file() == usual
    assert google_accounts.obstore_options() == {"application_credentials": str(usual)}
    moved = write(tmp_path / "moved" / name, type="service_account")
    bare.setenv("CLOUDSDK_CONFIG", str(tmp_path / "moved"))
    assert google_accounts.credentials_file() == moved
    assert google_accounts.obstore_options() == {"application_credentials": str(moved)}
    named = write(tmp_path / "named.json", type="service_account")
    bare.setenv("GOOGLE_APPLICATION_CREDENTIALS", "~/named.json")
    assert google_accounts.credentials_file() == named
    stamp = google_accounts.credentials_stamp()
    assert stamp is not None and stamp[0] == str(named)
    os.utime(named, (1, 1))
    assert google_accounts.credentials_stamp() not in (None, stamp)
    named.unlink()
    with pytest.raises(UserError, match=r"there is no file .*/named\.json; name one, or unset it"):
        google_accounts.credentials_file()
    assert google_accounts.credentials_stamp() is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "cannot be read as Google credentials"),
        ("[]", "does not hold Google credentials"),
        ('{"type": 5}', "does not hold Google credentials"),
    ],
)
def test_files_that_hold_no_credentials_are_named(
    bare: pytest.MonkeyPatch, tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "file.json").write_text(text)
    bare.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "file.json"))
    with pytest.raises(UserError, match=f"file.json {told}"):
        google_accounts.obstore_options()


class Server:
    """Keeps what was asked, and answers with one status."""

    def __init__(self) -> None:
        self.status = 200
        self.asked: list[tuple[str, str, bytes]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                server.asked.append((self.command, self.headers["X-Own"], body))
                self.send_response(server.status)
                self.send_header("X-Answer", "yes")
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else b"said")

            do_GET = do_POST = do_HEAD = answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def test_the_wire_for_google_auth_takes_an_error_status_for_an_answer(server: Server) -> None:
    for status in (200, 403):
        server.status = status
        found = google_accounts._send(server.url, "POST", "ä", {"X-Own": "mine"}, timeout=None)
        assert (found.status, found.headers["X-Answer"], found.data) == (status, "yes", b"said")
    google_accounts._send(server.url, body=None)
    assert server.asked == [("POST", "mine", "ä".encode())] * 2 + [("GET", None, b"")]
    address = server.url
    server.close()
    with pytest.raises(Exception, match="does not answer") as away:
        google_accounts._send(address)
    assert type(away.value).__name__ == "TransportError"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (datetime(2030, 1, 1), datetime(2030, 1, 1, tzinfo=timezone.utc)),  # noqa: DTZ001 - as google-auth has them
        (datetime(2030, 1, 1, tzinfo=timezone.utc), datetime(2030, 1, 1, tzinfo=timezone.utc)),
        (None, None),
    ],
)
def test_tokens_of_google_auth_end_in_utc(given: datetime | None, told: datetime | None) -> None:
    tokens = google_accounts.GoogleAuthTokens.__new__(google_accounts.GoogleAuthTokens)
    tokens._lock = threading.Lock()
    refreshed: list[object] = []
    tokens._credentials = SimpleNamespace(token="t", expiry=given, refresh=refreshed.append)
    assert tokens() == {"token": "t", "expires_at": told}
    assert refreshed == [google_accounts._send], "it is renewed each time it is asked for"


@pytest.mark.parametrize("status", [200, 403])
def test_s3_tells_the_region_of_a_bucket_also_where_it_refuses(
    bare: pytest.MonkeyPatch, server: Server, status: int
) -> None:
    bare.setenv("AWS_ENDPOINT_URL_S3", server.url)
    server.status = status
    bare.setattr(s3, "_REGION_HEADER", "X-Answer")
    assert s3.bucket_region("b") == "yes"
    bare.setattr(s3, "_REGION_HEADER", "X-None")
    assert s3.bucket_region("b") is None
    assert {method for method, _, _ in server.asked} == {"HEAD"}
    bare.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    assert s3.bucket_region("b") is None


def test_amazon_is_asked_for_a_bucket_in_the_path(bare: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def away(request: urllib.request.Request, timeout: float) -> None:
        assert 0 < timeout < 60
        asked.append(request.full_url)
        raise urllib.error.URLError("away")

    bare.setattr(urllib.request, "urlopen", away)
    assert s3.bucket_region("with.dots") is None
    assert asked == ["https://s3.amazonaws.com/with.dots"]
