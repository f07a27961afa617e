"""As whom a job is submitted: what the cloud of the store tells, and nothing that the submitter writes."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stoker import client
from stoker.core.policy_patterns import is_submitter
from stoker.jobfile import Job, document
from stoker.model.errors import SpecError, UserError
from stoker.model.resources import Resources
from stoker.model.spec import SUBMITTER_TAG, Spec
from stoker.policy.versions import write as write_policy
from stoker.providers.gce import labels
from stoker.providers.gce.request import check as check_gce
from stoker.store import job_index, job_log
from stoker.store.base import Store, open_store
from stoker.submit import identity
from stoker.submit.identity import local_user, role_of_session, submitter_of

pytestmark = pytest.mark.slow

ROLE = "arn:aws:sts::111122223333:assumed-role/Trainers/jane@example.com"


class Cloud:
    """Answers every request with the same text, and keeps what was asked."""

    def __init__(self) -> None:
        self.answer, self.status = "", 200
        self.asked: list[tuple[dict[str, str], str]] = []
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
                cloud.asked.append((dict(self.headers), body))
                self.send_response(cloud.status)
                self.send_header("Metadata-Flavor", "Google")
                self.end_headers()
                self.wfile.write(cloud.answer.encode())

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    made = Cloud()
    yield made
    made.close()


@pytest.fixture
def aws(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    variables = {
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL_STS": cloud.url,
    }
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return variables


@pytest.mark.parametrize(
    ("arn", "name"),
    [
        (ROLE, "arn:aws:iam::111122223333:role/Trainers"),
        ("arn:aws-cn:sts::111122223333:assumed-role/R/i-0abc", "arn:aws-cn:iam::111122223333:role/R"),
        ("arn:aws:iam::111122223333:user/team/jane", "arn:aws:iam::111122223333:user/team/jane"),
        ("arn:aws:iam::111122223333:root", "arn:aws:iam::111122223333:root"),
        ("arn:aws:sts::111122223333:federated-user/joe", "arn:aws:sts::111122223333:federated-user/joe"),
    ],
)
def test_aws_tells_who_submits(cloud: Cloud, aws: dict[str, str], arn: str, name: str) -> None:
    cloud.answer = f"<GetCallerIdentityResult><Arn>{arn}</Arn></GetCallerIdentityResult>"
    assert role_of_session(arn) == name
    found = submitter_of("s3://bucket/stoker", aws)
    assert (found.name, found.doubt) == (name, "")
    ((headers, body),) = cloud.asked
    assert "Action=GetCallerIdentity" in body
    assert "/eu-west-1/sts/aws4_request" in headers["Authorization"]


@pytest.mark.parametrize(
    ("answer", "status"), [("", 200), ("<Arn>x</Arn>", 200), ("no", 403), ("<Arn>arn:aws:iam::1:user/a b</Arn>", 200)]
)
def test_one_that_is_not_told_is_never_taken_for_the_clouds(
    cloud: Cloud, aws: dict[str, str], answer: str, status: int
) -> None:
    cloud.answer, cloud.status = answer, status
    found = submitter_of("s3://bucket", aws)
    assert found.name == local_user() and found.name.startswith("os:")
    assert "AWS did not tell" in found.doubt


def test_amazon_is_not_asked_about_anothers_bucket(monkeypatch: pytest.MonkeyPatch, aws: dict[str, str]) -> None:
    del aws["AWS_ENDPOINT_URL_STS"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    found = submitter_of("s3://bucket", aws)
    assert found.name == local_user() and "AWS_ENDPOINT_URL_STS" in found.doubt


def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **fields: str) -> None:
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps(fields))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))


def test_google_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: Cloud) -> None:
    account = "trainer@project.iam.gserviceaccount.com"
    credentials(tmp_path, monkeypatch, type="service_account", client_email=account)
    assert submitter_of("gs://bucket").name == account
    url = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
    credentials(tmp_path, monkeypatch, type="external_account", service_account_impersonation_url=url)
    assert submitter_of("gs://bucket").name == account
    credentials(tmp_path, monkeypatch, type="external_account")
    assert submitter_of("gs://bucket").name == local_user()
    claims = base64.urlsafe_b64encode(json.dumps({"email": "jane@example.com"}).encode()).decode().rstrip("=")
    cloud.answer = json.dumps({"access_token": "x", "id_token": f"e30.{claims}.x"})
    credentials(tmp_path, monkeypatch, type="authorized_user", refresh_token="r", token_uri=f"{cloud.url}/token")
    assert submitter_of("gs://bucket").name == "jane@example.com"
    cloud.answer = json.dumps({"access_token": "x"})
    found = submitter_of("gs://bucket")
    assert found.name == local_user() and "gcloud auth application-default login" in found.doubt


class Wire:
    """Keeps the requests that would go to a cloud, and answers each with the same text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
        self.requests: list[tuple[str, str, bytes]] = []
        self._answer = answer
        monkeypatch.setattr(urllib.request, "urlopen", self)

    def __call__(self, request: urllib.request.Request, timeout: float) -> io.BytesIO:
        assert 0 < timeout < 60, "a submission does not wait for ever"
        assert isinstance(request.data, bytes)
        self.requests.append((request.get_method(), request.full_url, request.data))
        return io.BytesIO(self._answer.encode())


@pytest.mark.parametrize(
    ("more", "url"),
    [
        ({}, "https://sts.eu-west-1.amazonaws.com/"),
        ({"AWS_REGION": ""}, "https://sts.us-east-1.amazonaws.com/"),
        ({"AWS_REGION": "cn-north-1"}, "https://sts.cn-north-1.amazonaws.com.cn/"),
        ({"AWS_ENDPOINT_URL": "https://own/"}, "https://own/"),
        ({"AWS_ENDPOINT_URL": "https://own", "AWS_ENDPOINT_URL_STS": "https://sts.own"}, "https://sts.own/"),
    ],
)
def test_aws_is_asked_in_the_region_or_where_the_person_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aws: dict[str, str], more: dict[str, str], url: str
) -> None:
    del aws["AWS_ENDPOINT_URL_STS"]
    wire = Wire(monkeypatch, f"<Arn>{ROLE}</Arn>")
    none = {"AWS_CONFIG_FILE": str(tmp_path / "none"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    assert submitter_of("s3://bucket", {**aws, **none, **more}).name == role_of_session(ROLE)
    ((method, asked, body),) = wire.requests
    assert (method, asked, body) == ("POST", url, b"Action=GetCallerIdentity&Version=2011-06-15")


def test_without_credentials_aws_is_not_asked(tmp_path: Path, aws: dict[str, str]) -> None:
    none = {"AWS_CONFIG_FILE": str(tmp_path / "none"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    found = submitter_of("s3://bucket", {**none, "AWS_EC2_METADATA_DISABLED": "true"})
    assert found.name == local_user()
    assert found.doubt.startswith("AWS was not asked who submits: there are no AWS credentials")


def test_an_aws_that_does_not_answer_is_told(aws: dict[str, str]) -> None:
    found = submitter_of("s3://bucket", {**aws, "AWS_ENDPOINT_URL_STS": "http://127.0.0.1:1"})
    assert found.name == local_user()
    assert found.doubt.startswith("AWS did not tell who submits (") and "refused" in found.doubt


def test_a_login_of_a_person_is_exchanged_at_google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    claims = base64.urlsafe_b64encode(b'{"email": "jane@example.com"}').decode().rstrip("=")
    wire = Wire(monkeypatch, json.dumps({"id_token": f"e30.{claims}.x"}))
    credentials(tmp_path, monkeypatch, type="authorized_user", client_id="i d", client_secret="s", refresh_token="r")
    assert submitter_of("gs://bucket").name == "jane@example.com"
    ((method, url, body),) = wire.requests
    assert (method, url) == ("POST", "https://oauth2.googleapis.com/token")
    assert body == b"client_id=i+d&client_secret=s&refresh_token=r&grant_type=refresh_token"
    # Google knows nothing of accounts that another's storage takes.
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    found = submitter_of("gs://bucket")
    assert found.name == local_user() and len(wire.requests) == 1
    assert found.doubt.startswith("the bucket is not Google's, and token_uri")


@pytest.mark.parametrize("token", ["e30", "e30.!!.x", "e30.e30.x", "e30.W10.x", 5])
def test_a_token_that_makes_no_sense_names_no_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: object
) -> None:
    Wire(monkeypatch, json.dumps({"id_token": token}))
    credentials(tmp_path, monkeypatch, type="authorized_user", token_uri="https://x")
    found = submitter_of("gs://bucket")
    assert found.name == local_user() and found.doubt.startswith("Google did not tell who submits; ")


@pytest.mark.parametrize(
    ("fields", "doubt"),
    [
        ({"type": "service_account"}, "Google's credentials do not tell who submits"),
        ({"type": "service_account", "client_email": "arn:x@y"}, "Google's credentials do not tell who submits"),
        ({"type": "external_account"}, "Google's credentials of type external_account do not tell who submits"),
    ],
)
def test_credentials_of_google_without_an_account_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], doubt: str
) -> None:
    credentials(tmp_path, monkeypatch, **fields)
    found = submitter_of("gs://bucket")
    assert (found.name, found.doubt) == (local_user(), doubt)


def test_credentials_of_google_that_cannot_be_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials.json").write_text("{")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "credentials.json"))
    found = submitter_of("gs://bucket")
    assert found.name == local_user() and found.doubt.startswith("Google's credentials cannot be read: ")


@pytest.mark.parametrize("variable", ["GCE_METADATA_HOST", "GCE_METADATA_IP"])
def test_a_machine_of_google_submits_as_its_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: Cloud, variable: str
) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    found = submitter_of("gs://bucket")
    assert (found.name, found.doubt) == (local_user(), "there are no Google credentials to tell who submits")
    monkeypatch.setenv(variable, cloud.url.removeprefix("http://"))
    cloud.answer = "machine@project.iam.gserviceaccount.com"
    assert submitter_of("gs://bucket").name == cloud.answer
    cloud.status = 500
    assert submitter_of("gs://bucket").doubt.startswith("Google's metadata server did not tell who submits: ")
    cloud.status = 404
    assert submitter_of("gs://bucket").doubt == "Google's credentials do not tell who submits"


def test_the_board_tells_a_machine_of_google_where_no_variable_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    read = Path.read_text

    def board(path: Path, *args: Any, **kwargs: Any) -> str:
        return "Google Compute Engine\n" if path.name == "product_name" else read(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", board)
    monkeypatch.setattr(identity.Metadata, "get", lambda _self, path: f"asked@{path.rpartition('/')[2]}")
    assert submitter_of("gs://bucket").name == "asked@email"


def test_a_user_without_an_entry_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    assert local_user().startswith("os:987654@")


class Near:
    url, is_local = "gs://bucket", True


class Far(Near):
    is_local = False


def test_without_asking_a_cloud_the_submitter_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials(tmp_path, monkeypatch, type="service_account", client_email="a@b")
    spec = Spec(name="x", run="true", tags={"team": "nlp", SUBMITTER_TAG: "before"})
    for store, offline, tags in (
        (Far, True, {"team": "nlp"}),
        (Far, False, {"team": "nlp", SUBMITTER_TAG: "a@b"}),
        (Near, True, {"team": "nlp", SUBMITTER_TAG: "a@b"}),
    ):
        made, told = identity.with_submitter(spec, store(), offline=offline)  # type: ignore[arg-type]
        assert (made.tags, told) == (tags, ())
    assert identity.with_submitter(spec, Far())[0].tags[SUBMITTER_TAG] == "a@b"  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("")
    return open_store(str(tmp_path / "store"))


def job(**fields: object) -> Job:
    return Job(run="python train.py", code="code", **fields)  # type: ignore[arg-type]


def recorded(store: Store, job: str) -> str:
    state = job_log.read(store, job)
    assert state is not None
    return job_index.read_submission(store, state).spec.tags[SUBMITTER_TAG]


def test_the_user_of_the_computer_is_recorded_and_not_what_variables_say(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "vip")
    submitted = client.submit(job(), store=store)
    assert recorded(store, submitted) == local_user()
    assert "vip" not in local_user()
    # A clone is its submitter's, too, and says nothing of the other's.
    assert recorded(store, client.clone(submitted, store=store)) == local_user()


def test_a_job_file_cannot_name_its_submitter(store: Store) -> None:
    with pytest.raises(SpecError, match=r"tags\.submitter: is what Stoker records"):
        client.submit(job(tags={"submitter": "arn:aws:iam::111122223333:role/Vip"}), store=store)


def test_a_name_exempts_nobody_and_a_submitter_does(store: Store) -> None:
    rule = "rules:\n- max_nodes: 1\n  except: [{%s, until: 2099-01-01, why: x}]\n"
    with pytest.raises(SpecError, match="vip is a name"):
        write_policy(store, rule % "job: vip", "jane")
    write_policy(store, rule % "job: vip-7f3k", "jane")
    for name in ("vip", "vip-7f3k"):
        with pytest.raises(UserError, match="2 nodes are more than 1"):
            client.submit(job(name=name, nodes=2, tags={"job": name, "id": name}), store=store)
    write_policy(store, rule % f"submitter: '{local_user()}'", "jane")
    assert client.submit(job(name="other", nodes=2), store=store)


def test_a_computers_name_makes_nobody_a_submitter_that_the_cloud_names() -> None:
    """Eve calls her computer `corp.com`, and gives the cloud no chance to name her."""
    eve = "os:eve@corp.com"
    for wanted in ("*@corp.com", "*eve*", "/.*@corp\\.com/", "[o]s:*", "?s:*"):
        assert not is_submitter(wanted, eve), wanted
    for wanted in ("*", "os:*", "os:*@corp.com", eve, "/os:.*/", "/^os:eve@.*$/"):
        assert is_submitter(wanted, eve), wanted
    assert is_submitter("*@corp.com", "jane@corp.com")


def test_a_doubt_is_told_where_rules_name_submitters(
    store: Store, monkeypatch: pytest.MonkeyPatch, cloud: Cloud, aws: dict[str, str]
) -> None:
    cloud.status = 503
    for name, value in aws.items():
        monkeypatch.setenv(name, value)
    unknown = submitter_of("s3://bucket")
    monkeypatch.setattr(sys.modules[submitter_of.__module__], "submitter_of", lambda _: unknown)
    with client.prepare_any(job(), store) as prepared:
        assert not [text for text in prepared.warnings if "submitter" in text]
    write_policy(store, "rules:\n- max_nodes: 1\n  for: {submitter: 'arn:*'}\n", "jane")
    with client.prepare_any(job(), store) as prepared:
        (told,) = [text for text in prepared.warnings if "submitter" in text]
    assert told == f"AWS did not tell who submits (HTTP 503); rules see {local_user()} as the submitter"


def test_clouds_are_not_told_of_it_as_a_tag() -> None:
    """An account's address is longer than a label of Compute Engine may be."""
    account = "trainer-of-large-models@a-project-with-a-long-name.iam.gserviceaccount.com"
    resources = Resources(provider="gce", machine="n2-standard-4", region="us-central1")
    spec = Spec(name="x", run="true", resources=resources, tags={"team": "nlp", SUBMITTER_TAG: account})
    assert spec.written_tags == {"team": "nlp"}
    with pytest.raises(UserError, match="as a label"):
        labels.check(spec.tags)
    labels.check(spec.written_tags)
    check_gce(spec)
    assert document(spec)["tags"] == {"team": "nlp"}
