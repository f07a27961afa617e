"""A project that is not there, or cannot be, is one line: who names it, and where the right ones are listed."""

from __future__ import annotations

import pytest
from google_project import REGION, STORE, Google, connected

from stoker.model.errors import NoSuchResource, UserError
from stoker.model.resources import GceResources, Resources
from stoker.model.spec import Spec
from stoker.providers.gce import check

WRONG = "stoker-tset"


def resources(**gce: str) -> Resources:
    return Resources(provider="gce", region=REGION, machine=("n2-standard-4",), gce=GceResources(**gce))  # type: ignore[arg-type]


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_COMPUTE_REGION", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    return Google()


def test_the_variable_is_blamed_that_names_it(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", WRONG)
    with pytest.raises(NoSuchResource) as raised:
        connected(google).offerings(resources())
    assert raised.value.exit_code == 2
    assert str(raised.value) == (
        f"GOOGLE_CLOUD_PROJECT: there is no project {WRONG}, or none that you may see; "
        "`gcloud projects list` shows yours"
    )
    spec = Spec(name="check", run="true", resources=resources())
    told = {each.name: each for each in check.check_account(connected(google), spec, STORE)}["project"]
    assert told.detail == f"GOOGLE_CLOUD_PROJECT: there is no project {WRONG}, or none that you may see"
    assert told.ok is False and told.fix == "`gcloud projects list` shows yours"


def test_or_the_field_or_the_credentials(google: Google) -> None:
    with pytest.raises(NoSuchResource, match=r"^resources\.gce\.project: there is no project"):
        connected(google).offerings(resources(project=WRONG))
    google.project = WRONG
    with pytest.raises(NoSuchResource, match=r"^your Google credentials: there is no project"):
        connected(google).offerings(resources())
    asked = Resources(provider="gce", region=f"{WRONG}/{REGION}", machine=("n2-standard-4",))
    with pytest.raises(NoSuchResource, match=r"^resources\.region: there is no project"):
        connected(google).offerings(asked)


def test_what_cannot_be_a_project_says_what_can(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "My_Project")
    with pytest.raises(UserError) as raised:
        connected(google).offerings(resources())
    assert str(raised.value) == (
        "CLOUDSDK_CORE_PROJECT: 'My_Project' is no project; a project id is lower-case letters, digits and -; "
        "`gcloud projects list` shows yours"
    )
