"""What Compute Engine lists, where some of it gives no answer, or is another's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stoker.model.errors import Transient
from stoker.model.resources import Resources
from stoker.providers.gce import leftovers, offers, operations
from stoker.providers.gce.client import Api
from stoker.providers.gce.places import ProjectRegion
from stoker.providers.gce.provider import GceProvider
from stoker.providers.registry import Context

PLACE = ProjectRegion("vision-1", "us-central1")
HERE, THERE, ELSEWHERE = "us-central1-a", "us-central1-b", "europe-west4-a"


class Lists(Api):
    """Answers every list with these things by zone; some zones give no answer."""

    def __init__(
        self, kind: str, found: Mapping[str, list[dict[str, Any]]], silent: tuple[str, ...] = (), warned: str = ""
    ) -> None:
        super().__init__()
        self._page: dict[str, Any] = {
            "items": {f"zones/{zone}": {kind: things} for zone, things in found.items()},
            "unreachables": [f"https://www.googleapis.com/compute/v1/projects/p/zones/{zone}" for zone in silent],
        }
        if warned:
            self._page["items"][f"zones/{warned}"] = {"warning": {"code": "UNREACHABLE"}}
        # What has nothing says so, and has answered.
        self._page["items"]["zones/us-central1-z"] = {"warning": {"code": "NO_RESULTS_ON_PAGE"}}

    def pages(self, path: str, params: Any = None, **_: Any) -> Iterator[Any]:
        yield self._page


def provider(api: Api) -> GceProvider:
    made = GceProvider(Context(store="gs://bucket/team"))
    made._api = api
    return made


@pytest.mark.parametrize("how", [{"silent": (HERE,)}, {"warned": HERE}])
def test_a_zone_that_gives_no_answer_has_no_machines_that_are_gone(how: Any) -> None:
    asked = provider(Lists("instances", {}, **how))
    with pytest.raises(Transient, match=HERE):
        asked.state([f"{HERE}.42"], str(PLACE))
    with pytest.raises(Transient, match=HERE):
        asked.list_instances(str(PLACE))
    with pytest.raises(Transient, match=HERE):
        leftovers.list_leftovers(Lists("disks", {}, **how), "gs://bucket/team", PLACE)


def test_a_zone_elsewhere_hides_nothing() -> None:
    asked = provider(Lists("instances", {}, silent=(ELSEWHERE,)))
    assert asked.list_instances(str(PLACE)) == ()
    assert asked.state([f"{HERE}.42"], str(PLACE)) == {f"{HERE}.42": "unheard-of"}
    # Nor does a neighbour, where nobody asks about it.
    assert provider(Lists("instances", {}, silent=(THERE,))).state([f"{HERE}.42"], str(PLACE))


def test_nothing_on_offer_is_no_verdict_while_a_zone_is_silent() -> None:
    wanted = Resources(provider="gce", region=str(PLACE), machine=("n2-standard-2",), zones=(HERE,))
    there = {THERE: [{"name": "n2-standard-2"}]}
    with pytest.raises(Transient, match=HERE):
        offers.live(Lists("machineTypes", there, silent=(HERE,)), wanted, PLACE)
    assert offers.live(Lists("machineTypes", there), wanted, PLACE) == ()
    # What can be had elsewhere is had.
    both = Resources(provider="gce", region=str(PLACE), machine=("n2-standard-2",))
    found = offers.live(Lists("machineTypes", there, silent=(HERE,)), both, PLACE)
    assert {each.zone for each in found} == {THERE}


def test_an_operation_on_another_machine_is_none_of_ours() -> None:
    told = [
        {"operationType": "insert", "targetId": "7", "operationGroupId": "ours"},
        {"operationType": "insert", "targetId": "8", "operationGroupId": "another"},
    ]
    api = Lists("operations", {HERE: told})
    assert [each["targetId"] for each in operations.in_group(api, "p", "ours")] == ["7"]
    assert [each["targetId"] for each in operations.on_instances(api, "p", {"8": HERE})] == ["8"]
