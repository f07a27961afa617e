"""Regions of Google Cloud's that are not there: told before anything is made, and no dead end afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deployed_project import PLAN, PROJECT, REGION, Stoker, bucket, google, stoker

from stoker.governor import deployment_record
from stoker.governor.deployment_record import DeploymentRecord
from stoker.model import keys
from stoker.testing.memory_store import MemoryStore
from tests.support.google_functions import GoogleProject

pytestmark = pytest.mark.slow

__all__ = ["bucket", "google", "stoker"]

DEPLOY = ("deploy", "gcp", "-y")
REMOVE = ("deploy", "gcp", "--remove", "-y")
SLIP = "us-centrl1"
# As an older Stoker left it.
HALFWAY = DeploymentRecord(
    "gcp", PLAN.name, SLIP, PLAN.topic, "0" * 64, "me", elsewhere=("europe-wset1",), project=PROJECT, state="making"
)


def test_a_region_that_is_not_there_is_told_before_anything_is_made(
    google: GoogleProject, bucket: MemoryStore, stoker: Stoker
) -> None:
    google.nowhere = (SLIP,)
    code, _, said = stoker(*DEPLOY, "--region", SLIP)
    assert code == 2 and said.count("\n") == 1
    assert f"--region: {SLIP} does not answer, and nothing was made; did you mean us-central1?" in said
    assert not [each for each in google.asked if not each.startswith("GET")]
    assert not list(bucket.list(keys.DEPLOYED))


def test_one_that_is_on_record_is_left_behind(google: GoogleProject, bucket: MemoryStore, stoker: Stoker) -> None:
    deployment_record.write(bucket, HALFWAY)
    google.nowhere = (SLIP, "europe-wset1")
    code, _, said = stoker(*DEPLOY, "--region", REGION)
    assert code == 0 and f"function in {SLIP}: perhaps still there" in said and f"--forget {SLIP} leaves it" in said
    found = deployment_record.find(bucket)
    assert found is not None and found.leaving == ("europe-wset1", SLIP)
    assert stoker(*DEPLOY, "--forget", SLIP, "--forget", "europe-wset1")[0] == 0
    again = deployment_record.find(bucket)
    assert again == replace(found, leaving=())


def test_removing_takes_what_it_can_and_names_the_rest(
    google: GoogleProject, bucket: MemoryStore, stoker: Stoker
) -> None:
    assert stoker(*DEPLOY)[0] == 0
    deployment_record.write(bucket, HALFWAY)
    google.nowhere = (SLIP, "europe-wset1")
    code, _, said = stoker(*REMOVE)
    told = said.splitlines()[-1]
    assert code != 0 and f"locations/{SLIP}/functions/" in told and "--forget REGION" in told
    assert PLAN.topic not in google.things, "what is the project's is gone"
    assert deployment_record.read(bucket, "gcp") is not None
    assert stoker(*REMOVE, "--forget", SLIP, "--forget", "europe-wset1")[0] == 0
    assert not list(bucket.list(keys.DEPLOYED))
