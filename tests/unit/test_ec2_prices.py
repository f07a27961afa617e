"""On-demand prices of EC2's machines: the project's table, the person's own, and AWS's price list behind it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from click.testing import CliRunner

from stoker.cli import cli, main
from stoker.model.errors import AuthDenied, UserError
from stoker.providers import price_book
from stoker.providers.ec2 import catalog, prices
from stoker.providers.price_book import RegionPrices

TODAY = date(2026, 11, 16)
HALF = {"2xlarge": "xlarge", "4xlarge": "2xlarge", "8xlarge": "4xlarge", "48xlarge": "24xlarge"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def client() -> Any:
    return boto3.client(
        "pricing", region_name=prices.API_REGION, aws_access_key_id="none", aws_secret_access_key="none"
    )


@pytest.fixture
def aws(client: Any) -> Iterator[Stubber]:
    with Stubber(client) as stub:
        yield stub
        stub.assert_no_pending_responses()


def asked(region: str, token: str | None = None) -> dict[str, Any]:
    wanted = {
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "regionCode": region,
    }
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
    return {"ServiceCode": "AmazonEC2", "Filters": filters} | ({"NextToken": token} if token else {})


def product(machine: str, usd: str, region: str = "us-east-1", unit: str = "Hrs", **other: str) -> str:
    attributes = {
        "instanceType": machine,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "regionCode": region,
        "marketoption": "OnDemand",
    } | other
    dimensions = {"S.T.6YS6EN2CT7": {"unit": unit, "pricePerUnit": {"USD": usd}}}
    terms = {
        "OnDemand": {"S.T": {"priceDimensions": dimensions, "effectiveDate": "2026-11-01T00:00:00Z"}},
        "Reserved": {"S.R": {"priceDimensions": {"S.R.1": {"unit": "Hrs", "pricePerUnit": {"USD": "0.001"}}}}},
    }
    return json.dumps({"product": {"attributes": attributes}, "serviceCode": "AmazonEC2", "terms": terms})


class TestTheProjectsTable:
    @pytest.mark.parametrize(
        ("region", "machine", "amount"),
        [
            ("us-east-1", "p5.48xlarge", 55.04),
            ("us-east-1", "g5.xlarge", 1.006),
            ("us-east-1", "m7i.large", 0.1008),
            ("us-east-2", "g6.xlarge", 0.8048),
            ("us-west-2", "p4d.24xlarge", 21.95764),
            ("eu-west-1", "g5.xlarge", 1.123),
            ("eu-central-1", "g6e.12xlarge", 13.12002),
            ("ap-northeast-1", "g4dn.xlarge", 0.71),
        ],
    )
    def test_prices_come_with_source_and_date(self, region: str, machine: str, amount: float) -> None:
        price = prices.on_demand(region, machine)
        assert price is not None
        assert price.amount == amount
        assert price.source.startswith("AWS price list, by way of ")
        assert date(2026, 1, 1) <= price.date <= date(2026, 12, 31)

    def test_what_nobody_knows_is_unknown(self) -> None:
        assert prices.on_demand("us-east-1", "p99.48xlarge") is None
        assert prices.on_demand("moon-1", "g5.xlarge") is None
        # Sold as capacity blocks: the price list has no price by the hour.
        assert prices.on_demand("us-east-2", "p5e.48xlarge") is None

    def test_every_gpu_type_of_the_first_region_has_one_or_is_not_sold_there(self) -> None:
        unknown = [
            machine.name
            for machine in catalog.table().values()
            if machine.gpus and prices.on_demand("us-east-1", machine.name) is None
        ]
        # The source of the table leaves out inf1 and dl2q, which no default image serves; trn2u comes in blocks alone.
        assert {name.partition(".")[0] for name in unknown} <= {"g7", "p5e", "p6-b300", "trn2", "trn2u", "inf1", "dl2q"}

    def test_the_larger_of_a_family_costs_more(self) -> None:
        """A slip of the pen would show: twice the machine is about twice the price."""
        for region, table in prices.BOOK.packaged().items():
            for name, amount in table.prices.items():
                family, _, size = name.partition(".")
                half = {"2xlarge": "xlarge", "4xlarge": "2xlarge", "8xlarge": "4xlarge", "48xlarge": "24xlarge"}.get(
                    size
                )
                smaller = table.prices.get(f"{family}.{half}")
                assert smaller is None or 1.1 < amount / smaller < 3.2, (region, name)

    def test_the_file_is_in_the_form_that_it_is_written_in(self) -> None:
        path = Path(prices.__file__).parent / "data" / "ec2_prices.json"
        text = path.read_text("utf-8")
        assert prices.BOOK.render(price_book.parse(text)) == text


class TestRefreshing:
    def test_prices_of_all_pages_are_kept(self, client: Any, aws: Stubber, home: Path) -> None:
        first = {"PriceList": [product("g5.xlarge", "1.0060000000"), product("m9.big", "2.5")], "NextToken": "more"}
        aws.add_response("get_products", first, asked("us-east-1"))
        aws.add_response("get_products", {"PriceList": [product("p5.48xlarge", "50")]}, asked("us-east-1", "more"))
        brought = prices.refresh(client, ["us-east-1"], today=TODAY)
        assert brought.path == home / "prices" / "ec2.json"
        assert brought.counts == {"us-east-1": 3}
        price = prices.on_demand("us-east-1", "p5.48xlarge")
        assert price is not None
        assert (price.amount, price.date, price.source) == (50.0, TODAY, "AWS price list API")
        # A newer table is the whole truth about its region: what it does not have is not sold there any more.
        assert prices.on_demand("us-east-1", "g4dn.xlarge") is None
        assert prices.on_demand("us-west-2", "g4dn.xlarge") is not None

    @pytest.mark.parametrize(
        "other",
        [
            product("g5.2xlarge", "9", marketoption="CapacityBlock"),
            product("g5.2xlarge", "0.0000000000"),
            product("g5.2xlarge", "9", operatingSystem="Windows"),
            product("g5.2xlarge", "9", capacitystatus="AllocatedCapacityReservation"),
            product("g5.2xlarge", "9", regionCode="us-west-2"),
            product("g5.2xlarge", "9", unit="Quantity"),
            product("g5.2xlarge", "nonsense"),
            json.dumps({"product": {"attributes": {}}}),
            json.dumps({"product": {"attributes": {"instanceType": "g5.2xlarge"}}, "terms": {"Reserved": {}}}),
        ],
    )
    def test_anything_else_that_the_list_sells_is_left_out(self, client: Any, aws: Stubber, other: str) -> None:
        aws.add_response("get_products", {"PriceList": [other, product("g5.xlarge", "1.5")]}, asked("us-east-1"))
        assert prices.refresh(client, ["us-east-1"], today=TODAY).counts == {"us-east-1": 1}
        assert prices.on_demand("us-east-1", "g5.2xlarge") is None

    def test_a_machine_listed_twice_never_looks_cheaper_than_it_may_be(self, client: Any, aws: Stubber) -> None:
        listed = [product("g5.xlarge", "1.5"), product("g5.xlarge", "1.2")]
        aws.add_response("get_products", {"PriceList": listed}, asked("us-east-1"))
        prices.refresh(client, ["us-east-1"], today=TODAY)
        price = prices.on_demand("us-east-1", "g5.xlarge")
        assert price is not None
        assert price.amount == 1.5

    def test_other_regions_that_were_refreshed_before_stay(self, client: Any, aws: Stubber) -> None:
        for region in ("eu-west-1", "us-east-1"):
            answer = {"PriceList": [product("g5.xlarge", "7", region)]}
            aws.add_response("get_products", answer, asked(region))
            prices.refresh(client, [region], today=TODAY)
        assert set(prices.BOOK.refreshed_tables()) == {"eu-west-1", "us-east-1"}

    def test_no_access_is_told_and_nothing_changes(self, client: Any, aws: Stubber, home: Path) -> None:
        aws.add_response("get_products", {"PriceList": [product("g5.xlarge", "7")]}, asked("us-east-1"))
        aws.add_client_error("get_products", "AccessDeniedException", "not authorized to perform pricing:GetProducts")
        with pytest.raises(AuthDenied, match=r"pricing:GetProducts: .*not authorized"):
            prices.refresh(client, ["us-east-1", "us-east-2"], today=TODAY)
        assert not (home / "prices").exists()

    def test_a_region_that_is_none_is_the_persons_mistake(self, client: Any, aws: Stubber) -> None:
        aws.add_response("get_products", {"PriceList": []}, asked("moon-1"))
        with pytest.raises(UserError, match=r"--region: AWS has no prices for moon-1"):
            prices.refresh(client, ["moon-1"], today=TODAY)

    def test_a_home_that_cannot_be_written(self, client: Any, aws: Stubber, home: Path) -> None:
        home.write_text("in the way")
        aws.add_response("get_products", {"PriceList": [product("g5.xlarge", "7")]}, asked("us-east-1"))
        with pytest.raises(UserError, match=r"prices/ec2\.json cannot be written: .*STOKER_HOME"):
            prices.refresh(client, ["us-east-1"], today=TODAY)

    def test_a_write_leaves_no_litter(self, client: Any, aws: Stubber, home: Path) -> None:
        for _ in range(2):
            aws.add_response("get_products", {"PriceList": [product("g5.xlarge", "7")]}, asked("us-east-1"))
            prices.refresh(client, ["us-east-1"], today=TODAY)
        assert [path.name for path in (home / "prices").iterdir()] == ["ec2.json"]


class TestWhichTableWins:
    def keep(self, home: Path, day: date, amount: float = 7.0) -> None:
        (home / "prices").mkdir(parents=True, exist_ok=True)
        table = {"us-east-1": RegionPrices("mine", day, {"g5.xlarge": amount})}
        (home / "prices" / "ec2.json").write_text(prices.BOOK.render(table))

    def amount(self) -> float | None:
        price = prices.on_demand("us-east-1", "g5.xlarge")
        return None if price is None else price.amount

    def test_the_newer(self, home: Path) -> None:
        self.keep(home, date(2026, 11, 1))
        assert self.amount() == 7.0

    def test_an_old_one_does_not_win_over_a_project_that_moved_on(self, home: Path) -> None:
        self.keep(home, date(2025, 1, 1))
        assert self.amount() == 1.006

    def test_a_change_is_seen_by_a_program_that_is_running(self, home: Path) -> None:
        self.keep(home, date(2026, 11, 1))
        assert self.amount() == 7.0
        self.keep(home, date(2026, 11, 2), 8.25)
        assert self.amount() == 8.25

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{",
            '{"regions": {"us-east-1": {}}}',
            '{"regions": {"us-east-1": {"source": "x", "date": "2026-11-01", "prices": {"g5.xlarge": -1}}}}',
            '{"regions": {"us-east-1": {"source": "x", "date": "2026-11-01", "prices": {"g5.xlarge": NaN}}}}',
            '{"regions": {"us-east-1": {"source": "x", "date": "yesterday", "prices": {}}}}',
        ],
    )
    def test_a_broken_one_counts_as_none(self, home: Path, text: str) -> None:
        (home / "prices").mkdir(parents=True)
        (home / "prices" / "ec2.json").write_text(text)
        assert self.amount() == 1.006


class TestTheCommand:
    def test_the_table_is_shown_with_source_date_and_age(self) -> None:
        result = CliRunner().invoke(cli, ["prices", "--region", "us-east-1"])
        assert result.exit_code == 0
        assert "us-east-1  ec2, 2026-02-09\n" in result.output
        assert " old" in result.output
        assert "karpenter-provider-aws" in result.output
        assert "p5.4xlarge" in result.output
        assert "eu-west-1" not in result.output

    def test_json_has_everything(self) -> None:
        result = CliRunner().invoke(cli, ["prices", "--json"])
        found = json.loads(result.output)
        assert {"us-east-1", "us-east-2", "us-west-2", "eu-west-1", "eu-central-1", "ap-northeast-1"} <= set(found)
        assert found["us-east-1"]["prices"]["p5.48xlarge"] == 55.04
        assert found["us-east-1"]["date"] == "2026-02-09"

    def test_refresh_needs_boto3(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        import importlib.util

        real = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == "boto3" else real(name, *rest)
        )
        monkeypatch.delitem(sys.modules, "boto3")
        with pytest.raises(SystemExit) as left:
            main(["prices", "--provider", "ec2", "--refresh"])
        told = capsys.readouterr()
        assert left.value.code == 2
        assert "pip install 'stoker[aws]'" in told.err
        assert told.err.count("\n") == 1

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["prices", "--provider", "local"], "local keeps no table of prices"),
            (["prices", "--provider", "nobody"], "nobody"),
            (["prices", "--region", "moon-1"], "no table has prices for moon-1"),
        ],
    )
    def test_mistakes_are_one_line(self, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        told = capsys.readouterr()
        assert left.value.code == 2
        assert said in told.err
        assert told.err.count("\n") == 1

    def test_refresh_asks_for_every_region_of_the_table(
        self, client: Any, aws: Stubber, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from stoker.providers.ec2 import client as clients

        monkeypatch.setattr(clients.Clients, "get", lambda _self, service, region: client)
        regions = prices.BOOK.packaged()
        for region in regions:
            aws.add_response("get_products", {"PriceList": [product("g5.xlarge", "7", region)]}, asked(region))
        with pytest.raises(SystemExit) as left:
            main(["prices", "--provider", "ec2", "--refresh", "--json"])
        told = capsys.readouterr()
        assert left.value.code == 0
        assert f"{len(regions)} prices for {len(regions)} regions kept in" in told.err
        assert all(found["prices"] == {"g5.xlarge": 7.0} for found in json.loads(told.out).values())
