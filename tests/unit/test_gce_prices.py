"""Prices of Compute Engine's machines: the project's table, the person's own, and Google's catalog behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stoker.cli import cli, main
from stoker.errors import AuthDenied, UserError
from stoker.providers.gce import catalog, prices

TODAY = date(2026, 11, 16)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def sku(
    description: str, usd: float, usage: str = "OnDemand", regions: tuple[str, ...] = ("us-central1", "us-east1")
) -> dict[str, Any]:
    """As the billing catalog tells it: whole dollars as text, and billionths."""
    units, nanos = divmod(round(usd * 1e9), 10**9)
    rate = {"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": str(units), "nanos": nanos}}
    expression = {"usageUnit": "h", "displayQuantity": 1, "tieredRates": [rate], "baseUnit": "s"}
    return {
        "name": "services/6F81-5844-456A/skus/0000-0000-0000",
        "description": description,
        "category": {"serviceDisplayName": "Compute Engine", "resourceFamily": "Compute", "usageType": usage},
        "serviceRegions": list(regions),
        "pricingInfo": [{"summary": "", "pricingExpression": expression, "effectiveTime": "2026-11-01T00:00:00Z"}],
    }


N1 = [
    sku("N1 Predefined Instance Core running in Americas", 0.031611),
    sku("N1 Predefined Instance Ram running in Americas", 0.004237),
    sku("Spot Preemptible N1 Predefined Instance Core running in Americas", 0.0088, "Preemptible"),
    sku("Spot Preemptible N1 Predefined Instance Ram running in Americas", 0.0012, "Preemptible"),
]
T4 = [
    sku("Nvidia Tesla T4 GPU running in Americas", 0.35),
    sku("Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas", 0.175, "Preemptible"),
]
A2 = [
    sku("A2 Instance Core running in Americas", 0.031611),
    sku("A2 Instance Ram running in Americas", 0.004237),
    sku("Nvidia Tesla A100 GPU running in Americas", 2.933908),
    sku("Nvidia Tesla A100 80GB GPU running in Americas", 3.92808),
]
A3 = [
    sku("A3 Instance Core running in Americas", 0.0293),
    sku("A3 Instance Ram running in Americas", 0.0025),
    sku("A3Plus Instance Core running in Americas", 0.0294),
    sku("A3Plus Instance Ram running in Americas", 0.0026),
    sku("Nvidia H100 80GB GPU running in Americas", 9.796550569),
    sku("Nvidia H100 80GB Plus GPU running in Americas", 10.344275712),
]


class Billing:
    """The billing catalog, in pages of three."""

    def __init__(self, skus: list[dict[str, Any]]) -> None:
        self.skus = skus
        self.asked: list[tuple[str, dict[str, Any], str]] = []

    def pages(self, path: str, params: Mapping[str, Any], *, service: str) -> Iterator[dict[str, Any]]:
        self.asked.append((path, dict(params), service))
        for start in range(0, len(self.skus), 3):
            yield {"skus": self.skus[start : start + 3], "nextPageToken": "more"}
        yield {}


def refresh(skus: list[dict[str, Any]], *regions: str) -> Billing:
    billing = Billing(skus)
    prices.refresh(billing, regions or ("us-central1",), today=TODAY)  # type: ignore[arg-type]
    return billing


def amount(machine: str, region: str = "us-central1", *, spot: bool = False) -> float | None:
    found = (prices.spot if spot else prices.on_demand)(region, machine)
    return None if found is None else found.amount


class TestTheProjectsTable:
    @pytest.mark.parametrize(
        ("region", "machine", "on_demand", "spot"),
        [
            ("us-central1", "e2-standard-4", 0.13401, None),
            ("us-central1", "n1-standard-8", 0.38, 0.1057),
            ("us-central1", "n1-standard-8+nvidia-tesla-t4:1", 0.73, 0.2807),
            ("us-central1", "g2-standard-4", 0.70683, 0.28184),
            ("us-central1", "a2-highgpu-1g", 3.67339, 1.80385),
            ("us-central1", "a2-ultragpu-8g", 40.22162, 20.11024),
            ("us-central1", "a3-highgpu-8g", 87.83246, 26.83013),
            ("us-east4", "a3-megagpu-8g", 92.2143, 17.05486),
            ("europe-west4", "g2-standard-8", 0.89661, 0.38679),
            ("europe-west4", "a2-highgpu-8g", None, 11.89872),
        ],
    )
    def test_prices(self, region: str, machine: str, on_demand: float | None, spot: float | None) -> None:
        assert amount(machine, region) == (None if on_demand is None else pytest.approx(on_demand, abs=0.001))
        assert amount(machine, region, spot=True) == (None if spot is None else pytest.approx(spot, abs=0.001))

    def test_they_come_with_source_and_date(self) -> None:
        price = prices.on_demand("us-central1", "g2-standard-4")
        assert price is not None
        assert price.source.startswith("Cloud Billing catalog, by way of ") and price.date == date(2026, 1, 19)

    def test_what_nobody_knows_is_unknown(self) -> None:
        assert amount("a4-highgpu-8g") is None
        assert amount("g2-standard-4", "mars-north1") is None
        assert amount("e2-micro") is None

    def test_spot_costs_less(self) -> None:
        for region, table in prices.packaged().items():
            for name, spot in table.spot.items():
                assert spot < table.prices.get(name, 1e9), (region, name)

    def test_the_larger_of_a_family_costs_more(self) -> None:
        """A slip of the pen would show: twice the GPUs are twice the price."""
        for region, table in prices.packaged().items():
            for kind in (table.prices, table.spot):
                for family in ("a2-highgpu", "a2-ultragpu", "a3-highgpu"):
                    one, eight = kind.get(f"{family}-1g"), kind.get(f"{family}-8g")
                    assert one is None or eight is None or eight / one == pytest.approx(8, rel=0.01), (region, family)

    def test_the_file_is_in_the_form_that_it_is_written_in(self) -> None:
        text = (Path(prices.__file__).parent / "data" / "gce_prices.json").read_text("utf-8")
        assert prices.render(prices.parse(text)) == text

    def test_people_ask_for_these_first(self) -> None:
        found = prices.featured(prices.packaged()["us-central1"].prices)
        assert {"a2-highgpu-1g", "a3-highgpu-1g", "g2-standard-4", "n1-standard-4+nvidia-tesla-t4:1"} <= set(found)


class TestRefreshing:
    def test_a_machine_is_the_sum_of_its_parts(self, home: Path) -> None:
        billing = refresh([*N1, *T4, *A2, *A3])
        ((path, params, service),) = billing.asked
        assert (path, service) == ("/v1/services/6F81-5844-456A/skus", "cloudbilling")
        assert params["currencyCode"] == "USD"
        assert amount("n1-standard-8") == pytest.approx(8 * 0.031611 + 30 * 0.004237, abs=1e-5)
        assert amount("n1-standard-8", spot=True) == pytest.approx(8 * 0.0088 + 30 * 0.0012, abs=1e-5)
        assert amount("n1-standard-8+nvidia-tesla-t4:2") == pytest.approx(0.37998 + 0.7, abs=1e-4)
        assert amount("n1-standard-8+nvidia-tesla-t4:2", spot=True) == pytest.approx(0.1064 + 0.35, abs=1e-4)
        assert amount("a2-highgpu-1g") == pytest.approx(12 * 0.031611 + 85 * 0.004237 + 2.933908, abs=1e-4)
        assert amount("a2-megagpu-16g") == pytest.approx(96 * 0.031611 + 1360 * 0.004237 + 16 * 2.933908, abs=1e-4)
        assert amount("a2-ultragpu-1g") == pytest.approx(12 * 0.031611 + 170 * 0.004237 + 3.92808, abs=1e-4)
        assert amount("a3-highgpu-8g") == pytest.approx(208 * 0.0293 + 1872 * 0.0025 + 8 * 9.79655, abs=1e-3)
        assert amount("a3-megagpu-8g") == pytest.approx(208 * 0.0294 + 1872 * 0.0026 + 8 * 10.34428, abs=1e-3)
        price = prices.on_demand("us-central1", "n1-standard-8")
        assert price is not None and (price.source, price.date) == ("Cloud Billing catalog", TODAY)
        assert (home / "prices" / "gce.json").exists()

    def test_without_a_part_the_whole_is_unknown(self) -> None:
        refresh([*N1, *A2[:2]])
        assert amount("n1-standard-8") is not None
        assert amount("n1-standard-8+nvidia-tesla-t4:1") is None
        assert amount("a2-highgpu-1g") is None
        # A newer table is the whole truth about its region.
        assert amount("g2-standard-4") is None
        assert amount("g2-standard-4", "us-west1") is not None

    @pytest.mark.parametrize(
        "other",
        [
            sku("N1 Predefined Instance Core running in Americas", 9, "Commit1Yr"),
            sku("N1 Custom Instance Core running in Americas", 9),
            sku("N1 Sole Tenancy Instance Core running in Americas", 9),
            sku("Reserved N1 Predefined Instance Core in Americas in Calendar Mode", 9),
            sku("Commitment v1: N1 Predefined Instance Core in Americas for 1 Year", 9),
            sku("N1 Predefined Instance Core attached to DWS Defined Duration VMs running in Americas", 9),
            sku("Nvidia Tesla T4 GPU attached to DWS Defined Duration VMs running in Americas", 9),
            sku("Reserved Nvidia Tesla T4 GPU in Americas in Calendar Mode", 9),
            sku("Nvidia Tesla T4 Virtual Workstation GPU running in Americas", 9),
            sku("N1 Predefined Instance Core running in Frankfurt", 9, regions=("europe-west3",)),
            sku("N1 Predefined Instance Core running in Americas", 0.0),
            {"description": "N1 Predefined Instance Core running in Americas", "serviceRegions": ["us-central1"]},
            sku("N1 Predefined Instance Core running in Americas", 9) | {"pricingInfo": []},
        ],
    )
    def test_anything_else_that_the_catalog_sells_is_left_out(self, other: dict[str, Any]) -> None:
        refresh([other, *N1, *T4])
        assert amount("n1-standard-8") == pytest.approx(0.37998, abs=1e-4)
        refresh([*N1, *T4, other])
        assert amount("n1-standard-8+nvidia-tesla-t4:1") == pytest.approx(0.72998, abs=1e-4)

    def test_a_part_listed_twice_never_looks_cheaper_than_it_may_be(self) -> None:
        dear, cheap = (sku("Nvidia Tesla T4 GPU running in Americas", usd) for usd in (0.5, 0.4))
        for order in ([dear, cheap], [cheap, dear]):
            refresh([*N1, *order])
            assert amount("n1-standard-8+nvidia-tesla-t4:1") == pytest.approx(0.87998, abs=1e-4)

    def test_a_region_that_is_none_is_the_persons_mistake(self, home: Path) -> None:
        with pytest.raises(UserError, match=r"--region: Google has no prices for mars-north1"):
            refresh(N1, "us-central1", "mars-north1")
        assert not (home / "prices").exists()

    def test_no_access_is_told_and_nothing_changes(self, home: Path) -> None:
        class Denied:
            def pages(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
                yield {"skus": N1}
                raise AuthDenied("the Cloud Billing API is not enabled")

        with pytest.raises(AuthDenied):
            prices.refresh(Denied(), ["us-central1"], today=TODAY)  # type: ignore[arg-type]
        assert not (home / "prices").exists()

    def test_shares_of_a_core_are_not_priced(self) -> None:
        e2 = [sku("E2 Instance Core running in Americas", 0.0218), sku("E2 Instance Ram running in Americas", 0.0029)]
        refresh([*N1, *e2])
        assert amount("e2-standard-4") is not None
        assert amount("e2-micro") is None

    def test_every_series_of_the_table_is_found_in_the_catalog(self) -> None:
        """But for those whose descriptions nobody here has seen."""
        told = {
            "Compute optimized": "c2",
            "N2D AMD": "n2d",
            "C2D AMD": "c2d",
            "T2D AMD": "t2d",
            "T2A Arm": "t2a",
            "C4A Arm": "c4a",
            **{name.upper(): name for name in ("n2", "n4", "e2", "c3", "c4", "g2")},
        }
        skus = []
        for title in told:
            instance = "" if title == "Compute optimized" else " Instance"
            skus += [sku(f"{title}{instance} {part} running in Americas", 0.1) for part in ("Core", "Ram")]
        refresh([*skus, sku("Nvidia L4 GPU running in Americas", 0.56)])
        priced = {name.partition("-")[0] for name in prices.tables()["us-central1"].prices}
        assert priced == set(told.values())
        assert {name.partition("-")[0] for name in catalog.table()} - priced == {"n1", "a2", "a3", "a4", "g4"}


class TestTheCommand:
    def test_the_table_is_shown(self) -> None:
        result = CliRunner().invoke(cli, ["prices", "--provider", "gce", "--region", "us-central1"])
        assert result.exit_code == 0
        assert "us-central1  2026-01-19, " in result.output
        assert "g2-standard-4" in result.output

    def test_json_has_everything(self) -> None:
        found = json.loads(CliRunner().invoke(cli, ["prices", "--provider", "gce", "--json"]).output)
        assert found["us-central1"]["prices"]["g2-standard-4"] == pytest.approx(0.7068, abs=0.001)

    def test_refreshing_needs_its_extra(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        import importlib.util

        real = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == "httpx" else real(name, *rest)
        )
        with pytest.raises(SystemExit) as left:
            main(["prices", "--provider", "gce", "--refresh"])
        told = capsys.readouterr()
        assert left.value.code == 2
        assert "pip install 'stoker[gcp]'" in told.err
        assert told.err.count("\n") == 1

    def test_refreshing_asks_once_for_every_region_of_the_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from stoker.providers.gce import client

        everywhere = tuple(prices.packaged())
        billing = Billing([each | {"serviceRegions": list(everywhere)} for each in N1])
        monkeypatch.setattr(client, "Api", lambda: billing)
        brought = prices.refresh_now()
        assert set(brought.counts) == set(everywhere) and len(billing.asked) == 1
        prices.refresh_now(["vision-1/us-central1"])
        assert amount("n1-standard-8") == pytest.approx(0.37998, abs=1e-4)
