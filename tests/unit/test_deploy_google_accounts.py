"""Accounts that jobs give their machines on Google Cloud: bound while they are named."""

from __future__ import annotations

from typing import Any

import pytest
from deployed_project import PLAN, PROJECT, Stoker, bucket, google, stoker

from stoker.governor import deployment_record
from stoker.model import keys
from stoker.testing.memory_store import MemoryStore
from tests.support.google_functions import GoogleProject, Refused

pytestmark = pytest.mark.slow

__all__ = ["bucket", "google", "stoker"]

DEPLOY = ("deploy", "gcp", "-y")
VISION = f"vision@{PROJECT}.iam.gserviceaccount.com"
WHERE = f"projects/{PROJECT}/serviceAccounts/{VISION}"


def members(google: GoogleProject, where: str) -> set[str]:
    held = google.policies.get(where, {"bindings": []})["bindings"]
    return {f"{each['role']} {member}" for each in held for member in each["members"]}


def test_an_account_is_acted_as_and_publishes_while_it_is_named(
    google: GoogleProject, bucket: MemoryStore, stoker: Stoker
) -> None:
    google.things[WHERE] = {"name": WHERE}
    assert stoker(*DEPLOY, "--service-account", "vision")[0] == 0
    assert stoker(*DEPLOY)[0] == 0
    found = deployment_record.find(bucket)
    assert found is not None and found.identities == (VISION,)
    assert members(google, WHERE) == {f"roles/iam.serviceAccountUser serviceAccount:{PLAN.account}"}
    publisher = f"roles/pubsub.publisher serviceAccount:{VISION}"
    assert publisher in members(google, PLAN.topic)

    code, _, said = stoker(*DEPLOY, "--no-service-account")
    assert code == 0 and f"dropped: {VISION}\n" in said
    assert members(google, WHERE) == set()
    assert members(google, PLAN.topic) == {
        f"roles/pubsub.publisher serviceAccount:stoker-node@{PROJECT}.iam.gserviceaccount.com"
    }


def test_the_usual_account_is_not_given_up_with_the_others(
    google: GoogleProject, bucket: MemoryStore, stoker: Stoker
) -> None:
    assert stoker(*DEPLOY)[0] == 0
    before = members(google, PLAN.topic)
    assert stoker(*DEPLOY, "--service-account", "stoker-node")[0] == 0
    assert stoker(*DEPLOY, "--no-service-account")[0] == 0
    assert members(google, PLAN.topic) == before
    node = f"projects/{PROJECT}/serviceAccounts/stoker-node@{PROJECT}.iam.gserviceaccount.com"
    assert f"roles/iam.serviceAccountUser serviceAccount:{PLAN.account}" in members(google, node)


def test_an_account_of_a_project_that_was_closed_since_is_no_dead_end(
    google: GoogleProject, bucket: MemoryStore, stoker: Stoker
) -> None:
    class Closed(dict[str, Refused]):
        """What is refused stays so."""

        def pop(self, key: str, *default: Any) -> Any:
            return self.get(key, *default)

    closed = Closed({f"POST /v1/{WHERE}:getIamPolicy": Refused(403, "PERMISSION_DENIED")})
    google.things[WHERE] = {"name": WHERE}
    assert stoker(*DEPLOY, "--service-account", VISION)[0] == 0
    google.trouble = closed
    code, _, said = stoker(*DEPLOY, "--no-service-account")
    assert code == 0 and "perhaps still bound" in said
    found = deployment_record.find(bucket)
    assert found is not None and found.identities == ()
    google.trouble = {}
    assert stoker(*DEPLOY, "--service-account", VISION)[0] == 0
    google.trouble = closed
    assert stoker("deploy", "gcp", "--remove", "-y")[0] == 0 and not list(bucket.list(keys.DEPLOYED))


def test_what_is_removed_leaves_no_binding(google: GoogleProject, bucket: MemoryStore, stoker: Stoker) -> None:
    google.things[WHERE] = {"name": WHERE}
    assert stoker(*DEPLOY, "--service-account", VISION)[0] == 0
    assert stoker("deploy", "gcp", "--remove", "--no-service-account", "-y")[0] == 0, "what is on record counts"
    assert members(google, WHERE) == set() and not list(bucket.list(keys.DEPLOYED))


def test_an_account_that_is_not_there_is_told_before_anything_is_made(
    google: GoogleProject, bucket: MemoryStore, stoker: Stoker
) -> None:
    code, _, said = stoker(*DEPLOY, "--service-account", "vision")
    assert code == 2 and f"--service-account {VISION}: is not there, and nothing was made" in said
    assert not list(bucket.list(keys.DEPLOYED))
    code, _, said = stoker(*DEPLOY, "--service-account", "default")
    assert (code, said) == (2, "stoker: --service-account: 'default' is no account; give its address\n")
