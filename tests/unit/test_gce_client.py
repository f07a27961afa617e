"""Google's APIs as the client asks them: errors by code, credentials, repeats, pages, operations."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from stoker.model.errors import (
    AuthDenied,
    InvalidRequest,
    NoCapacity,
    NoSuchResource,
    NotFound,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Transient,
)
from stoker.providers.gce import operations
from stoker.providers.gce.client import Api
from stoker.providers.gce.errors import (
    AlreadyExists,
    ResourceInUse,
    as_invalid_request,
    operation_error,
    response_error,
)
from tests.support.servers import isolated, pytest_isolated

OPERATION = "/compute/v1/projects/p/zones/z/operations/op"


def body(reason: str, message: str = "no") -> dict[str, Any]:
    return {"error": {"code": 0, "message": message, "errors": [{"reason": reason, "message": message}]}}


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "invalid", InvalidRequest),
        (400, "resourceInUseByAnotherResource", ResourceInUse),
        (400, "resourceNotReady", ResourceInUse),
        (401, "authError", Transient),
        (400, "required", InvalidRequest),
        (403, "dailyLimitExceeded", Throttled),
        (409, "conflict", Transient),
        (403, "forbidden", AuthDenied),
        (403, "accessNotConfigured", AuthDenied),
        (403, "quotaExceeded", QuotaExceeded),
        (403, "rateLimitExceeded", Throttled),
        (404, "notFound", NotFound),
        (409, "alreadyExists", AlreadyExists),
        (429, "somethingNew", Throttled),
        (418, "somethingNew", InvalidRequest),
        (500, "somethingNew", Transient),
        (503, "backendError", Transient),
    ],
)
def test_a_refused_request(status: int, reason: str, kind: type[ProviderError]) -> None:
    assert type(response_error("n1-standard-1", status, body(reason))) is kind


def test_an_answer_that_is_none_of_googles() -> None:
    assert type(response_error("x", 502, "<html>")) is Transient
    assert type(response_error("x", 403, {})) is AuthDenied


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", 503, NoCapacity),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 503, NoCapacity),
        ("REGION_RESOURCE_POOL_EXHAUSTED_SOON", 503, NoCapacity),
        ("VM_MIN_COUNT_NOT_REACHED", 503, NoCapacity),
        ("QUOTA_EXCEEDED", 403, QuotaExceeded),
        ("PERMISSIONS_ERROR", 403, AuthDenied),
        ("RESOURCE_NOT_FOUND", 404, NotFound),
        ("RESOURCE_ALREADY_EXISTS", 409, AlreadyExists),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", 403, Throttled),
        ("INTERNAL_ERROR", 500, Transient),
        ("SOMETHING_NEW", 400, InvalidRequest),
        ("SOMETHING_NEW", 0, Transient),
    ],
)
def test_a_failed_operation(code: str, status: int, kind: type[ProviderError]) -> None:
    found = operation_error(
        "n1", {"error": {"errors": [{"code": code, "message": "no"}]}, "httpErrorStatusCode": status}
    )
    assert type(found) is kind
    assert operation_error("n1", {"status": "DONE"}) is None


def test_a_gang_that_came_short_tells_why() -> None:
    errors = [{"code": "VM_MIN_COUNT_NOT_REACHED", "message": "1 of 2"}, {"code": "QUOTA_EXCEEDED", "message": "CPUS"}]
    found = operation_error("n1", {"error": {"errors": errors}, "httpErrorStatusCode": 400})
    assert isinstance(found, QuotaExceeded) and "CPUS" in str(found)


def test_what_a_person_named_is_named_to_them() -> None:
    gone = "The resource 'projects/debian-cloud/global/images/family/debian-99' was not found"
    assert str(response_error("n1", 404, body("notFound", gone))).startswith("resources.image: ")
    assert "`stoker check gce`" in str(response_error("n1", 403, body("quotaExceeded", "CPUS")))
    nobody = response_error("/compute/v1/projects/x", 404, body("notFound", "The resource 'projects/x' was not found"))
    assert str(nobody).startswith("resources.gce.project: ")
    denied = response_error(
        "n1", 403, body("forbidden", "Required 'compute.instances.create' permission for 'projects/x'")
    )
    assert isinstance(denied, AuthDenied) and str(denied).startswith("n1: Required 'compute.instances.create'")


def test_what_no_zone_has_is_told_apart_from_what_another_may_have() -> None:
    """The one ends a job at once; the other leads to the next offering."""
    network = response_error("n1", 400, body("invalid", "'projects/p/global/networks/x' cannot be found"))
    machine = response_error(
        "n1", 400, body("invalid", "'projects/p/zones/z/machineTypes/n9' does not exist in zone z")
    )
    assert type(network) is NoSuchResource and "`stoker check gce`" in str(network)
    assert type(machine) is InvalidRequest
    reserved = response_error("n1", 400, body("invalid", "'projects/p/zones/z/reservations/block-7' does not exist"))
    assert type(reserved) is InvalidRequest and str(reserved).startswith("resources.gce.reservation: ")
    # What is looked for and not found is an answer; a launch that names it is at fault.
    image = response_error("n1", 404, body("notFound", "'projects/p/global/images/family/f' was not found"))
    assert type(image) is NotFound and type(as_invalid_request(image)) is NoSuchResource


# ── Over the wire ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Google:
    """Answers what it is told to, in turn, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        # Its clock, where it is not this computer's.
        self.date = ""
        google = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = urlsplit(self.path).path
                if path == "/token":
                    assert parse_qs(data.decode())["grant_type"]
                    return self.reply(200, {"access_token": "secret", "expires_in": 3600, "token_type": "Bearer"})
                google.asked.append((self.command, self.path, self.headers.get("Authorization", "")))
                left = google.answers[self.command, path]
                return self.reply(*(left.pop(0) if len(left) > 1 else left[0]))

            do_GET = do_POST = do_DELETE = handle_one

            def date_time_string(self, timestamp: float | None = None) -> str:
                return google.date or super().date_time_string(timestamp)

            def reply(self, status: int, told: Any) -> None:
                data = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


def key_file(path: Path, endpoint: str) -> Path:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    told = {
        "type": "service_account",
        "project_id": "of-the-key",
        "private_key_id": "1",
        "private_key": pem,
        "client_email": "me@of-the-key.iam.gserviceaccount.com",
        "token_uri": f"{endpoint}/token",
    }
    path.write_text(json.dumps(told))
    return path


if isolated():

    @pytest.fixture
    def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
        found = Google()
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", f"{found.endpoint}/compute/v1/")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file(tmp_path / "key.json", found.endpoint)))
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"):
            monkeypatch.delenv(name, raising=False)
        yield found
        found.server.shutdown()

    def test_credentials_are_found_and_sent(google: Google) -> None:
        google.answers["GET", "/compute/v1/projects/p"] = [(200, {"name": "p"})]
        api = Api()
        assert api.get("/compute/v1/projects/p") == {"name": "p"}
        assert google.asked == [("GET", "/compute/v1/projects/p", "Bearer secret")]
        assert api.default_project() == "of-the-key"
        assert api.identity() == "me@of-the-key.iam.gserviceaccount.com"

    def test_its_clock_is_that_of_the_last_answer(google: Google) -> None:
        """This computer's may be off by any time: what Google dates is compared with Google's."""
        path = "/compute/v1/projects/p"
        google.answers["GET", path] = [(200, {}), (404, {}), (200, {})]
        api = Api()
        assert abs((api.now() - datetime.now(timezone.utc)).total_seconds()) < 60
        google.date = "Thu, 01 Jan 2026 12:00:00 GMT"
        api.get(path)
        noon = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
        assert noon <= api.now() < noon + timedelta(minutes=5)
        google.date = "Thu, 01 Jan 2026 14:00:00 GMT"
        with pytest.raises(NotFound):
            api.get(path)
        assert api.now() >= noon + timedelta(hours=2)
        google.date = "soon"
        api.get(path)
        assert noon + timedelta(hours=2) <= api.now() < noon + timedelta(hours=3)

    def test_a_login_that_names_nobody_is_told_as_what_it_is(
        google: Google, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        login = tmp_path / "application_default_credentials.json"
        told = {"type": "authorized_user", "client_id": "x", "client_secret": "x", "refresh_token": "x"}
        login.write_text(json.dumps(told))
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        assert Api().identity() == f"a person's login (application default credentials), from {login}"

    def test_without_credentials_one_line_says_so(
        google: Google, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
        with pytest.raises(Transient, match="no Google credentials here; `gcloud auth application-default login`"):
            Api().get("/compute/v1/projects/p")
        assert google.asked == []

    def test_what_may_be_repeated_is(google: Google) -> None:
        google.answers["GET", "/a"] = [(503, {}), (500, {}), (200, {"ok": 1})]
        google.answers["POST", "/a"] = [(503, {}), (200, {})]
        assert Api().get("/a") == {"ok": 1}
        with pytest.raises(Transient):
            Api().send("POST", "/a", {})
        assert [method for method, _, _ in google.asked] == ["GET"] * 3 + ["POST"]

    def test_nobody_answers(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "http://127.0.0.1:9/compute/v1/")
        with pytest.raises(Transient, match=r"127\.0\.0\.1:9 does not answer"):
            Api().get("/a", {})

    def test_every_page_is_read(google: Google) -> None:
        google.answers["GET", "/a"] = [(200, {"items": [1], "nextPageToken": "t"}), (200, {"items": [2]})]
        assert [page["items"] for page in Api().pages("/a", {"filter": "x"})] == [[1], [2]]
        assert [url for _, url, _ in google.asked] == ["/a?filter=x", "/a?filter=x&pageToken=t"]

    def test_an_operation_is_waited_for(google: Google) -> None:
        begun = {"status": "PENDING", "selfLink": f"https://www.googleapis.com{OPERATION}"}
        done = {**begun, "status": "DONE", "targetId": "7"}
        google.answers["POST", f"{OPERATION}/wait"] = [(200, {**begun, "status": "RUNNING"}), (200, done)]
        assert operations.wait_until_done(Api(), begun, "n1", 60.0)["targetId"] == "7"
        with pytest.raises(operations.OperationUnfinished):
            operations.wait_until_done(Api(), begun, "n1", 0.0)
        short = {"status": "DONE", "error": {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "dry"}]}}
        with pytest.raises(NoCapacity, match="n1: dry"):
            operations.wait_until_done(Api(), short, "n1", 60.0)

else:

    def test_the_client_alone_with_itself() -> None:
        pytest_isolated(__file__)
