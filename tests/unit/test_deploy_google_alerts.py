"""A governor on Google Cloud is watched by alert policies, and `stoker deploy status` shows how it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deployed_project import PLAN, PROJECT, REGION, Stoker, bucket, google, stoker

from stoker.deploy import gcp_alerts
from stoker.governor import deployment_record
from stoker.testing.memory_store import MemoryStore
from tests.support.google_functions import GoogleProject, Refused

pytestmark = pytest.mark.slow

__all__ = ["bucket", "google", "stoker"]

KINDS = ["errors", "refused", "silent", "undelivered"]
POLICIES = f"projects/{PROJECT}/alertPolicies/"
CHANNELS = f"projects/{PROJECT}/notificationChannels/"
DEPLOY = ("deploy", "gcp", "-y")


def of_kind(google: GoogleProject, start: str) -> list[Any]:
    return [thing for name, thing in google.things.items() if name.startswith(start)]


def test_policies_are_made_once_and_removed_with_the_rest(google: GoogleProject, stoker: Stoker) -> None:
    assert stoker(*DEPLOY)[0] == 0
    assert sorted(each["displayName"] for each in of_kind(google, POLICIES)) == [
        f"{PLAN.name}-{kind}" for kind in KINDS
    ]
    google.things[f"{POLICIES}999"] = {"name": f"{POLICIES}999", "userLabels": {"stoker": "another"}}
    code, _, said = stoker(*DEPLOY)
    assert code == 0 and "alerts: 4, shown in Cloud Monitoring; --alert mails them" in said
    assert len(of_kind(google, POLICIES)) == 5
    assert stoker("deploy", "gcp", "--remove", "-y")[0] == 0
    assert [each["name"] for each in of_kind(google, POLICIES)] == [f"{POLICIES}999"]


def test_each_policy_watches_this_governor_alone() -> None:
    for body in gcp_alerts.policies(PLAN):
        (condition,) = body["conditions"]
        (how,) = [value for key, value in condition.items() if key.startswith("condition")]
        assert f'"{PLAN.name}"' in how["filter"] or f'"{PLAN.name}-undelivered"' in how["filter"]
        assert int(how["duration"].removesuffix("s")) % 60 == 0
    silent = gcp_alerts.policies(PLAN)[-1]["conditions"][0]["conditionAbsent"]
    assert int(silent["duration"].removesuffix("s")) >= 3 * 15 * 60, "three slow ticks may be missed"


def test_people_are_mailed_and_given_up(google: GoogleProject, bucket: MemoryStore, stoker: Stoker) -> None:
    assert stoker(*DEPLOY, "--alert", "me@example.com", "--alert", "you@example.com")[0] == 0
    mails = {each["labels"]["email_address"]: each["name"] for each in of_kind(google, CHANNELS)}
    assert set(mails) == {"me@example.com", "you@example.com"}
    assert all(set(each["notificationChannels"]) == set(mails.values()) for each in of_kind(google, POLICIES))
    assert stoker(*DEPLOY)[0] == 0, "deploying again keeps them"
    assert len(of_kind(google, CHANNELS)) == 2
    assert stoker(*DEPLOY, "--no-alert", "--alert", "you@example.com")[0] == 0
    assert [each["labels"]["email_address"] for each in of_kind(google, CHANNELS)] == ["you@example.com"]
    there = deployment_record.read(bucket, "gcp")
    assert there is not None and there.alerts == ("you@example.com",)


def test_an_address_that_is_none(stoker: Stoker) -> None:
    code, _, said = stoker(*DEPLOY, "--alert", "nobody")
    assert code == 2 and "--alert: 'nobody' is no address" in said


def test_where_they_cannot_be_made_it_is_said_and_the_governor_is_there(
    google: GoogleProject, bucket: MemoryStore, stoker: Stoker
) -> None:
    google.trouble[f"GET /v3/projects/{PROJECT}/notificationChannels"] = Refused(403, "PERMISSION_DENIED", "no")
    code, _, said = stoker(*DEPLOY)
    assert code == 0 and "alerts: not made, so no message comes when the governor fails" in said
    assert deployment_record.find(bucket) is not None
    code, out, _ = stoker("deploy", "status")
    assert code == 1 and "0 of 4 are there and on; deploy again" in out


def test_a_dry_run_shows_them(stoker: Stoker) -> None:
    code, out, _ = stoker("deploy", "gcp", "--dry-run", "--alert", "me@example.com")
    assert code == 0 and out.count(f"monitoring POST /v3/projects/{PROJECT}/alertPolicies") == 4
    code, out, _ = stoker("deploy", "gcp", "--remove", "--dry-run")
    assert f"monitoring DELETE /v3/projects/{PROJECT}/alertPolicies/*" in out


def test_status_of_one_that_is_well(google: GoogleProject, stoker: Stoker) -> None:
    assert stoker(*DEPLOY, "--alert", "me@example.com")[0] == 0
    code, out, _ = stoker("deploy", "status")
    assert code == 0, out
    assert f"{PLAN.name} on gcp in {REGION}: alive" in out and "4, mailed to me@example.com" in out
    assert "on, every 15 minutes" in out


def test_status_of_one_that_is_not(google: GoogleProject, stoker: Stoker) -> None:
    assert stoker(*DEPLOY)[0] == 0
    google.undelivered = 3
    google.things[PLAN.net]["state"] = "PAUSED"
    google.things[f"{PLAN.place}/functions/{PLAN.name}"] |= {"state": "FAILED", "stateMessages": [{"message": "built"}]}
    code, out, _ = stoker("deploy", "status", "--json")
    (told,) = json.loads(out)
    assert code == 1 and not told["well"]
    bad = {each["what"]: each["text"] for each in told["checks"] if each["state"] == "bad"}
    assert bad == {
        "function": "failed: built",
        "slow clock": "off: lost events are lost; deploy again",
        "undelivered": f"3 in {PLAN.name}-undelivered; the ticks have looked at every job since",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_was_changed_by_hand_is_put_back(google: GoogleProject, stoker: Stoker, kind: str) -> None:
    assert stoker(*DEPLOY)[0] == 0
    (found,) = [each for each in of_kind(google, POLICIES) if each["displayName"] == f"{PLAN.name}-{kind}"]
    found["enabled"] = False
    assert stoker(*DEPLOY)[0] == 0
    assert found["enabled"] is True
