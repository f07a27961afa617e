"""Whom Cloud Storage is asked as. Runs where nothing but loopback can be reached."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stoker.model.errors import NoCredentials, StoreDenied, StoreUnavailable, UserError
from stoker.store import bucket
from stoker.store.base import open_store
from tests.support.gcs import DEAD_ADDRESS, GcsServer
from tests.support.servers import isolated, pytest_isolated

TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"


@dataclass
class Giver:
    """Gives tokens: as the metadata server of a machine, and as Google's exchange for other tokens."""

    address: str = ""
    token: str = field(default_factory=lambda: f"ya29.{uuid.uuid4().hex}")
    status: int = 200
    lifetime_s: int = 3600
    asked: list[str] = field(default_factory=list)
    forms: list[dict[str, list[str]]] = field(default_factory=list)


def handler(giver: Giver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            giver.asked.append(urllib.parse.urlsplit(self.path).path)
            giver.forms.append(urllib.parse.parse_qs(body.decode()))
            good = self.command == "POST" or self.headers.get("Metadata-Flavor") == "Google"
            said = {"access_token": giver.token, "expires_in": giver.lifetime_s, "token_type": "Bearer"}
            told = json.dumps(said | {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}).encode()
            self.send_response(giver.status if good else 403)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def giver() -> Iterator[Giver]:
    made = Giver()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    made.address = f"127.0.0.1:{server.server_address[1]}"
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture
def no_file(gcs: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person without credentials. Answers the home."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.delenv("CLOUDSDK_CONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(bucket, "_RETRIES", 1)
    return tmp_path


def external(giver: Giver, folder: Path) -> Path:
    (folder / "subject").write_text("a token of another cloud")
    path = folder / "external.json"
    said = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"http://{giver.address}/v1/token",
        "credential_source": {"file": str(folder / "subject")},
    }
    path.write_text(json.dumps(said))
    return path


if not isolated():

    def test_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)

else:
    # ── On a machine ──────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("variable", ["GCE_METADATA_HOST", "GCE_METADATA_IP"])
    def test_a_machine_asks_its_metadata_server(
        no_file: Path, gcs: GcsServer, gcs_url: str, giver: Giver, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        monkeypatch.setenv(variable, giver.address)
        store = open_store(gcs_url)
        with pytest.raises(StoreDenied, match="AuthenticationRequired"):
            store.put("k", b"x")
        gcs.allow(giver.token)
        store.put("k", b"x")
        assert store.head("k") is not None
        # Once, for an hour.
        assert set(giver.asked) == {TOKEN_PATH} and len(giver.asked) == 1

    def test_a_token_that_ends_soon_is_fetched_anew(
        no_file: Path, gcs: GcsServer, gcs_url: str, giver: Giver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GCE_METADATA_HOST", giver.address)
        giver.lifetime_s = 60
        store = open_store(gcs_url)
        gcs.allow(giver.token)
        store.put("k", b"first")
        gcs.revoke(giver.token)
        giver.token = f"{giver.token}-second"
        gcs.allow(giver.token)
        deadline = time.monotonic() + 30
        while True:
            try:
                return store.put("k", b"second")
            except StoreDenied:
                # Its machine is not asked again and again at the same moment.
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def test_a_machine_without_a_service_account_says_so(
        no_file: Path, gcs_url: str, giver: Giver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GCE_METADATA_HOST", giver.address)
        monkeypatch.setenv("GCE_METADATA_IP", giver.address)
        giver.status = 404
        with pytest.raises(NoCredentials, match="this machine has no service account"):
            open_store(gcs_url).get("k")

    # ── A person's ────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_no_credentials_are_one_clear_line(no_file: Path, gcs_url: str) -> None:
        # A machine may get its own in a moment; a person has to.
        assert issubclass(NoCredentials, StoreUnavailable) and NoCredentials.exit_code == 2
        with pytest.raises(NoCredentials) as caught:
            open_store(gcs_url).get("k")
        assert "\n" not in str(caught.value)
        assert "no Google credentials; `gcloud auth application-default login`" in str(caught.value)
        assert "set GOOGLE_APPLICATION_CREDENTIALS" in str(caught.value)

    @pytest.mark.parametrize("folder", ["CLOUDSDK_CONFIG", "HOME"])
    def test_what_gcloud_wrote_is_found(
        no_file: Path, gcs: GcsServer, gcs_url: str, monkeypatch: pytest.MonkeyPatch, folder: str
    ) -> None:
        place = no_file / ".config/gcloud" if folder == "HOME" else no_file / "elsewhere"
        if folder != "HOME":
            monkeypatch.setenv(folder, str(place))
        place.mkdir(parents=True)
        key = Path(gcs.env["GOOGLE_APPLICATION_CREDENTIALS"]).read_text()
        (place / "application_default_credentials.json").write_text(key)
        store = open_store(gcs_url)
        store.put("k", b"x")
        assert store.head("k") is not None

    def test_a_login_that_cannot_be_renewed_is_not_lack_of_one(no_file: Path, gcs_url: str) -> None:
        place = no_file / ".config/gcloud"
        place.mkdir(parents=True)
        login = {"type": "authorized_user", "client_id": "i", "client_secret": "hunter2", "refresh_token": "r"}
        (place / "application_default_credentials.json").write_text(json.dumps(login))
        # Google itself cannot be reached from here.
        with pytest.raises(StoreUnavailable, match="Google did not answer to your login") as caught:
            open_store(gcs_url).get("k")
        assert not isinstance(caught.value, NoCredentials)
        assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)

    @pytest.mark.parametrize("text", [None, "", "[]", "{}", "not JSON", '{"type": 3}'])
    def test_a_file_that_holds_none_is_the_users_mistake(
        no_file: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
    ) -> None:
        path = no_file / "key.json"
        if text is not None:
            path.write_text(text)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "~/key.json")
        with pytest.raises(UserError) as caught:
            open_store("gs://bucket")
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)

    def test_a_key_that_is_no_key_is_the_users_mistake(
        no_file: Path, gcs: GcsServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = json.loads(Path(gcs.env["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
        (no_file / "key.json").write_text(json.dumps(said | {"private_key": "nonsense"}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(no_file / "key.json"))
        with pytest.raises(UserError, match="gs://bucket cannot be opened"):
            open_store("gs://bucket")

    # ── Through google-auth ───────────────────────────────────────────────────────────────────────────────────────────

    def test_workload_identity_goes_through_google_auth(
        no_file: Path, gcs: GcsServer, gcs_url: str, giver: Giver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(external(giver, no_file)))
        gcs.allow(giver.token)
        store = open_store(gcs_url)
        assert giver.asked == []
        store.put("k", b"x")
        assert store.head("k") is not None
        assert giver.asked == ["/v1/token"]
        assert giver.forms[0]["subject_token"] == ["a token of another cloud"]

    def test_an_exchange_that_is_refused_is_one_clear_line(
        no_file: Path, gcs_url: str, giver: Giver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(external(giver, no_file)))
        giver.status = 400
        with pytest.raises(NoCredentials, match=r"Google's credentials cannot be used: .*OAuthError") as caught:
            open_store(gcs_url).get("k")
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 600

    @pytest.mark.parametrize("kind", ["external_account", "impersonated_service_account"])
    def test_without_google_auth_one_line_says_so(
        no_file: Path, giver: Giver, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        path = no_file / "key.json"
        path.write_text(json.dumps({"type": kind}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(UserError, match=rf"type {kind} need google-auth: pip install 'stoker\[gcp\]'"):
            open_store("gs://bucket")

    def test_a_file_that_google_auth_does_not_know_is_the_users_mistake(
        no_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = no_file / "key.json"
        path.write_text(json.dumps({"type": "astrology"}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        with pytest.raises(UserError, match=r"cannot be used as Google credentials: .*astrology") as caught:
            open_store("gs://bucket")
        assert "\n" not in str(caught.value)

    def test_nobody_is_asked_where_nobody_should_be(gcs: GcsServer) -> None:
        assert gcs.env["GCE_METADATA_HOST"] == gcs.env["GCE_METADATA_IP"] == DEAD_ADDRESS

    def test_credentials_that_were_renewed_are_read_again(
        gcs_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A governor lives for months; a key, or a login, does not."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        good = json.loads(Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        old = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        mine = tmp_path / "key.json"
        mine.write_text(json.dumps(good | {"private_key": old}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(mine))
        store = open_store(gcs_url)
        for _ in range(2):
            with pytest.raises(StoreDenied):
                store.head("a")
        mine.write_text(json.dumps(good))
        with pytest.raises(StoreUnavailable, match="credentials have changed"):
            store.head("a")
        assert store.head("a") is None and store.create("a", b"1")
