"""Bindings on what others share: our own are as they are wanted, and nobody else's is touched."""

from __future__ import annotations

import pytest
from deployed_project import PLAN, PROJECT, Stoker, bucket, google, stoker

from tests.support.google_functions import GoogleProject

pytestmark = pytest.mark.slow

__all__ = ["bucket", "google", "stoker"]

DEPLOY = ("deploy", "gcp", "-y")
ROLE = f"projects/{PROJECT}/roles/stokerRemover"
OURS = f"serviceAccount:{PLAN.account}"
JANE = "user:jane@example.com"
OLD = {"title": "stoker: forget", "expression": 'resource.name.startsWith("long/ago")'}


def test_what_an_older_one_bound_under_another_condition_goes(google: GoogleProject, stoker: Stoker) -> None:
    """It would be allowed for ever what it was allowed once."""
    old = {"role": ROLE, "members": [OURS, JANE], "condition": OLD}
    other = {"role": "roles/storage.admin", "members": [OURS], "condition": OLD}
    google.policies["b/bucket"] = {"bindings": [old, other], "etag": "0007"}
    assert stoker(*DEPLOY)[0] == 0
    held = google.policies["b/bucket"]["bindings"]
    assert {**old, "members": [JANE]} in held, "a person may have what they like"
    assert other in held, "of a role that nobody here gives, nobody here knows why"
    (ours,) = (each for each in held if each["role"] == ROLE and OURS in each["members"])
    assert ours["condition"] != OLD
    count = len(google.asked)
    assert stoker(*DEPLOY)[0] == 0
    assert google.policies["b/bucket"]["bindings"] == held
    assert not [each for each in google.asked[count:] if each.startswith("PUT /storage/v1/b/bucket/iam")]


def test_what_it_costs_at_rest_is_what_the_pages_say(stoker: Stoker) -> None:
    said = stoker(*DEPLOY)[2]
    assert "At rest it costs about 30 cents a month. `stoker deploy gcp --remove` takes it away" in said
