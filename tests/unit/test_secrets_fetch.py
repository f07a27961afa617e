"""Secrets are read where they are kept, with nothing but the standard library; what goes wrong is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import aws_services
import botocore.session
import google_services
import pytest
from secret_services import GoogleVault, Vault, google_vault_service, vault_service

from stoker.cloudapi.google import secrets as google
from stoker.model import secret_refs
from stoker.model.errors import SetupFailed, UserError
from stoker.model.secret_refs import Reference
from stoker.secrets import fetch_secrets
from stoker.secrets.fetch_secrets import fetch, fetch_all

KEY, SECRET = "AKIAEXAMPLE", "the/key+of=somebody"


@pytest.fixture(autouse=True)
def _nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer without credentials of any kind, and without a metadata service."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "CLOUDSDK_", "GCE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # Nobody listens there.
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setattr(fetch_secrets, "_METADATA_PATIENCE_S", 0.5)


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vault]:
    with vault_service(KEY, SECRET) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield made


def read(reference: str) -> str:
    return fetch("secrets.X", reference, os.environ, sleep=lambda _: None)


def problem(reference: str, *, user: bool = True) -> str:
    with pytest.raises(SetupFailed) as failure:
        read(reference)
    text = str(failure.value)
    assert failure.value.user is user, text
    assert text.startswith("secrets.X: ") and "\n" not in text
    return text.removeprefix("secrets.X: ")


# ── References ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_references() -> None:
    assert secret_refs.parse("env") == Reference("env")
    assert secret_refs.parse("env:HF_TOKEN") == Reference("env", "HF_TOKEN")
    assert secret_refs.parse("aws-sm:prod/db#password") == Reference("aws-sm", "prod/db", key="password")
    arn = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:hf-AbCdEf"
    assert secret_refs.parse(f"aws-sm:{arn}#a.b") == Reference("aws-sm", arn, key="a.b")
    assert secret_refs.parse("aws-ssm:/prod/token:3") == Reference("aws-ssm", "/prod/token:3")
    assert secret_refs.parse("gcp-sm:hf@7#key") == Reference("gcp-sm", "hf", "7", "key")
    assert secret_refs.parse("gcp-sm:projects/p/secrets/hf") == Reference("gcp-sm", "projects/p/secrets/hf")
    assert secret_refs.parse("aws-codeartifact:team@123456789012") == Reference(
        "aws-codeartifact", "team", "123456789012"
    )
    assert secret_refs.parse("aws-ecr:eu-west-1") == Reference("aws-ecr", detail="eu-west-1")
    assert secret_refs.parse("gcp-token") == Reference("gcp-token")
    for wrong in (
        "",
        "hunter2",
        "aws-sm:",
        "aws-sm:a b",
        "env:1A",
        "gcp-token:x",
        "ENV",
        "aws-codeartifact:",
        "aws-sm:#x",
    ):
        with pytest.raises(ValueError, match="expected env:NAME") as failure:
            secret_refs.parse(wrong)
        assert not wrong or wrong not in str(failure.value) or wrong in ("aws-sm:", "aws-codeartifact:")


# ── Variables ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_variables() -> None:
    environ = {"HF_TOKEN": "one", "OTHER": "two\udcff", "EMPTY": ""}
    assert fetch_all({"HF_TOKEN": "env", "MINE": "env:OTHER"}, environ) == {"HF_TOKEN": "one", "MINE": "two\udcff"}
    with pytest.raises(SetupFailed, match=r"secrets.A: A is not set in the environment that launched") as failure:
        fetch_all({"A": "env"}, environ)
    assert failure.value.user
    with pytest.raises(SetupFailed, match=r"secrets.EMPTY: is empty"):
        fetch_all({"EMPTY": "env"}, environ)


# ── AWS ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_aws_keeps(vault: Vault) -> None:
    vault.secrets = {"hf/token": "hf_0123", "db": json.dumps({"password": "p w", "port": 5432}), "bin": b"\xff\x00\x01"}
    vault.secrets["raw"] = b"\xffraw"
    vault.parameters = {"/prod/token": "from a parameter"}
    assert read("aws-sm:hf/token") == "hf_0123"
    assert read("aws-sm:db#password") == "p w"
    assert read("aws-sm:db#port") == "5432"
    assert os.fsencode(read("aws-sm:raw")) == b"\xffraw"
    assert read("aws-ssm:/prod/token") == "from a parameter"
    assert problem("aws-sm:bin") == "contains a NUL byte, which a variable cannot; store it as base64"
    assert problem("aws-sm:db#user") == "has no 'user'; it has password, port"
    assert "is not a JSON object" in problem("aws-sm:hf/token#user")


def test_tokens_are_made_anew_each_time(vault: Vault) -> None:
    assert read("aws-ecr") == "ecr-password-1"
    assert read("aws-ecr") == "ecr-password-2"
    assert read("aws-codeartifact:team") == "artifact-token-3 {'domain': 'team'}"
    owned = read("aws-codeartifact:team@123456789012")
    assert owned == "artifact-token-4 {'domain': 'team', 'domain-owner': '123456789012'}"


def test_an_arn_says_its_region(vault: Vault) -> None:
    vault.region = "eu-west-1"
    arn = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:hf-AbCdEf"
    vault.secrets = {arn: "far"}
    assert read(f"aws-sm:{arn}") == "far"
    assert read("aws-ecr:eu-west-1") == "ecr-password-1"


def test_each_service_can_be_elsewhere(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    vault.parameters = {"p": "there"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", vault.endpoint)
    assert read("aws-ssm:p") == "there"


def test_the_requests_are_those_of_the_sdk() -> None:
    """The names, as botocore has them from AWS."""
    session = botocore.session.Session()
    for service, operation, members in (
        ("secretsmanager", "GetSecretValue", {"SecretId"}),
        ("ssm", "GetParameter", {"Name", "WithDecryption"}),
        ("ecr", "GetAuthorizationToken", set()),
    ):
        model = session.get_service_model(service)
        target = f"{model.metadata['targetPrefix']}.{operation}"
        source = Path(sys.modules["stoker.cloudapi.aws.secrets"].__file__ or "").read_text()
        assert f'"{target}"' in source and model.metadata["jsonVersion"] == "1.1"
        assert members <= set(model.operation_model(operation).input_shape.members)
        assert f'"{model.signing_name}", "{model.endpoint_prefix}"' in source
    model = session.get_service_model("codeartifact")
    http = model.operation_model("GetAuthorizationToken").http
    assert http == {"method": "POST", "requestUri": "/v1/authorization-token"}
    shape = model.operation_model("GetAuthorizationToken").input_shape.members
    assert (shape["domain"].serialization["name"], shape["domainOwner"].serialization["name"]) == (
        "domain",
        "domain-owner",
    )


def test_refusals_are_told_at_once_and_silence_is_waited_for(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    vault.secrets = {"a": "value"}
    assert problem("aws-sm:b") == "there is no b in us-east-1; correct the name, or give the ARN"
    vault.trouble = ["400 AccessDeniedException"]
    assert problem("aws-sm:a").startswith("your AWS credentials may not read aws-sm:a: GetSecretValue was answered")
    vault.trouble = ["400 InvalidRequestException"]
    assert "InvalidRequestException" in problem("aws-sm:a")
    vault.trouble = ["400 UnrecognizedClientException"]
    assert problem("aws-sm:a").startswith("AWS does not accept your credentials")
    vault.asked.clear()
    vault.trouble = ["", "500 InternalServiceError", "400 ThrottlingException", "503 x"]
    assert read("aws-sm:a") == "value"
    assert len(vault.asked) == 5
    monkeypatch.setattr(fetch_secrets, "PATIENCE_S", 0.0)
    vault.trouble = [""]
    assert "does not answer" in problem("aws-sm:a", user=False)


def test_a_clock_that_is_wrong_is_made_up_for(vault: Vault) -> None:
    vault.secrets = {"a": "value"}
    vault.ahead = timedelta(hours=3)
    assert read("aws-sm:a") == "value"


def test_credentials_from_files(vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault.secrets = {"a": "value"}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    folder = tmp_path / "home" / ".aws"
    folder.mkdir(parents=True)
    (folder / "credentials").write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    assert problem("aws-sm:a") == "no region is set; set AWS_REGION, or give the ARN"
    (folder / "config").write_text(
        "[default]\nregion = us-east-1\n[profile sso]\nsso_session = x\nregion = us-east-1\n"
    )
    assert read("aws-sm:a") == "value"
    monkeypatch.setenv("AWS_PROFILE", "sso")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert problem("aws-sm:a") == "AWS_PROFILE=sso needs boto3: install it, or set AWS_ACCESS_KEY_ID"
    (folder / "config").write_text("no ini\n")
    assert "cannot be read" in problem("aws-sm:a")


def test_no_credentials_at_all(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setattr(fetch_secrets, "_METADATA_PATIENCE_S", 0.0)
    assert "there are no AWS credentials; set AWS_ACCESS_KEY_ID, or give" in problem("aws-sm:a")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert problem("aws-sm:a").startswith("there are no AWS credentials; set AWS_ACCESS_KEY_ID")


def test_a_machine_reads_with_its_role_and_in_its_own_region(monkeypatch: pytest.MonkeyPatch) -> None:
    role = (aws_services.KEY, aws_services.SECRET, aws_services.TOKEN)
    with aws_services.metadata_service() as metadata, vault_service(*role) as vault:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint)
        monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETSMANAGER", vault.endpoint)
        # Where the bucket is, which says nothing about this machine.
        monkeypatch.setenv("AWS_REGION", "eu-central-1")
        vault.secrets = {"a": "value"}
        assert read("aws-sm:a") == "value"
        metadata.trouble = [503]
        assert read("aws-sm:a") == "value"
        # New credentials are not known everywhere at once.
        vault.trouble = ["400 UnrecognizedClientException"]
        assert read("aws-sm:a") == "value"
        vault.trouble = ["400 AccessDeniedException"]
        text = problem("aws-sm:a")
        assert text.startswith("the machine's role may not read aws-sm:a: ")
        assert text.endswith("; `stoker iam ec2 --secret aws-sm:a` prints the policy that allows it")


# ── Google ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleVault]:
    with google_services.metadata_server() as metadata, google_vault_service(metadata) as vault:
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", vault.endpoint)
        vault.versions = {
            "projects/vision-1/secrets/hf/versions/latest": b"newest",
            "projects/vision-1/secrets/hf/versions/2": b"second",
            "projects/other/secrets/db/versions/latest": b'{"password": "pw"}',
        }
        yield vault


def test_what_google_keeps(machine: GoogleVault) -> None:
    assert read("gcp-sm:hf") == "newest"
    assert read("gcp-sm:hf@2") == "second"
    assert read("gcp-sm:projects/other/secrets/db#password") == "pw"
    assert read("gcp-sm:projects/vision-1/secrets/hf/versions/2") == "second"
    assert read("gcp-token").startswith("ya29.token-")
    assert set(machine.billed) == {None}


def test_google_refuses_or_is_silent(machine: GoogleVault) -> None:
    assert problem("gcp-sm:no") == "there is no no in vision-1; correct the name, or add a version"
    assert problem("gcp-sm:hf@9") == "there is no hf, version 9, in vision-1; correct the name, or add a version"
    machine.trouble = [(403, "PERMISSION_DENIED")]
    text = problem("gcp-sm:hf")
    assert text.startswith("the machine's account may not read gcp-sm:hf: ")
    assert text.endswith("`stoker iam gce --secret gcp-sm:hf` prints the policy that allows it")
    machine.trouble = [(400, "FAILED_PRECONDITION")]
    assert "FAILED_PRECONDITION" in problem("gcp-sm:hf")
    machine.trouble = [(0, ""), (503, "UNAVAILABLE"), (429, "RESOURCE_EXHAUSTED"), (401, "UNAUTHENTICATED")]
    assert read("gcp-sm:hf") == "newest"


def test_a_person_s_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with google_vault_service() as vault:
        vault.tokens = {"ya29.a-person"}
        vault.versions = {"projects/mine/secrets/hf/versions/latest": b"read by a person"}
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", vault.endpoint)
        login = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
        login |= {"quota_project_id": "mine", "token_uri": vault.endpoint}
        path = tmp_path / "adc.json"
        path.write_text(json.dumps(login))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        assert read("gcp-sm:hf") == "read by a person"
        assert read("gcp-token") == "ya29.a-person"
        assert vault.billed == ["mine"]
        assert vault.logins[0]["refresh_token"] == "r"
        vault.login_status = 400
        assert (
            problem("gcp-sm:hf") == "Google no longer accepts your login; run `gcloud auth application-default login`"
        )
        path.write_text(json.dumps({"type": "external_account"}))
        assert "cannot be used as Google credentials" in problem("gcp-sm:hf")
        monkeypatch.setattr("stoker.store.google_accounts._installed", lambda: False)
        assert "need google-auth" in problem("gcp-sm:hf")


def test_no_google_credentials_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_secrets, "_METADATA_PATIENCE_S", 0.0)
    assert "there are no Google credentials; `gcloud auth application-default login`" in problem("gcp-sm:hf")


# ── The rest ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_message_repeats_a_value(vault: Vault) -> None:
    vault.secrets = {"a": "hunter2hunter2", "b": '{"k": "hunter2hunter2"}', "c": b"hunter2hunter2\0"}
    for reference in ("aws-sm:a#k", "aws-sm:b#no", "aws-sm:c"):
        assert "hunter2" not in problem(reference)


def test_nothing_but_the_standard_library_is_imported() -> None:
    code = (
        # What an interpreter has before it runs anything: packages that share a name may be there by a .pth.
        "import sys; before = set(sys.modules);"
        "import stoker.secrets.fetch_secrets, stoker.cloudapi.aws.secrets;"
        "import stoker.cloudapi.aws.identity, stoker.cloudapi.google.secrets;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new & {'boto3', 'google', 'httpx', 'click'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_variable_is_looked_for_before_a_job_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.model.spec import Spec
    from stoker.submit.local_environment import _check_secrets, unmasked

    # Those of other sources are looked for on the machine.
    spec = Spec(name="x", run="true", secrets={"0": "aws-sm:y", "A": "env:MINE", "B": "aws-sm:x"})
    with pytest.raises(UserError, match=r"^secrets.A: MINE is not set in your environment; export it first$"):
        _check_secrets(spec)
    monkeypatch.setenv("MINE", "")
    with pytest.raises(UserError, match=r"^secrets.A: MINE is empty in your environment"):
        _check_secrets(spec)
    monkeypatch.setenv("MINE", "123")
    _check_secrets(spec)
    assert unmasked(spec) == ("secrets.A: is shorter than 4 bytes, and is not masked in the log",)
    monkeypatch.setenv("MINE", "1234")
    assert unmasked(spec) == ()


def asked_again(
    monkeypatch: pytest.MonkeyPatch, trouble: list[Exception], **more: float
) -> tuple[list[float], str | SetupFailed]:
    """The pauses, and what came of it, where each question is answered so and pauses are all that takes time."""
    clock, pauses = [0.0], []

    def answer(_wanted: Reference, _environ: object) -> bytes:
        if trouble:
            raise trouble.pop(0)
        return b"value"

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(fetch_secrets, "_read", answer)
    monkeypatch.setattr(fetch_secrets, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    try:
        return pauses, fetch("secrets.X", "aws-sm:a", {}, sleep=sleep, **more)
    except SetupFailed as error:
        return pauses, error


def test_pauses_grow_up_to_the_longest(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    pauses, value = asked_again(monkeypatch, [fetch_secrets._Later("away") for _ in range(8)])
    assert value == "value"
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert [one.getMessage() for one in caplog.records] == ["secrets.X: away; asking again"] * 8


def test_patience_ends_before_a_pause_that_would_outlast_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, error = asked_again(monkeypatch, [fetch_secrets._Later("away") for _ in range(90)])
    assert isinstance(error, SetupFailed) and str(error) == "secrets.X: away" and not error.user
    assert 110.0 < sum(pauses) < 120.0
    pauses, _ = asked_again(monkeypatch, [fetch_secrets._Later("away") for _ in range(90)], patience_s=1.4)
    assert pauses == [0.2, 0.4]
    pauses, _ = asked_again(monkeypatch, [fetch_secrets._Later("away") for _ in range(90)], patience_s=1.5)
    assert pauses == [0.2, 0.4, 0.8]


def test_what_it_may_be_is_told_after_a_shorter_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = [fetch_secrets._Later("no metadata", 1.0, "set a key") for _ in range(90)]
    pauses, error = asked_again(monkeypatch, list(trouble))
    assert isinstance(error, SetupFailed) and str(error) == "secrets.X: no metadata; set a key" and error.user
    assert pauses == [0.2, 0.4]


def test_what_a_variable_cannot_hold_is_refused() -> None:
    environ = {"TREE": '{"a": "x", "n": 5, "t": {"u": [1]}, "e": ""}', "LIST": "[1]", "NONE": "{}", "WORD": "hunter2"}
    assert fetch("f", "env:TREE#a", environ) == "x"
    assert fetch("f", "env:TREE#n", environ) == "5"
    assert fetch("f", "env:TREE#t", environ) == '{"u": [1]}'
    for reference, told in {
        "env:TREE#no": "has no 'no'; it has a, e, n, t",
        "env:NONE#no": "has no 'no'; it has nothing",
        "env:LIST#a": "is not a JSON object, so it has no 'a'; remove `#a`",
        "env:WORD#a": "is not a JSON object, so it has no 'a'; remove `#a`",
        "env:TREE#e": "is empty; put the secret there",
        "not a reference": "expected ",
    }.items():
        with pytest.raises(SetupFailed) as failed:
            fetch("f", reference, environ)
        assert str(failed.value).startswith(f"f: {told}") and failed.value.user


def test_a_person_that_google_refuses_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    person = google.GoogleIdentity("ya29.x", "mine", machine=False)
    monkeypatch.setattr(google, "find", lambda _environ: person)
    refusals: list[tuple[str, int]] = []

    def access(*_: object) -> bytes:
        status, code = refusals.pop()
        raise google.GoogleError(status, "no", code)

    monkeypatch.setattr(google.SecretManager, "access", access)
    for status, code, told in (
        ("PERMISSION_DENIED", 403, "your Google credentials may not read gcp-sm:hf: no"),
        ("UNAUTHENTICATED", 401, "no"),
        ("NOT_FOUND", 404, "there is no hf in mine; correct the name, or add a version"),
    ):
        refusals.append((status, code))
        assert problem("gcp-sm:hf") == told
    refusals.append(("NOT_FOUND", 404))
    named = "projects/p/secrets/hf"
    assert problem(f"gcp-sm:{named}") == f"there is no {named}; correct the name, or add a version"


@pytest.mark.parametrize("reference", ["gcp-sm:hf", "gcp-token"])
def test_google_that_does_not_answer_who_asks_is_asked_again(monkeypatch: pytest.MonkeyPatch, reference: str) -> None:
    answers = [google.GoogleError("", "no answer"), google.GoogleIdentity("ya29.x", "mine", machine=False)]

    def find(_environ: object) -> google.GoogleIdentity:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(google, "find", find)
    monkeypatch.setattr(google.SecretManager, "access", lambda *_: b"hidden")
    pauses: list[float] = []
    value = fetch("secrets.X", reference, {}, sleep=pauses.append)
    assert value == ("hidden" if reference == "gcp-sm:hf" else "ya29.x") and pauses == [0.2]
    answers.append(google.GoogleError("", "no answer"))
    with pytest.raises(SetupFailed, match=r"^secrets\.X: no answer$") as failed:
        fetch("secrets.X", reference, {}, patience_s=0.0)
    assert not failed.value.user
