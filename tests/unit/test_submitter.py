"""As whom a job is submitted: what the cloud of the store tells, and nothing that the submitter writes."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stoker import client, index, log
from stoker.errors import SpecError, UserError
from stoker.jobfile import Job, document
from stoker.policies import write as write_policy
from stoker.providers.gce import labels
from stoker.providers.gce.request import check as check_gce
from stoker.spec import SUBMITTER, Resources, Spec
from stoker.store import Store, open_store
from stoker.submit.identity import local_user, normalised, submitter_of

ROLE = "arn:aws:sts::111122223333:assumed-role/Trainers/jane@example.com"


class Cloud:
    """Answers every request with the same text, and keeps what was asked."""

    def __init__(self) -> None:
        self.answer, self.status = "", 200
        self.asked: list[tuple[dict[str, str], str]] = []
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                cloud.asked.append((dict(self.headers), body))
                self.send_response(cloud.status)
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
    assert normalised(arn) == name
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
    state = log.read(store, job)
    assert state is not None
    return index.read_submission(store, state).spec.tags[SUBMITTER]


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


def test_a_doubt_is_told_where_rules_name_submitters(
    store: Store, monkeypatch: pytest.MonkeyPatch, cloud: Cloud, aws: dict[str, str]
) -> None:
    cloud.status = 503
    for name, value in aws.items():
        monkeypatch.setenv(name, value)
    unknown = submitter_of("s3://bucket")
    monkeypatch.setattr(sys.modules[submitter_of.__module__], "submitter_of", lambda _: unknown)
    with client.prepare_any(job(), store) as prepared:
        assert not [text for text in prepared.told if "submitter" in text]
    write_policy(store, "rules:\n- max_nodes: 1\n  for: {submitter: 'arn:*'}\n", "jane")
    with client.prepare_any(job(), store) as prepared:
        (told,) = [text for text in prepared.told if "submitter" in text]
    assert told == f"AWS did not tell who submits (HTTP 503); rules see {local_user()} as the submitter"


def test_clouds_are_not_told_of_it_as_a_tag() -> None:
    """An account's address is longer than a label of Compute Engine may be."""
    account = "trainer-of-large-models@a-project-with-a-long-name.iam.gserviceaccount.com"
    resources = Resources(provider="gce", machine="n2-standard-4", region="us-central1")
    spec = Spec(name="x", run="true", resources=resources, tags={"team": "nlp", SUBMITTER: account})
    assert spec.written_tags == {"team": "nlp"}
    with pytest.raises(UserError, match="as a label"):
        labels.check(spec.tags)
    labels.check(spec.written_tags)
    check_gce(spec)
    assert document(spec)["tags"] == {"team": "nlp"}
