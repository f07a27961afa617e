"""A container's own role: found as every SDK finds it, without an SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from aws_services import serving

from stoker.cloudapi.aws import container, identity
from stoker.cloudapi.aws.imds import Imds, ImdsError
from stoker.cloudapi.aws.sigv4 import Credentials

ROLE = {"AccessKeyId": "AKIA", "SecretAccessKey": "hush", "Token": "t", "Expiration": "2030-01-01T00:00:00Z"}


class Service:
    answer: tuple[int, str] = (200, json.dumps(ROLE))
    token = "sesame"


@pytest.fixture
def service() -> Iterator[tuple[Service, str]]:
    told = Service()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

        def do_GET(self) -> None:
            right = self.path == "/role?id=1" and self.headers.get("Authorization") == told.token
            status, text = told.answer if right else (403, "{}")
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

    with serving(Handler) as endpoint:
        yield told, f"{endpoint}/role?id=1"


def test_it_is_found_before_the_machine_s(service: tuple[Service, str], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("sesame\n")
    environ = {
        container.FULL: service[1],
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        "AWS_REGION": "eu-west-1",
        # A container is no machine.
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    }
    found = identity.find(environ)
    assert found.credentials == Credentials("AKIA", "hush", "t")
    assert (found.region, found.machine) == ("eu-west-1", True)
    # Keys that somebody set are meant.
    named = identity.find({**environ, "AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "own"})
    assert named.credentials.key == "mine"


@pytest.mark.parametrize("answer", [(500, "{}"), (200, "no json"), (200, "[]"), (200, "{}")])
def test_what_cannot_be_read_is_told(service: tuple[Service, str], answer: tuple[int, str]) -> None:
    told, endpoint = service
    told.answer = answer
    role = container.metadata({container.FULL: endpoint, "AWS_CONTAINER_AUTHORIZATION_TOKEN": "sesame"})
    with pytest.raises(ImdsError, match="the container's credentials"):
        role.credentials()


def test_nobody_there() -> None:
    with pytest.raises(ImdsError, match="are not available"):
        container.metadata({container.FULL: "http://127.0.0.1:9/role"}).credentials()
    with pytest.raises(ImdsError):
        container.metadata(
            {container.FULL: "http://127.0.0.1:9/x", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/no"}
        ).credentials()


def test_elsewhere_the_machine_is_asked() -> None:
    assert type(container.metadata({})) is Imds
