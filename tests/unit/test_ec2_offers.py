"""What EC2 offers for a job, without a cloud and against its two calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cli import cli
from stoker.cli.offers import listing
from stoker.core.acceptable_offerings import acceptable
from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Gpus, Resources
from stoker.model.spec import Limits, Spec
from stoker.providers import machine_types
from stoker.providers.ec2 import catalog, offers, prices

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=timezone.utc)
REGION = "us-east-1"


@pytest.fixture(autouse=True)
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))


@pytest.fixture
def ec2() -> Any:
    return boto3.client("ec2", region_name=REGION, aws_access_key_id="none", aws_secret_access_key="none")


@pytest.fixture
def aws(ec2: Any) -> Iterator[Stubber]:
    with Stubber(ec2) as stub:
        yield stub
        stub.assert_no_pending_responses()


def wanted(**asked: Any) -> Resources:
    return Resources(**({"provider": "ec2", "region": REGION} | asked))


def filtered(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"Name": "instance-type", "Values": list(names)}]


def places(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {
        "InstanceTypeOfferings": [
            {"InstanceType": machine, "LocationType": "availability-zone", "Location": zone} for machine, zone in pairs
        ]
    }


def spot(machine: str, zone: str, price: str, hours_ago: float = 1.0, product: str = "Linux/UNIX") -> dict[str, Any]:
    return {
        "InstanceType": machine,
        "AvailabilityZone": zone,
        "SpotPrice": price,
        "ProductDescription": product,
        "Timestamp": NOW - timedelta(hours=hours_ago),
    }


def expect_places(aws: Stubber, names: Sequence[str], *pages: dict[str, Any]) -> None:
    for number, page in enumerate(pages):
        asked = {"LocationType": "availability-zone", "Filters": filtered(names)}
        if number:
            asked["NextToken"] = f"page-{number}"
        more = {"NextToken": f"page-{number + 1}"} if number < len(pages) - 1 else {}
        aws.add_response("describe_instance_type_offerings", page | more, asked)


def expect_spot(aws: Stubber, names: Sequence[str], *pages: list[dict[str, Any]]) -> None:
    for number, page in enumerate(pages):
        asked = {"InstanceTypes": list(names), "ProductDescriptions": ["Linux/UNIX"], "StartTime": NOW}
        if number:
            asked["NextToken"] = f"page-{number}"
        # The last page has an empty token in this call, and none at all in the other.
        more = f"page-{number + 1}" if number < len(pages) - 1 else ""
        aws.add_response("describe_spot_price_history", {"SpotPriceHistory": page, "NextToken": more}, asked)


def brief(found: Sequence[Offering]) -> list[tuple[str, str, bool, float | None]]:
    return [(offering.machine, offering.zone, offering.spot, offering.price) for offering in found]


class TestOffline:
    def test_the_tables_alone_know_on_demand_prices(self) -> None:
        found = offers.offline(wanted(gpus=Gpus("A100", 8)))
        assert brief(found) == [
            ("p4d.24xlarge", "", False, 21.957642),
            ("p4de.24xlarge", "", False, 27.44705),
            ("p4d.24xlarge", "", True, None),
            ("p4de.24xlarge", "", True, None),
        ]
        first = found[0]
        assert (first.region, first.cpus, first.gpu, first.gpus) == (REGION, 96, "A100-40GB", 8)
        assert first.memory_bytes == 1152 * 1024**3
        assert first.price_source.startswith("table of 2026-02-09 (AWS price list")
        assert found[2].price_source == ""
        # What spot saves is told against it.
        assert found[2].on_demand_price == 21.957642

    def test_zones_are_as_the_job_names_them(self) -> None:
        found = offers.offline(wanted(machine=("g5.xlarge",), zones=("us-east-1a", "us-east-1c")))
        assert {offering.zone for offering in found} == {"us-east-1a", "us-east-1c"}

    def test_a_local_zone_is_not_priced_like_its_region(self) -> None:
        (first, *_) = offers.offline(wanted(machine=("g5.xlarge",), zones=("us-east-1-atl-2a",)))
        assert (first.zone, first.price, first.price_source) == ("us-east-1-atl-2a", None, "")

    def test_preference_comes_before_price(self) -> None:
        found = offers.offline(wanted(machine=("p5.48xlarge", "g5.xlarge")))
        assert [offering.machine for offering in found] == ["p5.48xlarge", "p5.48xlarge", "g5.xlarge", "g5.xlarge"]

    def test_a_type_newer_than_the_table_is_offered_with_unknown_facts(self) -> None:
        (first, second) = offers.offline(wanted(machine=("p9.96xlarge",)))
        assert {first.spot, second.spot} == {True, False}
        assert (first.price, first.cpus, first.memory_bytes, first.gpu, first.gpus) == (None, None, None, None, 0)

    def test_where_no_price_is_known_the_smallest_comes_first(self) -> None:
        found = offers.offline(wanted(region="il-central-1", gpus=Gpus("A10G", 1)))
        assert [offering.machine for offering in found[:4]] == ["g5.xlarge", "g5.xlarge", "g5.2xlarge", "g5.2xlarge"]
        assert all(offering.price is None for offering in found)

    def test_unknown_spot_prices_are_ordered_as_on_demand_is(self) -> None:
        found = [offering for offering in offers.offline(wanted(gpus=Gpus("", 1))) if offering.spot]
        against = [offering.on_demand_price for offering in found]
        assert None not in against
        assert against == sorted(against, key=lambda price: price or 0.0)

    def test_the_list_stays_short_when_nothing_is_named(self) -> None:
        assert len({offering.machine for offering in offers.offline(wanted(cpus=4))}) <= 24

    def test_without_a_region_nothing_can_be_said(self) -> None:
        with pytest.raises(UserError, match=r"^resources\.region: "):
            offers.offline(wanted(region=None, machine=("g5.xlarge",)))

    def test_what_cannot_be_is_offered_by_nobody(self) -> None:
        assert offers.offline(wanted(gpus=Gpus("H100", 16))) == ()
        with pytest.raises(UserError, match=r"^resources\.machine: "):
            offers.offline(wanted(machine=("p9.huge",)))

    def test_placement_chooses_among_them(self) -> None:
        found = offers.offline(wanted(gpus=Gpus("L4", 1)))
        for how, first in (("only", True), ("never", False), ("prefer", True)):
            spec = Spec(name="x", run="true", resources=wanted(gpus=Gpus("L4", 1), spot=how))
            fitting, _ = acceptable(spec, found)
            assert (fitting[0].machine, fitting[0].spot) == ("g6.xlarge", first)
        bounded = Spec(name="x", run="true", resources=wanted(spot="only"), limits=Limits(max_cost=1.0))
        assert acceptable(bounded, found)[0] == [each for each in found if each.spot], "at most the on-demand price"
        assert acceptable(bounded, tuple(replace(each, on_demand_price=None) for each in found))[0] == []


class TestLive:
    def test_zones_and_prices_of_this_moment(self, ec2: Any, aws: Stubber) -> None:
        expect_places(
            aws,
            ["g5.xlarge", "p5.48xlarge"],
            places(("g5.xlarge", "us-east-1b"), ("g5.xlarge", "us-east-1a")),
            places(("p5.48xlarge", "us-east-1f")),
        )
        expect_spot(
            aws,
            ["g5.xlarge", "p5.48xlarge"],
            [
                spot("g5.xlarge", "us-east-1a", "0.500000"),
                # Yesterday's, and the one in force: whichever comes first in the answer.
                spot("g5.xlarge", "us-east-1b", "0.900000", hours_ago=30),
            ],
            [
                spot("g5.xlarge", "us-east-1b", "0.400000", hours_ago=2, product="Linux/UNIX (Amazon VPC)"),
                spot("g5.xlarge", "us-east-1b", "0.700000", hours_ago=5),
                spot("g5.xlarge", "us-east-1b", "0.100000", hours_ago=1, product="Windows"),
                # A zone without the type, and a type in a zone without a price.
                spot("g5.xlarge", "us-east-1e", "0.050000"),
            ],
        )
        found = offers.live(ec2, wanted(machine=("g5.xlarge", "p5.48xlarge")), now=NOW)
        assert brief(found) == [
            ("g5.xlarge", "us-east-1b", True, 0.4),
            ("g5.xlarge", "us-east-1a", True, 0.5),
            ("g5.xlarge", "us-east-1a", False, 1.006),
            ("g5.xlarge", "us-east-1b", False, 1.006),
            ("p5.48xlarge", "us-east-1f", False, 55.04),
            ("p5.48xlarge", "us-east-1f", True, None),
        ]
        assert found[0].price_source == "spot price history 2026-11-16"
        assert (found[0].on_demand_price, found[0].region) == (1.006, REGION)
        assert found[-1].price_source == ""

    def test_the_cheapest_comes_first_when_nothing_is_named(self, ec2: Any, aws: Stubber) -> None:
        resources = wanted(gpus=Gpus("A100", 8))
        names = ["p4d.24xlarge", "p4de.24xlarge"]
        expect_places(aws, names, places(*((name, "us-east-1a") for name in names)))
        prices_now = [spot("p4d.24xlarge", "us-east-1a", "12"), spot("p4de.24xlarge", "us-east-1a", "9.5")]
        expect_spot(aws, names, prices_now)
        found = offers.live(ec2, resources, now=NOW)
        assert [(offering.machine, offering.spot) for offering in found] == [
            ("p4de.24xlarge", True),
            ("p4d.24xlarge", True),
            ("p4d.24xlarge", False),
            ("p4de.24xlarge", False),
        ]

    def test_local_and_wavelength_zones_are_for_who_names_them(self, ec2: Any, aws: Stubber) -> None:
        far = ["us-east-1-atl-2a", "us-east-1-wl1-bos-wlz-1", "us-east-1-bos-1a"]
        there = places(*(("g5.xlarge", zone) for zone in ["us-east-1a", *far]))
        expect_places(aws, ["g5.xlarge"], there)
        expect_spot(aws, ["g5.xlarge"], [])
        found = offers.live(ec2, wanted(machine=("g5.xlarge",)), now=NOW)
        assert {offering.zone for offering in found} == {"us-east-1a"}
        expect_places(aws, ["g5.xlarge"], there)
        expect_spot(aws, ["g5.xlarge"], [spot("g5.xlarge", far[0], "0.6")])
        named = offers.live(ec2, wanted(machine=("g5.xlarge",), zones=(far[0],)), now=NOW)
        # The table is of the region; what the Local Zone asks on demand is not in it.
        assert brief(named) == [("g5.xlarge", far[0], True, 0.6), ("g5.xlarge", far[0], False, None)]

    def test_only_the_zones_that_are_named(self, ec2: Any, aws: Stubber) -> None:
        resources = wanted(machine=("g5.xlarge",), zones=("us-east-1d", "us-east-1b"))
        expect_places(aws, ["g5.xlarge"], places(("g5.xlarge", "us-east-1a"), ("g5.xlarge", "us-east-1b")))
        expect_spot(aws, ["g5.xlarge"], [])
        assert {offering.zone for offering in offers.live(ec2, resources, now=NOW)} == {"us-east-1b"}

    def test_a_zone_of_another_region_asks_nothing(self, ec2: Any, aws: Stubber) -> None:
        with pytest.raises(UserError, match=r"resources\.zones: us-west-2a is not in us-east-1"):
            offers.live(ec2, wanted(machine=("g5.xlarge",), zones=("us-west-2a",)), now=NOW)

    def test_nothing_there_asks_for_no_price(self, ec2: Any, aws: Stubber) -> None:
        resources = wanted(machine=("g5.xlarge",), zones=("us-east-1z",))
        expect_places(aws, ["g5.xlarge"], places(("g5.xlarge", "us-east-1a")))
        assert offers.live(ec2, resources, now=NOW) == ()
        assert offers.why_none(resources).startswith("resources.zones: EC2 does not offer g5.xlarge in us-east-1z")

    def test_nothing_that_fits_asks_nothing(self, ec2: Any, aws: Stubber) -> None:
        assert offers.live(ec2, wanted(gpus=Gpus("H100", 16)), now=NOW) == ()

    @pytest.mark.parametrize("price", ["", "nonsense", "nan", "inf", "0.000000", "-1"])
    def test_a_price_that_is_none_is_unknown(self, ec2: Any, aws: Stubber, price: str) -> None:
        expect_places(aws, ["g5.xlarge"], places(("g5.xlarge", "us-east-1a")))
        expect_spot(aws, ["g5.xlarge"], [spot("g5.xlarge", "us-east-1a", price)])
        found = offers.live(ec2, wanted(machine=("g5.xlarge",)), now=NOW)
        assert {offering.spot: offering.price for offering in found} == {True: None, False: 1.006}

    def test_a_new_type_is_learnt(self, ec2: Any, aws: Stubber) -> None:
        described = {
            "InstanceType": "p9.96xlarge",
            "VCpuInfo": {"DefaultVCpus": 384},
            "MemoryInfo": {"SizeInMiB": 4096 * 1024},
            "GpuInfo": {"Gpus": [{"Name": "X900", "Count": 8, "MemoryInfo": {"SizeInMiB": 524288}}]},
            "NetworkInfo": {"EfaInfo": {"MaximumEfaInterfaces": 64}},
            "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
            "SupportedUsageClasses": ["on-demand"],
        }
        names = ["p9.96xlarge", "p9.192xlarge"]
        answer = {"InstanceTypes": [described]}
        aws.add_response("describe_instance_types", answer, {"Filters": filtered(names)})
        expect_places(aws, names, places(("p9.96xlarge", "us-east-1a")))
        expect_spot(aws, ["p9.96xlarge"], [])
        found = offers.live(ec2, wanted(machine=tuple(names), gpus=Gpus("X900", 8)), now=NOW)
        # It cannot be had as spot; the other is not known to EC2 either.
        assert brief(found) == [("p9.96xlarge", "us-east-1a", False, None)]
        assert (found[0].cpus, found[0].gpu, found[0].gpus) == (384, "X900", 8)

    def test_a_new_type_must_fit_once_it_is_known(self, ec2: Any, aws: Stubber) -> None:
        described = {
            "InstanceType": "m99g.large",
            "VCpuInfo": {"DefaultVCpus": 2},
            "MemoryInfo": {"SizeInMiB": 8192},
            "ProcessorInfo": {"SupportedArchitectures": ["arm64"]},
        }
        answer = {"InstanceTypes": [described]}
        aws.add_response("describe_instance_types", answer, {"Filters": filtered(["m99g.large"])})
        assert offers.live(ec2, wanted(machine=("m99g.large",), cpus=64), now=NOW) == ()

    def test_few_enough_types_for_one_call(self) -> None:
        asked: list[int] = []

        class Counting(FakeEc2):
            def describe_instance_type_offerings(self, Filters: Any, **_: Any) -> Any:
                asked.append(len(Filters[0]["Values"]))
                return places()

        # Hundreds would fit; the filter of a call takes 200 values.
        assert offers.live(Counting(None), wanted(), now=NOW) == ()  # type: ignore[arg-type]
        assert asked == [24]

    @given(
        gpus=st.sampled_from([None, Gpus("", 1), Gpus("", 4), Gpus("A100", 8), Gpus("L4", 1), Gpus("T4g", 1)]),
        machine=st.lists(
            st.sampled_from(["g5.xlarge", "g6.12xlarge", "p5.48xlarge", "t4g.large", "m7i.8xlarge"]), max_size=3
        ),
        cpus=st.none() | st.integers(1, 200),
        memory=st.none() | st.integers(1, 10**12),
        zones=st.lists(st.sampled_from(["us-east-1a", "us-east-1b", "us-east-1-atl-2a"]), unique=True),
        seed=st.randoms(use_true_random=False),
    )
    @settings(max_examples=60, deadline=None)
    def test_every_offering_is_what_was_asked_for(
        self, gpus: Gpus | None, machine: list[str], cpus: int | None, memory: int | None, zones: list[str], seed: Any
    ) -> None:
        resources = wanted(gpus=gpus, machine=tuple(machine), cpus=cpus, memory_bytes=memory, zones=tuple(zones))
        found = offers.live(FakeEc2(seed), resources, now=NOW)  # type: ignore[arg-type]
        for offering in found:
            assert (offering.provider, offering.region) == ("ec2", REGION)
            assert cpus is None or (offering.cpus or 0) >= cpus
            assert memory is None or (offering.memory_bytes or 0) >= memory
            assert offering.gpus >= (gpus.count if gpus else 0)
            assert gpus is None or machine_types.same_gpu(gpus.name, catalog.facts(offering.machine))
            assert not machine or offering.machine in machine
            assert offering.zone in zones if zones else offering.zone in ("us-east-1a", "us-east-1b")
            assert offering.price is None or offering.price > 0
            assert (offering.price is None) == (offering.price_source == "")
        keys = [offering.key for offering in found]
        assert len(keys) == len(set(keys))
        ranks = [machine.index(offering.machine) for offering in found] if machine else [0] * len(found)
        assert ranks == sorted(ranks)
        costs = [
            (rank, float("inf") if offering.price is None else offering.price)
            for rank, offering in zip(ranks, found, strict=True)
        ]
        assert costs == sorted(costs)


class FakeEc2:
    """An EC2 where some types are in some zones, some of them with a price."""

    class meta:
        region_name = REGION

    def __init__(self, random: Any) -> None:
        self._random = random

    def describe_instance_type_offerings(self, Filters: Any, **_: Any) -> Any:
        zones = ["us-east-1a", "us-east-1b", "us-east-1-atl-2a", "us-east-1-wl1-bos-wlz-1"]
        pairs = [(name, zone) for name in Filters[0]["Values"] for zone in zones if self._random.random() < 0.6]
        return places(*pairs)

    def describe_spot_price_history(self, InstanceTypes: Any, **_: Any) -> Any:
        zones = ["us-east-1a", "us-east-1b", "us-east-1-atl-2a"]
        found = [
            spot(name, zone, f"{self._random.random() * 5:.6f}", hours_ago=self._random.random() * 100)
            for name in InstanceTypes
            for zone in zones
            for _ in range(self._random.randrange(3))
        ]
        self._random.shuffle(found)
        return {"SpotPriceHistory": found, "NextToken": ""}


class TestWhyNone:
    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ({"machine": ("p5.48xlarge",)}, "resources.machine: EC2 does not offer p5.48xlarge in us-east-1"),
            (
                {"machine": ("p5.48xlarge",), "region": None},
                "resources.machine: EC2 does not offer p5.48xlarge in this",
            ),
            ({"gpus": Gpus("H100", 8)}, "resources.gpus: EC2 does not offer such a machine in us-east-1"),
            ({"gpus": Gpus("X1000", 8)}, "resources.gpus: EC2 has no X1000"),
            ({"machine": ("p9.huge",)}, "resources.machine: EC2 has no machine type 'p9.huge'"),
            ({"cpus": 1, "zones": ("us-east-1z",)}, "resources.zones: EC2 does not offer such a machine in us-east-1z"),
        ],
    )
    def test_one_line_names_the_field(self, asked: dict[str, Any], said: str) -> None:
        why = offers.why_none(wanted(**asked))
        assert why.startswith(said)
        assert "\n" not in why


class TestTheListing:
    def offered(self) -> tuple[Offering, ...]:
        def one(machine: str, zone: str, is_spot: bool, price: float | None, source: str) -> Offering:
            return Offering("ec2", machine, zone, is_spot, REGION, price, 1.0, source, 4, 16 * 10**9, "A10G", 1)

        return (
            one("g5.xlarge", "us-east-1b", True, 0.4, "spot price history 2026-11-16"),
            one("g5.xlarge", "us-east-1a", True, 0.5, "spot price history 2026-11-16"),
            one("g5.xlarge", "us-east-1a", False, 1.0, "table of 2026-02-09 (a long story)"),
            one("g5.2xlarge", "us-east-1a", True, None, ""),
        )

    def test_a_line_for_each_machine_in_its_best_zone(self) -> None:
        header, rows = listing(self.offered())
        assert header == ["MACHINE", "ZONE", "KIND", "PRICE", "CPUS", "MEMORY", "GPUS", "SOURCE"]
        assert [row[:4] + row[-1:] for row in rows] == [
            ["g5.xlarge", "us-east-1b +1", "spot", "$0.40/h", "spot price history 2026-11-16"],
            ["g5.xlarge", "us-east-1a", "on-demand", "$1.00/h", "table of 2026-02-09"],
            ["g5.2xlarge", "us-east-1a", "spot", "unknown", "–"],
        ]

    def test_or_for_each_zone(self) -> None:
        _, rows = listing(self.offered(), by_zone=True)
        assert [row[1] for row in rows] == ["us-east-1b", "us-east-1a", "us-east-1a", "us-east-1a"]

    def test_one_source_needs_no_column(self) -> None:
        header, _ = listing(self.offered()[:2])
        assert "SOURCE" not in header

    def invoke(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
        from stoker.submit import choose_offerings

        class Cloud:
            def offerings(self, resources: Resources) -> tuple[Offering, ...]:
                return offers.offline(resources)

            def why_none(self, resources: Resources) -> str:
                return offers.why_none(resources)

        monkeypatch.setattr(choose_offerings, "connect", lambda *_args, **_more: Cloud())
        result = CliRunner().invoke(
            cli, ["offers", "--provider", "ec2", "--set", "resources.region=us-east-1", *arguments]
        )
        if result.exception is not None:
            raise result.exception
        return result.output

    def test_the_command(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setenv("COLUMNS", "200")
        Path("stoker.yaml").write_text("run: 'true'\nresources: {spot: prefer}\n")
        everything = self.invoke(monkeypatch, "--set", "resources.gpus=L4:1", "--limit", "0")
        *lines, last = everything.splitlines()
        assert len(lines) == 15
        # Nobody is asked here, so spot is not known.
        assert last == "7 of 14 prices are not known; `stoker prices --provider ec2 --refresh` may fetch them"
        # Spot comes first where it is preferred, whatever it costs.
        assert [line.split()[2] for line in lines[1:]] == ["spot"] * 7 + ["on-demand"] * 7
        first = " ".join(lines[8].split())
        assert first.startswith("g6.xlarge any on-demand $0.80/h 4 17.2 GB 1 × L4 table of 2026-02-09")
        few = self.invoke(monkeypatch, "--set", "resources.gpus=L4:1", "--limit", "3")
        assert [line.split() for line in few.splitlines()[:4]] == [line.split() for line in lines[:4]]
        assert "… and 11 more; --limit 0 shows all" in few
        found = json.loads(self.invoke(monkeypatch, "--set", "resources.machine=[g5.xlarge]", "--json"))
        assert [(one["machine"], one["spot"]) for one in found] == [("g5.xlarge", True), ("g5.xlarge", False)]
        price = prices.on_demand("us-east-1", "g5.xlarge")
        assert price is not None
        assert price.source in found[1]["price_source"]

    def test_what_the_job_does_not_allow_would_not_be_tried(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        both = ("--set", "resources.machine=[g5.xlarge, g6.xlarge]", "--set", "resources.spot=false")
        told = self.invoke(monkeypatch, *both)
        assert [line.split()[:3] for line in told.splitlines()[1:3]] == [
            ["g5.xlarge", "any", "on-demand"],
            ["g6.xlarge", "any", "on-demand"],
        ]
        assert told.endswith("\n2 of 4 are left out: resources.spot is false\n")
        cheap = (*both, "--set", "resources.max_price=0.9")
        told = self.invoke(monkeypatch, *cheap)
        assert "g5.xlarge" not in told and "g6.xlarge" in told and "resources.max_price is $0.9/h" in told
        found = json.loads(self.invoke(monkeypatch, *cheap, "--json"))
        assert [(one["machine"], one["spot"]) for one in found] == [("g6.xlarge", False)]
        with pytest.raises(UserError, match=r"the cheapest known is g6\.xlarge at \$0\.80"):
            self.invoke(monkeypatch, *both, "--set", "resources.max_price=0.1")
