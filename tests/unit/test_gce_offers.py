"""What Compute Engine offers for a job, without a cloud and against its lists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stoker.model.errors import Transient, UserError
from stoker.model.resources import GceResources, Gpus, Resources
from stoker.providers.gce import catalog, offers, prices
from stoker.providers.gce.client import Api
from stoker.providers.gce.places import ProjectRegion

PLACE = ProjectRegion("vision-1", "us-central1")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))


def asked(**fields: Any) -> Resources:
    return Resources(provider="gce", **fields)


class Lists:
    """Compute Engine's lists, in pages of one zone. Filters are read as Google reads them: `eq` matches the whole."""

    def __init__(
        self, types: Mapping[str, list[dict[str, Any]]], cards: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        self.lists: dict[str, dict[str, list[dict[str, Any]]]] = {
            "machineTypes": {zone: [{**each, "zone": zone} for each in found] for zone, found in types.items()},
            "acceleratorTypes": {
                zone: [
                    # Told as a link here, and as a name there.
                    {"name": name, "maximumCardsPerInstance": most, "zone": f"https://x/projects/p/zones/{zone}"}
                    for name, most in found.items()
                ]
                for zone, found in (cards or {}).items()
            },
        }
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.filters = True
        # By what is listed, the zones that give no answer.
        self.silent: dict[str, tuple[str, ...]] = {}

    scoped = Api.scoped

    def pages(self, path: str, params: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self.asked.append((path, dict(params)))
        kind = path.rpartition("/")[2]
        wanted = dict(re.findall(r'\((\w+) eq "([^"]*)"\)', params["filter"]))
        for zone, found in self.lists[kind].items():
            passing = [
                each
                for each in found
                if not self.filters or all(re.fullmatch(wanted[key], each[key]) for key in wanted)
            ]
            part = {kind: passing} if passing else {"warning": {"code": "NO_RESULTS_ON_PAGE"}}
            if zone in self.silent.get(kind, ()):
                part = {"warning": {"code": "UNREACHABLE"}}
            yield {"items": {f"zones/{zone}": part, "regions/us-central1": {}}}


def plain(name: str, **more: Any) -> dict[str, Any]:
    known = catalog.facts(name)
    return {"name": name, "guestCpus": known.cpus or 2, "memoryMb": (known.memory_bytes or 2**31) // 2**20, **more}


class TestOffline:
    def test_machines_times_zones_times_kinds(self) -> None:
        found = offers.offline(asked(machine=("g2-standard-4",)), PLACE)
        assert {(each.zone, each.spot) for each in found} == {
            (f"us-central1-{letter}", spot) for letter in "abc" for spot in (True, False)
        }
        for each in found:
            assert (each.provider, each.region, each.machine) == ("gce", "vision-1/us-central1", "g2-standard-4")
            assert (each.gpu, each.gpus, each.cpus) == ("L4", 1, 4)
            assert each.price_source.startswith("table of 2026-")

    def test_the_cheapest_first_with_prices(self) -> None:
        found = offers.offline(asked(gpus=Gpus("L4", 1)), PLACE)
        assert found[0].spot and found[0].machine == "g2-standard-4"
        assert found[0].price == pytest.approx(0.2818, abs=0.001)
        assert found[0].on_demand_price == pytest.approx(0.7068, abs=0.001)
        known = [each.price for each in found if each.price is not None]
        assert known == sorted(known)

    def test_a_price_that_nobody_knows_is_unknown_and_last(self) -> None:
        found = offers.offline(asked(machine=("g4-standard-48",)), PLACE)
        assert found and all(each.price is None and not each.price_source for each in found)
        here = ProjectRegion("vision-1", "europe-north1")
        assert all(each.price is None for each in offers.offline(asked(machine=("g2-standard-4",)), here))

    def test_zones_that_a_job_names(self) -> None:
        found = offers.offline(asked(gpus=Gpus("L4", 1), zones=("us-central1-f",)), PLACE)
        assert {each.zone for each in found} == {"us-central1-f"}
        with pytest.raises(UserError, match=r"^resources\.zones: us-east1-b is not in us-central1"):
            offers.offline(asked(gpus=Gpus("L4", 1), zones=("us-east1-b",)), PLACE)

    def test_only_where_there_are_such_gpus(self) -> None:
        h200 = asked(gpus=Gpus("H200", 8))
        assert {each.zone for each in offers.offline(h200, PLACE)} == {"us-central1-b"}
        assert offers.offline(h200, ProjectRegion("vision-1", "us-east1")) == ()
        assert "does not offer such a machine in us-east1" in offers.why_none(
            asked(gpus=Gpus("H200", 8), region="us-east1")
        )
        # Who names a machine may know more than the table.
        named = asked(machine=("a3-ultragpu-8g",))
        assert len({each.zone for each in offers.offline(named, ProjectRegion("vision-1", "us-east1"))}) == 3

    def test_a_region_newer_than_the_table(self) -> None:
        found = offers.offline(asked(machine=("e2-standard-4",)), ProjectRegion("vision-1", "mars-north1"))
        assert {each.zone for each in found} == {"mars-north1-a"}

    def test_what_is_never_standard_is_offered_as_such_from_a_reservation_only(self) -> None:
        assert all(each.spot for each in offers.offline(asked(machine=("a3-highgpu-1g",)), PLACE))
        reserved = asked(machine=("a4-highgpu-8g",), gce=GceResources(reservation="block-7"))
        assert {each.spot for each in offers.offline(reserved, PLACE)} == {True, False}

    def test_gpus_that_are_attached(self) -> None:
        found = offers.offline(asked(gpus=Gpus("T4", 1)), PLACE)
        first = next(each for each in found if not each.spot)
        assert first.machine == "n1-standard-4+nvidia-tesla-t4:1"
        assert first.price == pytest.approx(0.19 + 0.35, abs=0.001)

    def test_a_mistake_is_told(self) -> None:
        with pytest.raises(UserError, match=r"Compute Engine has no machine type 'p5\.48xlarge'"):
            offers.offline(asked(machine=("p5.48xlarge",)), PLACE)

    def test_nothing_of_google_is_imported(self) -> None:
        program = """
import sys
from stoker.providers import registry
from stoker.model.resources import Gpus, Resources
provider = registry.connect("gce", registry.Context("gs://bucket", offline=True))
assert provider.offerings(Resources(provider="gce", gpus=Gpus("L4", 1), region="us-central1"))
assert not {"httpx", "google.auth", "boto3"} & set(sys.modules), sorted(sys.modules)
"""
        environ = {**os.environ, "GOOGLE_CLOUD_PROJECT": "vision-1"}
        subprocess.run([sys.executable, "-c", program], check=True, env=environ, timeout=60)


class TestLive:
    def test_one_call_for_what_is_built_in(self) -> None:
        api = Lists({"us-central1-a": [plain("g2-standard-4")], "us-central1-b": [plain("g2-standard-4")]})
        found = offers.live(api, asked(machine=("g2-standard-4", "g2-standard-8")), PLACE)  # type: ignore[arg-type]
        assert {(each.machine, each.zone) for each in found} == {
            ("g2-standard-4", "us-central1-a"),
            ("g2-standard-4", "us-central1-b"),
        }
        ((path, params),) = api.asked
        assert path == "/compute/v1/projects/vision-1/aggregated/machineTypes"
        assert params["filter"] == 'name eq "g2-standard-4|g2-standard-8"'

    def test_attached_gpus_need_both_in_one_zone_and_room_for_them(self) -> None:
        host = [plain("n1-standard-8")]
        api = Lists(
            {f"us-central1-{letter}": host for letter in "abc"},
            {
                "us-central1-a": {"nvidia-tesla-t4": 4},
                "us-central1-b": {"nvidia-tesla-t4": 1},
                "us-central1-f": {"nvidia-tesla-t4": 4},
            },
        )
        found = offers.live(api, asked(machine=("n1-standard-8+nvidia-tesla-t4:2",)), PLACE)  # type: ignore[arg-type]
        assert {each.zone for each in found} == {"us-central1-a"}
        assert {each.machine for each in found} == {"n1-standard-8+nvidia-tesla-t4:2"}
        assert [path.rpartition("/")[2] for path, _ in api.asked] == ["machineTypes", "acceleratorTypes"]

    @pytest.mark.parametrize("silent", ["machineTypes", "acceleratorTypes"])
    @pytest.mark.parametrize("machine", [(), ("n1-standard-8+nvidia-tesla-t4:1",)])
    def test_zones_that_give_no_answer_do_not_have_nothing(self, silent: str, machine: tuple[str, ...]) -> None:
        api = Lists({"us-central1-a": [plain("n1-standard-8")]}, {"us-central1-a": {"nvidia-tesla-t4": 4}})
        api.silent = {silent: ("us-central1-a",)}
        with pytest.raises(Transient, match="us-central1-a cannot be reached now"):
            offers.live(api, asked(gpus=Gpus("T4", 1), machine=machine), PLACE)  # type: ignore[arg-type]
        elsewhere = asked(gpus=Gpus("T4", 1), machine=machine, zones=("us-central1-b",))
        assert offers.live(api, elsewhere, PLACE) == ()  # type: ignore[arg-type]

    def test_larger_machines_are_no_way_around_a_silence_but_for_who_cannot_have_smaller_ones(self) -> None:
        sizes = [plain(f"a3-highgpu-{count}g") for count in (1, 2, 4, 8)]
        api = Lists({"us-central1-a": sizes[3:], "us-central1-b": sizes})
        api.silent = {"machineTypes": ("us-central1-b",)}

        def found(**more: Any) -> set[int]:
            resources = asked(gpus=Gpus("H100", 1), **more)
            return {each.gpus for each in offers.live(api, resources, PLACE)}  # type: ignore[arg-type]

        with pytest.raises(Transient):
            found(spot="prefer")
        assert found(spot="prefer", zones=("us-central1-a",)) == {8}
        # The small ones are sold on spot alone.
        assert found(spot="never") == {8}

    def test_nobody_gets_more_gpus_than_the_plan_had(self) -> None:
        api = Lists({"us-central1-a": [plain("a2-megagpu-16g")]})
        for most, machines in ((None, {"a2-megagpu-16g"}), (16, {"a2-megagpu-16g"}), (1, set())):
            wanted = asked(gpus=Gpus("A100-40GB", 1, most))
            assert {each.machine for each in offers.live(api, wanted, PLACE)} == machines  # type: ignore[arg-type]

    def test_a_region_that_nobody_knows_is_asked_about_first(self) -> None:
        new = ProjectRegion("vision-1", "southafrica-east1")
        api = Lists({"southafrica-east1-a": [plain("g2-standard-4")]})
        assert offers.live(api, asked(machine=("g2-standard-4",)), new)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="did you mean southamerica-east1"):
            offers.live(Lists({}), asked(machine=("g2-standard-4",)), new)  # type: ignore[arg-type]

    def test_what_is_elsewhere_or_obsolete_is_left_out(self) -> None:
        gone = plain("g2-standard-4", deprecated={"state": "OBSOLETE"})
        api = Lists(
            {
                "us-central1-a": [gone],
                "us-central1-b": [plain("g2-standard-4"), plain("g2-standard-40")],
                "us-central1-ai1a": [plain("g2-standard-4")],
                "us-central12-a": [plain("g2-standard-4")],
                "us-east1-b": [plain("g2-standard-4")],
            }
        )
        found = offers.live(api, asked(machine=("g2-standard-4",)), PLACE)  # type: ignore[arg-type]
        assert {each.zone for each in found} == {"us-central1-b"}
        # Whatever a filter lets through is looked at once more.
        api.filters = False
        again = offers.live(api, asked(machine=("g2-standard-4",)), PLACE)  # type: ignore[arg-type]
        assert again == found
        named = asked(machine=("g2-standard-4",), zones=("us-central1-ai1a",))
        assert {each.zone for each in offers.live(api, named, PLACE)} == {"us-central1-ai1a"}  # type: ignore[arg-type]

    def test_a_type_newer_than_the_table_is_learnt(self) -> None:
        new = plain(
            "a9-maxgpu-4g",
            guestCpus=64,
            memoryMb=1048576,
            accelerators=[{"guestAcceleratorType": "nvidia-b200", "guestAcceleratorCount": 4}],
        )
        api = Lists({"us-central1-a": [new]})
        found = offers.live(api, asked(machine=("a9-maxgpu-4g",)), PLACE)  # type: ignore[arg-type]
        assert {(each.cpus, each.gpu, each.gpus, each.price) for each in found} == {(64, "B200", 4, None)}
        assert offers.live(api, asked(machine=("a9-maxgpu-4g",), cpus=65), PLACE) == ()  # type: ignore[arg-type]

    def test_nothing_fits_nothing_is_asked(self) -> None:
        api = Lists({})
        assert offers.live(api, asked(cpus=5000), PLACE) == ()  # type: ignore[arg-type]
        assert api.asked == []

    def test_the_filter_is_one_that_google_takes(self) -> None:
        discovery = pytest.importorskip("tests.support.gce.discovery")
        api = Lists({})
        offers.live(api, asked(gpus=Gpus("T4", 1)), PLACE)  # type: ignore[arg-type]
        for path, params in api.asked:
            assert discovery.check_request("GET", path, params) == []


def test_prices_are_of_machines_that_there_are() -> None:
    for region in prices.BOOK.packaged():
        assert set(prices.BOOK.packaged()[region].prices) <= set(catalog.table())
