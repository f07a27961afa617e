"""A project of Google Cloud's as far as deploying goes, with a bucket in memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial

import pytest
from command_line import Stoker, run
from google.auth.credentials import AnonymousCredentials

from stoker.cli import deploy as command
from stoker.deploy import gcp_bindings, gcp_resources
from stoker.deploy.gcp_entry_point import NAME
from stoker.governor.pass_record import record_pass
from stoker.providers.gce import client
from stoker.testing.memory_store import MemoryStore
from tests.support.google_functions import GoogleProject, google_project

URL, PROJECT, REGION = "gs://bucket/team", "vision-1", "us-central1"
PLAN = gcp_resources.plan_deployment(URL, PROJECT, REGION, "0" * 64, {})


@pytest.fixture
def bucket() -> MemoryStore:
    return MemoryStore(clock=lambda: datetime.now(timezone.utc), url=URL)


@pytest.fixture
def google(bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleProject]:
    with google_project(PROJECT) as made:
        for name, value in made.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
        monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", REGION)
        monkeypatch.setattr(client, "_find_credentials", lambda: (AnonymousCredentials(), PROJECT))
        monkeypatch.setattr(command, "opened_store", lambda: bucket)
        monkeypatch.setattr(gcp_bindings, "_PAUSE_S", 0.01)
        # As the function does when it is called.
        made.pushed = lambda: record_pass(bucket, NAME, 0, lambda: 0.0)
        yield made


@pytest.fixture
def stoker(google: GoogleProject, capsys: pytest.CaptureFixture[str]) -> Stoker:
    """The command line, with this project and this bucket."""
    return partial(run, capsys)
